"""Rows of the table and the questions that both ways of appending ask."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC
from typing import Any

import psycopg
from django.db import connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from psycopg.abc import Loader

from enode_django.databases import discard_if_lost, healthy_connection
from enode_django.eventstore import sqlstates
from enode_django.eventstore.base import CommandKey, StreamRecord, make_record
from enode_django.eventstore.limits import holds
from enode_django.exceptions import ConfigurationError, StoreFailing, StoreUnavailable

_TAKEN_AT_ONCE = 100
_PLANNING = {"enable_seqscan": "off", "max_parallel_workers_per_gather": "0", "jit": "off"}
_IN_ORDER = {**_PLANNING, "enable_sort": "off", "enable_bitmapscan": "off"}


def check_vendor(alias: str) -> None:
    """Raises `ConfigurationError`. It does not connect."""
    if (vendor := connections[alias].vendor) != "postgresql":
        raise ConfigurationError(
            f"the event store is in the database {alias!r}, which is {vendor}; name a PostgreSQL database in "
            "DATABASES, or another alias in ENODE['EVENT_STORE']['DATABASES']"
        )


@contextlib.contextmanager
def connected(alias: str) -> Iterator[BaseDatabaseWrapper]:
    """The calling thread's connection. What it raises because the database is away becomes `StoreUnavailable`, or
    `StoreFailing` if it has to be mended, and a connection that is lost is closed, unless it is in somebody's atomic
    block."""
    try:
        yield healthy_connection(alias)
    except sqlstates.DATABASE_ERRORS as error:
        discard_if_lost(connections[alias])
        if sqlstates.needs_help(error):
            raise StoreFailing(
                f"the event store in database {alias!r} refuses what it is asked: {sqlstates.message(error)};"
                " look after its server: until then commands wait"
            ) from error
        if sqlstates.is_unavailable(error):
            raise StoreUnavailable(f"the event store in database {alias!r} is unavailable: {error}") from error
        raise


def execute(connection: BaseDatabaseWrapper, statement: str, parameters: Sequence[object]) -> list[tuple[Any, ...]]:
    """Never as a prepared statement, whatever ``OPTIONS`` say: behind a pooler the session is not ours."""
    with psycopg.Cursor[tuple[Any, ...]](connection.connection) as cursor:
        return cursor.execute(statement, parameters, prepare=False, binary=True).fetchall()


def execute_long(
    connection: BaseDatabaseWrapper,
    statement: str,
    parameters: Sequence[object],
    loaders: Mapping[str, type[Loader]] = {},
) -> list[tuple[Any, ...]]:
    """Execute as `execute` does, for many rows: they are fetched while the server still works on others, where libpq
    can (from 17).

    ``loaders`` decode types of the database in another way.
    """
    with psycopg.Cursor[tuple[Any, ...]](connection.connection) as cursor:
        for type_name, loader in loaders.items():
            cursor.adapters.register_loader(type_name, loader)
        if not psycopg.capabilities.has_stream_chunked():
            return cursor.execute(statement, parameters, prepare=False, binary=True).fetchall()
        return list(cursor.stream(statement, parameters, binary=True, size=_TAKEN_AT_ONCE))


def run(connection: BaseDatabaseWrapper, statement: str, parameters: Sequence[object] = ()) -> int:
    """The same for a statement that gives no rows; returns how many it changed."""
    with psycopg.Cursor[Any](connection.connection) as cursor:
        return cursor.execute(statement, parameters, prepare=False).rowcount


@contextlib.contextmanager
def by_index(connection: BaseDatabaseWrapper, *, in_order: bool = False) -> Iterator[None]:
    """A transaction that takes the index whatever the planner thinks of the table; on return all is as it was. With
    ``in_order`` it takes one that gives the rows in the order that is asked for.

    With a limit the planner would rather read the table from its beginning, believing that rows of any transaction
    lie everywhere in it; and what it takes for expensive it would compile and share out, at the price of a page.
    """
    planning = _IN_ORDER if in_order else _PLANNING
    get = "SELECT " + ", ".join(f"current_setting('{name}')" for name in planning)
    put = "SELECT " + ", ".join(f"set_config('{name}', %s, true)" for name in planning)
    with transaction.atomic(using=connection.alias):
        (before,) = execute(connection, get, ())
        execute(connection, put, tuple(planning.values()))
        yield
        execute(connection, put, before)


def record_of(row: Iterable[Any]) -> StreamRecord:
    """``row`` has the columns in the order of the record's fields."""
    record = make_record(row)
    if record.created_at.tzinfo is UTC:  # the session's time zone is, unless settings say otherwise
        return record
    return record._replace(created_at=record.created_at.astimezone(UTC))


def records_of(rows: Iterable[Iterable[Any]]) -> list[StreamRecord]:
    """Return the records of one query's rows, as `record_of` does: all have the time zone of its session."""
    records = list(map(make_record, rows))
    return records if records and records[0].created_at.tzinfo is UTC else list(map(record_of, records))


def find(connection: BaseDatabaseWrapper, keys: Iterable[CommandKey], statement: str) -> dict[CommandKey, StreamRecord]:
    """Return the rows of these commands by their keys. The statement is a form of `statements.FIND`."""
    wanted = [key for key in keys if holds(key[0]) and holds(key[1])]
    if not wanted:
        return {}
    rows = execute(connection, statement, tuple(map(list, zip(*wanted, strict=True))))
    return {record.command_key: record for record in records_of(rows)}
