"""Django's connections in threads that live long: no request ends, so nobody else looks whether they still work."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any

import psycopg
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from psycopg.pq import TransactionStatus

_END_SESSIONS = """
    SELECT count(pg_terminate_backend(pid, %s)) FROM pg_stat_activity
    WHERE application_name = %s AND usename = current_user AND datname = current_database()
      AND backend_type = 'client backend' AND pid <> pg_backend_pid()
"""
_END_SESSION_WAIT_MS = 5_000
_APPLICATION_NAME_BYTES = 63


_numbers = count()


class StatementsWait(ABC):
    """Holds statements back until the next one in a connection: to be put into its ``execute_wrappers``."""

    @abstractmethod
    def send(self) -> None:
        """Execute them, in any way but by Django's cursors."""

    def __call__(self, execute: Callable[..., Any], sql: str, params: Any, many: bool, context: Any) -> Any:
        self.send()
        return execute(sql, params, many, context)


def healthy_connection(alias: str = "default") -> BaseDatabaseWrapper:
    """The calling thread's connection, open; one that is known to be lost is replaced first.

    Asks the socket, not the server, so it costs no round trip, and a server that vanished without a word goes
    unnoticed: the next statement fails, and the call after that gets a new connection. Inside an atomic block the
    connection is returned as it is, after `StatementsWait` has sent what waits in it: the driver's cursors go past
    Django's. Raises what Django raises when no connection can be made, and what sending raises. Blocks.
    """
    connection = connections[alias]
    discard_if_lost(connection)
    connection.ensure_connection()
    for wrapper in connection.execute_wrappers:
        if isinstance(wrapper, StatementsWait):
            wrapper.send()
    return connection


def discard_if_lost(connection: BaseDatabaseWrapper) -> None:
    """Close what is lost or stuck in a half-done exchange, unless somebody's atomic block rests on it."""
    if connection.connection is not None and not in_transaction(connection) and _is_lost(connection.connection):
        connection.close()


def in_transaction(connection: BaseDatabaseWrapper) -> bool:
    """Return True if the caller does not commit: an atomic block is open, or Django was told not to commit at all."""
    return connection.in_atomic_block or not connection.autocommit


def _is_lost(raw: psycopg.Connection[object]) -> bool:
    if raw.closed:
        return True
    try:
        # Twice, since the first may only bring in the server's last words, and the second sees the end of the stream.
        raw.pgconn.consume_input()
        raw.pgconn.consume_input()
    except psycopg.Error:
        return True
    return raw.info.transaction_status != TransactionStatus.IDLE


def heal_connections() -> None:
    """Let go of the calling thread's broken connections, to all databases: what application code opened, too."""
    for connection in connections.all(initialized_only=True):
        if connection.vendor == "postgresql":
            discard_if_lost(connection)
        else:
            connection.close_if_unusable_or_obsolete()


@contextmanager
def separate_connection(alias: str) -> Iterator[str]:
    """Another connection to the same database, for this thread, under the alias that is given: what is asked in it is
    not part of a transaction that is open in the first. Closed at the end of the block."""
    name = f"{alias} beside {next(_numbers)}"
    connections[name] = connections[alias].copy(name)
    try:
        yield name
    finally:
        connections[name].close()
        del connections[name]


def let_hooks_fail_alone(alias: str, around: Callable[[Callable[[], Any]], Callable[[], Any]]) -> None:
    """To be called before the end of an atomic block: if it is the outermost one, what ``transaction.on_commit`` has
    registered in it will run, each whatever the others raise, and Django logs what they raise. ``around`` returns what
    is called in the place of a hook."""
    connection: Any = connections[alias]  # hooks that are robust are not in the stubs
    if not connection.savepoint_ids:
        connection.run_on_commit = [(sids, around(hook), True) for sids, hook, _ in connection.run_on_commit]


def execute(alias: str, statement: str, parameters: Sequence[Any] | None) -> psycopg.Cursor[Any]:
    """Execute a statement in the calling thread's connection, never as a prepared statement: behind a pooler the
    session is not ours. With None as parameters the statement is taken literally, per cent signs too.

    Raises the driver's errors, and `TransactionManagementError` in a transaction that will be rolled back anyway.
    """
    connection = healthy_connection(alias)
    connection.validate_no_broken_transaction()
    return psycopg.Cursor[Any](connection.connection).execute(statement, parameters, prepare=False)


def end_sessions(alias: str, owner: str) -> int:
    """End this user's sessions in the database whose ``application_name`` is ``owner``, except the calling thread's.

    Returns how many there were. Blocks up to 5 seconds for each to end. Raises the driver's error when the database
    cannot be asked; nothing is then known, and the same call may be made again.
    """
    name = owner.encode()[:_APPLICATION_NAME_BYTES].decode(errors="ignore")
    row = execute(alias, _END_SESSIONS, (_END_SESSION_WAIT_MS, name)).fetchone()
    return row[0] if row else 0
