"""Rows of the table and the questions that both ways of appending ask."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC
from typing import Any

import psycopg
from django.db.backends.base.base import BaseDatabaseWrapper

from enode_django.eventstore import statements
from enode_django.eventstore.base import CommandKey, StreamRecord
from enode_django.eventstore.limits import holds


def execute(connection: BaseDatabaseWrapper, statement: str, parameters: Sequence[object]) -> list[tuple[Any, ...]]:
    """Never as a prepared statement, whatever ``OPTIONS`` say: behind a pooler the session is not ours."""
    with psycopg.Cursor[tuple[Any, ...]](connection.connection) as cursor:
        return cursor.execute(statement, parameters, prepare=False, binary=True).fetchall()


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
