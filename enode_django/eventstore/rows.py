"""Rows of the table and the questions that both ways of appending ask."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC
from typing import Any

import psycopg
from django.db import transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from enode_django.eventstore import statements
from enode_django.eventstore.base import CommandKey, StreamRecord
from enode_django.eventstore.limits import holds

_GET_SEQUENTIAL_SCANS = "SELECT current_setting('enable_seqscan')"
_SET_SEQUENTIAL_SCANS = "SELECT set_config('enable_seqscan', %s, true)"


def execute(connection: BaseDatabaseWrapper, statement: str, parameters: Sequence[object]) -> list[tuple[Any, ...]]:
    """Never as a prepared statement, whatever ``OPTIONS`` say: behind a pooler the session is not ours."""
    with psycopg.Cursor[tuple[Any, ...]](connection.connection) as cursor:
        return cursor.execute(statement, parameters, prepare=False, binary=True).fetchall()


@contextlib.contextmanager
def without_sequential_scans(connection: BaseDatabaseWrapper) -> Iterator[None]:
    """A transaction that takes the index whatever the planner thinks of the table; on return all is as it was.

    With a limit the planner would rather read the table from its beginning, believing that rows of any transaction
    lie everywhere in it.
    """
    with transaction.atomic(using=connection.alias):
        ((before,),) = execute(connection, _GET_SEQUENTIAL_SCANS, ())
        execute(connection, _SET_SEQUENTIAL_SCANS, ("off",))
        yield
        execute(connection, _SET_SEQUENTIAL_SCANS, (before,))


def record_of(row: tuple[Any, ...]) -> StreamRecord:
    root_id, version, command_id, root_type, command_type, created_at, events, metadata = row
    return StreamRecord(
        root_id, version, command_id, root_type, command_type, created_at.astimezone(UTC), events, metadata
    )


def find(connection: BaseDatabaseWrapper, keys: Iterable[CommandKey]) -> dict[CommandKey, StreamRecord]:
    wanted = [key for key in keys if holds(key[0]) and holds(key[1])]
    if not wanted:
        return {}
    rows = execute(connection, statements.FIND, tuple(map(list, zip(*wanted, strict=True))))
    return {record.command_key: record for record in map(record_of, rows)}
