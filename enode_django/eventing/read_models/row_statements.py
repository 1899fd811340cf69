"""Statements that load and insert many rows."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import psycopg
from django.db import connections, models
from django.db.models.sql import InsertQuery
from django.db.models.sql.compiler import SQLInsertCompiler
from psycopg.abc import Buffer
from psycopg.adapt import AdaptersMap
from psycopg.types.datetime import TimestamptzLoader

from enode_django.databases import execute, healthy_connection
from enode_django.eventing.read_models.row_columns import Column

_VALUES_MAX = 200
"""The most rows of a statement that spells out its values: in a longer one each row costs more."""


class UtcLoader(TimestamptzLoader):
    """Loads the times of a session in UTC as Django's loader does, in a tenth of the time."""

    def load(self, data: Buffer) -> datetime:
        try:
            return datetime.fromisoformat(str(data, "ascii"))
        except ValueError:  # another style of dates, or no time that Python has, which the driver explains
            return super().load(data).replace(tzinfo=UTC)


def execute_for_rows(
    alias: str, statement: str, parameters: Sequence[Any], *, may_prepare: bool = False
) -> psycopg.Cursor[Any]:
    """Execute a statement like `enode_django.databases.execute`. Raises Django's errors of databases."""
    connection = connections[alias]
    with connection.wrap_database_errors:
        adapt = _load_in_utc if connection.timezone is UTC else None
        return execute(alias, statement, parameters, adapt, may_prepare=may_prepare)


def _load_in_utc(adapters: AdaptersMap) -> None:
    adapters.register_loader("timestamptz", UtcLoader)


def insert_in_values(
    alias: str, insert: str, columns: Sequence[Column], rows: Sequence[models.Model], end: str = ""
) -> int:
    """Insert rows with any fields: Django's compiler prepares the values, and the client puts them into the text of the
    statements, which begin with ``insert`` and have the given ``end``. Return how many rows were written."""
    parts = (rows[start : start + _VALUES_MAX] for start in range(0, len(rows), _VALUES_MAX))
    return sum(_insert_part(alias, insert, columns, part, end) for part in parts)


def _insert_part(alias: str, insert: str, columns: Sequence[Column], rows: Sequence[models.Model], end: str) -> int:
    connection = healthy_connection(alias)
    connection.validate_no_broken_transaction()  # the driver's cursor does not go through Django's
    fields = [column.field for column in columns]
    query = InsertQuery(type(rows[0]))
    query.insert_values(fields, list(rows))
    compiler: Any = query.get_compiler(alias)
    prepared = [[compiler.prepare_value(column.field, value) for value in column.raw(rows)] for column in columns]
    # The generic compiler: PostgreSQL's own one would make arrays again.
    placeholders, parameters = SQLInsertCompiler.assemble_as_sql(compiler, fields, list(zip(*prepared, strict=True)))
    values = ", ".join(f"({', '.join(row)})" for row in placeholders)
    with connection.wrap_database_errors, psycopg.ClientCursor[Any](connection.connection) as cursor:
        statement = f"{insert} VALUES {values} {end}"
        return cursor.execute(statement, [one for row in parameters for one in row]).rowcount
