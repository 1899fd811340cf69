"""The rows of a `ModelProjection`: loaded and locked in one query, stored in another."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any, Generic, TypeVar

import psycopg
from django.db import connections, models
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models.expressions import DatabaseDefault
from django.db.models.sql import InsertQuery, Query
from django.db.transaction import TransactionManagementError

from enode_django.databases import healthy_connection, in_transaction
from enode_django.eventing.row_columns import Column, columns_of

Row = TypeVar("Row", bound=models.Model)

_by_id = attrgetter("aggregate_root_id")


class RowTable(Generic[Row]):
    """The table of ``model`` (derived from `enode_django.models.ReadModel`) in the database ``alias``.

    Methods work in the calling thread's connection and block. They raise Django's database errors, and leave nothing
    behind in the session. All but `versions` are to be called inside ``transaction.atomic(using=alias)``, else they
    raise ``TransactionManagementError``. Managers, ``save()``, ``delete()`` and their signals are not called.
    """

    def __init__(self, model: type[Row], alias: str) -> None:
        self._model = model
        self._alias = alias
        connection = connections[alias]
        self._columns = columns_of(model, connection)
        self._fits_arrays = all(column.array for column in self._columns)
        self._created_only = any(column.created_only for column in self._columns)
        self._defaults = [column.attname for column in self._columns if column.has_db_default]
        self._loading = _Loading(model, alias)
        quote = connection.ops.quote_name
        self._id = quote(model._meta.get_field("aggregate_root_id").column)
        self._version = quote(model._meta.get_field("version").column)
        self._name = quote(model._meta.db_table)
        self._versions = f"SELECT {self._id}, {self._version} FROM {self._name} WHERE {self._id} = ANY(%s)"
        self._delete = (
            f"DELETE FROM {self._name} AS known USING unnest(%s::text[], %s::bigint[]) AS gone (id, version) "
            f"WHERE known.{self._id} = gone.id AND known.{self._version} < gone.version"
        )
        self._update = {adding: self._on_conflict(adding) for adding in (True, False)}

    def load_locked(self, ids: Sequence[str]) -> dict[str, Row]:
        """The rows that exist, locked in the order of their ids until the transaction ends."""
        connection = self._connection()
        with connection.wrap_database_errors, psycopg.Cursor[Any](connection.connection) as cursor:
            found = cursor.execute(self._loading.statement, (list(ids),), prepare=False).fetchall()
        return {_by_id(row): row for row in self._loading.rows(found, connection)}

    def versions(self, ids: Sequence[str]) -> dict[str, int]:
        """Of the rows that exist, without loading or locking them."""
        connection = healthy_connection(self._alias)
        connection.validate_no_broken_transaction()
        with connection.wrap_database_errors, psycopg.Cursor[Any](connection.connection) as cursor:
            return dict(cursor.execute(self._versions, (list(ids),), prepare=False).fetchall())

    def store(self, rows: Iterable[Row]) -> int:
        """Insert or update these rows, of which no two have the same id; returns how many were written.

        A stored row of the same or a higher version stays as it is. Fields that are set when a row is made keep their
        stored values when a new row meets a stored one.
        """
        connection = self._connection()
        return sum(
            self._store_in_arrays(connection, group, adding)
            if in_arrays
            else self._store_in_values(connection, group, adding)
            for (adding, in_arrays), group in self._groups(sorted(rows, key=_by_id)).items()
        )

    def delete(self, versions: Mapping[str, int]) -> None:
        """Delete the rows whose version is below the one given for their id."""
        if versions:
            connection = self._connection()
            with connection.wrap_database_errors, psycopg.Cursor[Any](connection.connection) as cursor:
                cursor.execute(self._delete, (list(versions), list(versions.values())), prepare=False)

    def _connection(self) -> BaseDatabaseWrapper:
        connection = healthy_connection(self._alias)
        if not in_transaction(connection):
            raise TransactionManagementError(
                f"the rows of {self._model.__qualname__} are used outside of a transaction; "
                f"open one with transaction.atomic(using={self._alias!r})"
            )
        connection.validate_no_broken_transaction()
        return connection

    def _groups(self, rows: Sequence[Row]) -> Mapping[tuple[bool, bool], Sequence[Row]]:
        """By whether the rows are new, if that makes a difference, and whether their values go into arrays. A default
        of the database does not."""
        if not self._created_only and not (self._defaults and self._fits_arrays):
            return {(False, self._fits_arrays): rows} if rows else {}
        groups: dict[tuple[bool, bool], list[Row]] = {}
        for row in rows:
            in_arrays = self._fits_arrays and not any(
                isinstance(row.__dict__.get(attname), DatabaseDefault) for attname in self._defaults
            )
            groups.setdefault((self._created_only and row._state.adding, in_arrays), []).append(row)
        return groups

    def _store_in_arrays(self, connection: BaseDatabaseWrapper, rows: Sequence[Row], adding: bool) -> int:
        arrays = ", ".join(f"%s::{column.array}[]" for column in self._columns)
        statement = f"{self._insert} SELECT * FROM unnest({arrays}) {self._update[adding]}"
        values = [column.values(rows, connection) for column in self._columns]
        with connection.wrap_database_errors, psycopg.Cursor[Any](connection.connection) as cursor:
            return cursor.execute(statement, values, prepare=False).rowcount

    def _store_in_values(self, connection: BaseDatabaseWrapper, rows: Sequence[Row], adding: bool) -> int:
        """As Django itself does it, whatever fields there are; the client puts the values into the statement."""
        query = InsertQuery(self._model)
        query.insert_values([column.field for column in self._columns], rows)
        compiler: Any = query.get_compiler(self._alias)
        prepared = [
            [compiler.prepare_value(column.field, value) for value in column.raw(rows)] for column in self._columns
        ]
        values, parameters = [], []
        for row in zip(*prepared, strict=True):
            pairs = [self._as_sql(compiler, column, value) for column, value in zip(self._columns, row, strict=True)]
            values.append(f"({', '.join(sql for sql, _ in pairs)})")
            parameters += [parameter for _, given in pairs for parameter in given]
        statement = f"{self._insert} VALUES {', '.join(values)} {self._update[adding]}"
        with connection.wrap_database_errors, psycopg.ClientCursor[Any](connection.connection) as cursor:
            return cursor.execute(statement, parameters).rowcount

    @staticmethod
    def _as_sql(compiler: Any, column: Column, value: Any) -> tuple[str, Sequence[Any]]:
        result: tuple[str, Sequence[Any]] = compiler.field_as_sql(
            column.field, getattr(column.field, "get_placeholder", None), value
        )
        return result

    @property
    def _insert(self) -> str:
        return f"INSERT INTO {self._name} AS known ({', '.join(column.name for column in self._columns)})"

    def _on_conflict(self, adding: bool) -> str:
        changed = [
            f"{column.name} = EXCLUDED.{column.name}"
            for column in self._columns
            if column.name != self._id and not (adding and column.created_only)
        ]
        return (
            f"ON CONFLICT ({self._id}) DO UPDATE SET {', '.join(changed)} "
            f"WHERE known.{self._version} < EXCLUDED.{self._version}"
        )


class _Loading(Generic[Row]):
    """From the database to instances, as Django's own queries do it."""

    def __init__(self, model: type[Row], alias: str) -> None:
        fields = model._meta.concrete_fields
        query: Query = Query(model)
        compiler: Any = query.get_compiler(alias)
        connection = connections[alias]
        table = model._meta.db_table
        quote = connection.ops.quote_name
        columns = [field.get_col(table) for field in fields]
        selected = [column.select_format(compiler, *compiler.compile(column))[0] for column in columns]
        id = quote(model._meta.get_field("aggregate_root_id").column)
        self.statement = (
            f'SELECT {", ".join(selected)} FROM {quote(table)} WHERE {id} = ANY(%s) ORDER BY {id} COLLATE "C" FOR UPDATE'
        )
        self._model = model
        self._alias = alias
        self._names = [field.attname for field in fields]
        self._converters = [
            (index, converter, column)
            for index, column in enumerate(columns)
            for converter in [*connection.ops.get_db_converters(column), *column.get_db_converters(connection)]
        ]

    def rows(self, found: Iterable[Sequence[Any]], connection: BaseDatabaseWrapper) -> Iterable[Row]:
        from_db, alias, names = self._model.from_db, self._alias, self._names
        for values in found:
            if self._converters:
                converted = list(values)
                for index, converter, column in self._converters:
                    converted[index] = converter(converted[index], column, connection)
                values = converted
            yield from_db(alias, names, values)
