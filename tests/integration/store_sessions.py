"""Further ways to the tests' database: Django aliases with options of their own, and bare sessions."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
from django.db import connection, connections
from django.db.backends.postgresql.base import DatabaseWrapper

from enode_django.eventstore import statements
from enode_django.eventstore.base import StreamRecord

SECONDS = 120.0


_aliases: dict[str, dict[str, Any]] = {}


@contextlib.contextmanager
def database_alias(alias: str, **changes: Any) -> Iterator[str]:
    """A Django alias for the tests' database; ``OPTIONS`` are added, everything else replaces.

    It exists in the calling thread and in every `Call`. It is not in ``DATABASES``, because Django's test cases forbid
    what was added there after they began.
    """
    settings = {**connection.settings_dict, **changes}
    settings["OPTIONS"] = {**connection.settings_dict["OPTIONS"], **changes.get("OPTIONS", {})}
    _aliases[alias] = settings
    _open_alias(alias)
    try:
        yield alias
    finally:
        _leave_alias(alias)
        del _aliases[alias]


def _open_alias(alias: str) -> None:
    connections[alias] = DatabaseWrapper(_aliases[alias], alias)


def _leave_alias(alias: str) -> None:
    connections[alias].close()
    del connections[alias]


@contextlib.contextmanager
def bare_session(**options: Any) -> Iterator[psycopg.Connection[Any]]:
    """Outside of Django, in a transaction from its first statement on."""
    parameters = {**connection.get_connection_params(), **options}
    parameters.pop("context", None)
    parameters.pop("cursor_factory", None)
    with contextlib.closing(psycopg.connect(**parameters)) as session:
        yield session


def insert(session: psycopg.Connection[Any], record: StreamRecord) -> None:
    columns = ", ".join(StreamRecord._fields)
    marks = ", ".join(["%s"] * len(StreamRecord._fields))
    session.execute(f"INSERT INTO {statements.TABLE} ({columns}) VALUES ({marks})", record)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, "what was waited for did not happen"
        time.sleep(0.005)


def waits_for_a_lock(session: psycopg.Connection[Any], application_name: str) -> bool:
    with psycopg.connect(session.info.dsn, password=session.info.password or None, autocommit=True) as observer:
        query = (
            "SELECT count(*) FROM pg_stat_activity"
            " WHERE datname = current_database() AND application_name = %s AND wait_event_type = 'Lock'"
        )
        row = observer.execute(query, [application_name]).fetchone()
        return bool(row and row[0])


class Call:
    """A call in a thread of its own; `result` waits for it, and raises what it raised."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call
        self._result: Any = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        aliases = list(_aliases)
        try:
            for alias in aliases:
                _open_alias(alias)
            self._result = self._call()
        except BaseException as error:
            self._error = error
        finally:
            for alias in aliases:
                _leave_alias(alias)
            connections.close_all()

    def wait_for_a_lock(self, observer: psycopg.Connection[Any], application_name: str) -> None:
        """Returns when the call's session waits; raises what the call raised if it ended instead."""
        wait_until(lambda: not self._thread.is_alive() or waits_for_a_lock(observer, application_name))
        if not self._thread.is_alive():
            self.result()
            raise AssertionError("the call ended instead of waiting for a lock")

    def result(self) -> Any:
        self._thread.join(SECONDS)
        assert not self._thread.is_alive(), "the call does not end"
        if self._error is not None:
            raise self._error
        return self._result
