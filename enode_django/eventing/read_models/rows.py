"""The rows of a `ModelProjection`: loaded and locked in one query, stored in another."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any, Generic

import psycopg
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.transaction import TransactionManagementError, atomic, set_rollback

from enode_django.databases import healthy_connection, in_transaction
from enode_django.eventing.read_models.row_columns import arrays, columns_of, divided, has_expressions, names_of, quoted
from enode_django.eventing.read_models.row_loading import Row, RowLoading
from enode_django.eventing.read_models.row_normalising import RowNormaliser
from enode_django.eventing.read_models.row_statements import execute_for_rows, insert_in_values

_by_id = attrgetter("aggregate_root_id")


class RowTable(Generic[Row]):
    """The table of ``model`` (derived from `enode_django.models.ReadModel`) in the database ``alias``.

    Methods work in the calling thread's connection and block. They raise Django's database errors, and leave nothing
    behind in the session. All but `versions`, `claims` and `normalise_in_memory` raise ``TransactionManagementError``
    if they access the database outside ``transaction.atomic(using=alias)``. Managers, ``save()``, ``delete()`` and
    their signals are not called.
    """

    def __init__(self, model: type[Row], alias: str) -> None:
        self._model = model
        self._alias = alias
        connection = connections[alias]
        self._normaliser = RowNormaliser(model, connection)
        self.normalise_in_memory = self._normaliser.normalise_in_memory
        """Normalise a row without a database. Raises `OnlyDatabaseKnows`."""
        self._columns = columns_of(model, connection)
        self._fits_arrays = all(column.array for column in self._columns)
        self._created_only = any(column.created_only for column in self._columns)
        options: Any = model._meta
        self._table = connection.ops.quote_name(options.db_table)
        self._id = quoted(options.pk, connection)
        # One order of locks for all workers, also for a model with another collation.
        self._loading = RowLoading(model, alias, f"{self._id} = ANY(%b::text[])", f'{self._id} COLLATE "C"')
        self._version = quoted(options.get_field("version"), connection)
        self._write_statements()

    def _write_statements(self) -> None:
        table, id, version = self._table, self._id, self._version
        self._versions = f"SELECT {id}, {version} FROM {table} WHERE {id} = ANY(%b::text[])"
        self._claims = f"SELECT {id}, {version} FROM {table} WHERE {id} > %s ORDER BY {id} LIMIT %s"
        self._delete = (
            f"DELETE FROM {table} AS known USING unnest(%b::text[], %b::bigint[]) AS gone (id, version) "
            f"WHERE known.{id} = gone.id AND known.{version} < gone.version"
        )
        self._insert = f"INSERT INTO {table} AS known ({names_of(self._columns)})"
        self._new = f"SELECT * FROM unnest({arrays(self._columns)})"
        self._replace = self._update_statement(adding=False)
        behind = f"WHERE known.{version} < EXCLUDED.{version}"
        self._update = {adding: f"{self._update_statement(adding)} {behind}" for adding in (True, False)}

    def _update_statement(self, adding: bool) -> str:
        changed = [
            f"{column.name} = EXCLUDED.{column.name}"
            for column in self._columns
            if column.name != self._id and not (adding and column.created_only)
        ]
        return f"ON CONFLICT ({self._id}) DO UPDATE SET {', '.join(changed)}"

    def load_locked(self, ids: Sequence[str]) -> dict[str, Row]:
        """Return the rows that exist, locked in the order of their ids until the transaction ends."""
        with self._connection().wrap_database_errors:
            return self.rows_in(self.lock_cursor(ids).fetchall())

    def lock_cursor(self, ids: Sequence[str]) -> psycopg.Cursor[Any]:
        """Return a cursor for `rows_in`, of what `load_locked` returns."""
        self._connection()
        return self._execute(self._loading.statement, (list(ids),))

    def rows_in(self, found: Iterable[Sequence[Any]]) -> dict[str, Row]:
        return {_by_id(row): row for row in self._loading.rows(found)}

    def versions(self, ids: Sequence[str]) -> dict[str, int]:
        """Return the versions of the rows that exist, without loading or locking them."""
        return dict(self._execute(self._versions, (list(ids),)).fetchall())

    def normalise(self, row: Row) -> None:
        """Give the row, which handlers have changed, the values that it would have if it were stored and loaded. If
        only the database knows them, store and load the row, and roll that back. Raises as `store` does."""
        if self._normaliser.normalise(row):
            return
        with atomic(using=self._alias):
            self._write([row], self._replace)
            (loaded,) = self.load_locked([_by_id(row)]).values()
            set_rollback(True, using=self._alias)
        self._normaliser.take_over(row, loaded)

    def claims(self, after: str, limit: int) -> list[tuple[str, int]]:
        """Return the ids and versions of the next ``limit`` rows with ids above ``after``."""
        return self._execute(self._claims, (after, limit)).fetchall()

    def store(self, rows: Iterable[Row], made: Collection[str] = ()) -> int:
        """Insert or update these rows, which all have different ids. Return how many were written.

        A stored row of the same or a higher version stays as it is. When a new row meets a stored one, fields that are
        set when a row is made (``auto_now_add``) keep the stored value. ``made`` are ids of new rows that handlers see
        as stored ones.
        """
        ordered = sorted(rows, key=_by_id)
        if not self._created_only:
            return self._write(ordered, self._update[False])
        made = {*made, *(_by_id(row) for row in ordered if row._state.adding)}
        new = [row for row in ordered if _by_id(row) in made]
        known = [row for row in ordered if _by_id(row) not in made]
        return self._write(new, self._update[True]) + self._write(known, self._update[False])

    def copy(self, rows: Sequence[Row]) -> None:
        """Store new rows as `store` does, but raise if a row exists or the database refuses a value."""
        if not self._fits_arrays or has_expressions(rows):
            self.store(rows)
            return
        connection = self._connection()
        values = [column.values(rows, connection) for column in self._columns]
        statement = f"COPY {self._table} ({names_of(self._columns)}) FROM STDIN (FORMAT BINARY)"
        cursor = psycopg.Cursor[Any](connection.connection)
        with connection.wrap_database_errors, cursor, cursor.copy(statement) as copy:
            copy.set_types([column.array or "" for column in self._columns])
            for row in zip(*values, strict=True):
                copy.write_row(row)

    def delete(self, versions: Mapping[str, int]) -> None:
        """Delete the rows whose version is below the one given for their id."""
        if versions:
            self._connection()
            self._execute(self._delete, (list(versions), list(versions.values())))

    def _connection(self) -> BaseDatabaseWrapper:
        connection = healthy_connection(self._alias)
        if not in_transaction(connection):
            raise TransactionManagementError(
                f"rows of {self._model.__qualname__} cannot be locked or written outside of a transaction; "
                f"open one with transaction.atomic(using={self._alias!r})"
            )
        connection.validate_no_broken_transaction()  # also for what does not go through `execute`
        return connection

    def _execute(self, statement: str, parameters: Sequence[Any]) -> psycopg.Cursor[Any]:
        return execute_for_rows(self._alias, statement, parameters)

    def _write(self, rows: Sequence[Row], update: str) -> int:
        """Insert the rows, or ``update`` stored ones. Return how many were written."""
        connection = self._connection()
        written = 0
        in_arrays, others = divided(rows, self._fits_arrays)
        if in_arrays:
            values = [column.values(in_arrays, connection) for column in self._columns]
            statement = f"{self._insert} {self._new} {update}"
            written += execute_for_rows(self._alias, statement, values, may_prepare=True).rowcount
        return written + insert_in_values(self._alias, self._insert, self._columns, others, update)
