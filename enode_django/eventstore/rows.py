"""Connections, statements and rows of the Postgres driver."""

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
    """Raise `ConfigurationError` if the database is not PostgreSQL. Does not connect."""
    if (vendor := connections[alias].vendor) != "postgresql":
        raise ConfigurationError(
            f"the event store is in the database {alias!r}, which is {vendor}; name a PostgreSQL database in "
            "DATABASES, or another alias in ENODE['EVENT_STORE']['DATABASES']"
        )


@contextlib.contextmanager
def connected(alias: str) -> Iterator[BaseDatabaseWrapper]:
    """Yield the calling thread's connection.

    Errors of an unavailable database become `StoreUnavailable`, or `StoreFailing` if it has to be mended or migrated. A
    lost connection is closed, unless it is in an atomic block.
    """
    try:
        yield healthy_connection(alias)
    except sqlstates.DATABASE_ERRORS as error:
        discard_if_lost(connections[alias])
        if sqlstates.needs_help(error):
            raise StoreFailing(
                f"the event store in database {alias!r} refuses what it is asked: {sqlstates.message(error)};"
                f" {sqlstates.help_for(error, alias)}: until then commands wait"
            ) from error
        if sqlstates.is_unavailable(error):
            raise StoreUnavailable(f"the event store in database {alias!r} is unavailable: {error}") from error
        raise


def execute(connection: BaseDatabaseWrapper, statement: str, parameters: Sequence[object]) -> list[tuple[Any, ...]]:
    """Execute a statement and return its rows. It is never prepared, even if ``OPTIONS`` say so: a pooler may share the
    session."""
    with psycopg.Cursor[tuple[Any, ...]](connection.connection) as cursor:
        return cursor.execute(statement, parameters, prepare=False, binary=True).fetchall()


def execute_long(
    connection: BaseDatabaseWrapper,
    statement: str,
    parameters: Sequence[object],
    loaders: Mapping[str, type[Loader]] = {},
) -> list[tuple[Any, ...]]:
    """Execute as `execute` does, but fetch rows while the server still produces others, if libpq is 17 or newer.

    ``loaders`` replace psycopg's loaders, by the name of the database type.
    """
    with psycopg.Cursor[tuple[Any, ...]](connection.connection) as cursor:
        for type_name, loader in loaders.items():
            cursor.adapters.register_loader(type_name, loader)
        if not psycopg.capabilities.has_stream_chunked():
            return cursor.execute(statement, parameters, prepare=False, binary=True).fetchall()
        return list(cursor.stream(statement, parameters, binary=True, size=_TAKEN_AT_ONCE))


def run(connection: BaseDatabaseWrapper, statement: str, parameters: Sequence[object] = ()) -> int:
    """Execute a statement that returns no rows. Return the number of rows it changed."""
    with psycopg.Cursor[Any](connection.connection) as cursor:
        return cursor.execute(statement, parameters, prepare=False).rowcount


@contextlib.contextmanager
def by_index(connection: BaseDatabaseWrapper, *, in_order: bool = False) -> Iterator[None]:
    """Run a transaction whose statements use an index, regardless of the planner's estimates. Restore the settings at
    its end. With ``in_order`` they use an index that returns the rows in the requested order.

    For a query with a limit the planner prefers to read the table from its beginning, since it assumes that the rows of
    a transaction are spread over all of it. For plans it deems expensive it uses JIT and parallel workers, which cost
    as much as a page.
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
    """Return the record of a row with the columns in the order of its fields."""
    record = make_record(row)
    if record.created_at.tzinfo is UTC:  # the session's time zone, unless the settings name another
        return record
    return record._replace(created_at=record.created_at.astimezone(UTC))


def records_of(rows: Iterable[Iterable[Any]]) -> list[StreamRecord]:
    """Return the records of one query's rows, which all have the time zone of its session."""
    records = list(map(make_record, rows))
    return records if records and records[0].created_at.tzinfo is UTC else list(map(record_of, records))


def find(connection: BaseDatabaseWrapper, keys: Iterable[CommandKey], statement: str) -> dict[CommandKey, StreamRecord]:
    """Return the rows of commands by key. ``statement`` is a form of `statements.FIND`."""
    wanted = [key for key in keys if holds(key[0]) and holds(key[1])]
    if not wanted:
        return {}
    rows = execute(connection, statement, tuple(map(list, zip(*wanted, strict=True))))
    return {record.command_key: record for record in records_of(rows)}
