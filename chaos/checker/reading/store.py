"""Reader of the databases: stored rows, read models, checkpoints. It uses server-side cursors, for millions of rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from sys import intern
from typing import Any, NamedTuple

import psycopg
from psycopg import sql

from chaos.checker.decoding import Undecodable, microseconds, read_contents
from chaos.checker.facts import CommandKey, Parked, StoredRow, TableRow, digest_of
from chaos.checker.reading.problems import Problems
from chaos.checker.replay.read_models import COLUMNS

ROWS_AT_ONCE = 5_000
_STREAMS = """
    SELECT aggregate_root_type, aggregate_root_id, version, command_id, command_type, created_at, events, metadata
    FROM enode_django_eventstream
"""
_DEAD = "SELECT command_id, aggregate_root_id FROM enode_django_deadletter WHERE command_id <> ''"
# A rebuilt projection has checkpoints of another generation.
_CHECKPOINTS = """
    SELECT subscriber, aggregate_root_id, version FROM enode_django_checkpoint AS one WHERE generation = coalesce(
        (SELECT generation FROM enode_django_projectiongeneration AS used WHERE used.subscriber = one.subscriber), 0)
"""
_PARKED = "SELECT subscriber, aggregate_root_id, version, error_type FROM enode_django_parkedevent"


class _Streamed(NamedTuple):
    aggregate_root_type: str
    aggregate_root_id: str
    version: int | None
    command_id: str
    command_type: str
    created_at: datetime
    events: bytes
    metadata: bytes


@dataclass
class ReadSide:
    tables: dict[str, Sequence[TableRow]] = field(default_factory=dict)
    checkpoints: dict[tuple[str, str], int] = field(default_factory=dict)
    parked: list[Parked] = field(default_factory=list)


def read_shards(databases: Sequence[str], problems: Problems) -> list[StoredRow]:
    """Return the decodable rows of all shards."""
    rows: list[StoredRow] = []
    for shard, database in enumerate(databases):
        try:
            rows.extend(_shard(shard, database, problems))
        except psycopg.Error as error:
            problems.add(f"shard {shard}", error)
    return rows


def read_dead_letters(databases: Sequence[str], problems: Problems) -> frozenset[CommandKey]:
    """Return the commands among the dead letters of all shards."""
    dead: set[CommandKey] = set()
    for shard, database in enumerate(databases):
        try:
            dead.update((intern(id), intern(root)) for id, root in _select(database, sql.SQL(_DEAD)))
        except psycopg.Error as error:
            problems.add(f"dead letters of shard {shard}", error)
    return frozenset(dead)


def _shard(shard: int, database: str, problems: Problems) -> Iterator[StoredRow]:
    for values in _select(database, sql.SQL(_STREAMS)):
        row = _Streamed(*values)
        try:
            read_contents(row.events)
        except Undecodable as error:
            problems.add(f"shard {shard}, command {row.command_id} of {row.aggregate_root_id}", error)
        else:
            yield _row(shard, row)


def _row(shard: int, row: _Streamed) -> StoredRow:
    kind, id, command_id = intern(row.aggregate_root_type), intern(row.aggregate_root_id), intern(row.command_id)
    command_type, at = intern(row.command_type), microseconds(row.created_at)
    digest = digest_of(kind, id, row.version, command_id, command_type, at, row.events, row.metadata)
    return StoredRow(shard, kind, id, row.version, command_id, command_type, at, row.events, digest)


def read_read_side(database: str, problems: Problems) -> ReadSide:
    found = ReadSide()
    try:
        for table, columns in COLUMNS.items():
            names = sql.SQL(", ").join(map(sql.Identifier, columns))
            query = sql.SQL("SELECT {} FROM {}").format(names, sql.Identifier(table))
            found.tables[table] = [tuple(map(_plain, row)) for row in _select(database, query)]
        for subscriber, id, version in _select(database, sql.SQL(_CHECKPOINTS)):
            found.checkpoints[intern(subscriber), intern(id)] = version
        found.parked = [Parked(*row) for row in _select(database, sql.SQL(_PARKED))]
    except psycopg.Error as error:
        problems.add("the read side's database", error)
    return found


def _select(database: str, query: sql.SQL | sql.Composed) -> Iterator[tuple[Any, ...]]:
    with psycopg.connect(database) as connection, connection.cursor("checker", binary=True) as cursor:
        cursor.itersize = ROWS_AT_ONCE
        cursor.execute(query)
        yield from cursor


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return microseconds(value)
    return intern(value) if type(value) is str else value
