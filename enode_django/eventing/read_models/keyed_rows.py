"""The rows of a `MultiProjection`: loaded and locked by their keys in one query, stored in others."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Any

import psycopg
from django.db import connections, models
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models.sql import Query
from django.db.models.sql.where import WhereNode
from django.db.transaction import atomic, set_rollback

from enode_django.eventing import checkpoints
from enode_django.eventing.read_models.row_columns import Column, arrays, columns_of, divided, names_of
from enode_django.eventing.read_models.row_keys import Field, Key, Row, RowKeys
from enode_django.eventing.read_models.row_loading import RowLoading
from enode_django.eventing.read_models.row_normalising import RowNormaliser
from enode_django.eventing.read_models.row_statements import execute_for_rows, insert_in_values
from enode_django.exceptions import DefinitionError, shown


class KeyedRowTable(RowKeys[Row]):
    """The table of ``model`` in the database ``alias``, whose rows are identified by ``fields``.

    Methods work in the calling thread's connection and block; they are called inside a transaction, and raise Django's
    database errors. Managers, ``save()``, ``delete()`` and their signals are not called.
    """

    def __init__(self, model: type[Row], alias: str, fields: Sequence[Field], subscriber: str) -> None:
        connection = connections[alias]
        super().__init__(model, fields, connection)
        self._alias = alias
        self._subscriber = subscriber
        for field in fields:
            if Column(field, connection).array is None:
                raise DefinitionError(
                    f"{field} cannot identify the rows of {subscriber}; take a field with texts, numbers, dates, UUIDs "
                    "or values of another plain type"
                )
        counted = [field.name for field in model._meta.concrete_fields if isinstance(field, models.AutoField)]
        self._columns = [column for column in columns_of(model, connection) if column.field.name not in counted]
        self._keys = [column for name in fields for column in self._columns if column.field is name]
        self._changed = [one for one in self._columns if one not in self._keys]
        self._fits_arrays = all(column.array for column in self._columns)
        self._normaliser = RowNormaliser(model, connection, counted)
        self._write_statements(connection)

    def _write_statements(self, connection: BaseDatabaseWrapper) -> None:
        table = connection.ops.quote_name(self._model._meta.db_table)
        keys = names_of(self._keys)
        wanted = f"({keys}) IN (SELECT * FROM unnest({arrays(self._keys)}))"
        self._loading = RowLoading(self._model, self._alias, wanted, keys)
        self._known = f"SELECT {keys} FROM {table} WHERE {wanted}"
        self._delete = f"DELETE FROM {table} WHERE {wanted}"
        self._insert = f"INSERT INTO {table} ({names_of(self._columns)})"
        self._new = f"SELECT * FROM unnest({arrays(self._columns)})"
        written = [*self._keys, *self._changed]
        self._update = (
            f"UPDATE {table} AS known SET {', '.join(f'{one.name} = given.{one.name}' for one in self._changed)} "
            f"FROM unnest({arrays(written)}) AS given ({names_of(written)}) "
            f"WHERE {' AND '.join(f'known.{one.name} = given.{one.name}' for one in self._keys)}"
        )

    def lock(self, keys: Collection[Key]) -> dict[Key, Row]:
        """Lock these keys until the transaction ends, whether they have rows or not, and return the rows that exist.

        Keys without a row are claimed first, in one order, and then rows are locked, in one order. So transactions wait
        for each other, but never in a circle; unless rows are deleted at this very moment.
        """
        claimed: set[Key] = set()
        missing = set(keys) - self._known_among(keys)
        while True:
            checkpoints.claim(self._alias, self._subscriber, list(map(_digest, missing)))
            claimed |= missing
            rows = self._load(keys)
            missing = set(keys) - rows.keys() - claimed
            if not missing:
                return rows

    def normalise(self, row: Row) -> None:
        """Give the row, which handlers have changed, the values that it would have if it were stored and loaded. If
        only the database knows them, store and load a copy of the row, and roll that back. The row must be locked."""
        adding = row._state.adding
        if self._normaliser.normalise(row):
            return
        twin = copied(row)
        twin._state.adding = adding
        with atomic(using=self._alias):
            loaded = self._stored(twin)
            set_rollback(True, using=self._alias)
        self._normaliser.take_over(row, loaded)

    def _stored(self, row: Row) -> Row:
        """Store the row and load it. One that an earlier event of the batch has made is not stored yet."""
        keys = [self.key_of(row)]
        if row._state.adding:
            self.delete(keys)
        else:
            self.update([row])
            if found := self._load(keys):
                return found[keys[0]]
        self.insert([row])
        return self._load(keys)[keys[0]]

    def insert(self, rows: Sequence[Row]) -> None:
        """Insert new rows, which have different keys."""
        in_arrays, others = divided(rows, self._fits_arrays)
        if in_arrays:
            values = self._values(self._columns, in_arrays)
            execute_for_rows(self._alias, f"{self._insert} {self._new}", values, may_prepare=True)
        insert_in_values(self._alias, self._insert, self._columns, others)

    def update(self, rows: Sequence[Row]) -> None:
        """Update stored, locked rows with different keys. Raises `ValueError` for an expression that names a column."""
        if not self._changed:
            return
        in_arrays, others = divided(rows, self._fits_arrays)
        if in_arrays:
            self._execute(self._update, self._values([*self._keys, *self._changed], in_arrays))
        for row in others:
            known = {column.attname: getattr(row, column.attname) for column in self._keys}
            changed = {column.field.name: next(iter(column.raw([row]))) for column in self._changed}
            _refuse_columns(changed)
            self._model._base_manager.using(self._alias).filter(**known).update(**changed)

    def delete(self, keys: Sequence[Key]) -> None:
        if keys:
            self._execute(self._delete, self._wanted(keys))

    def _known_among(self, keys: Collection[Key]) -> set[Key]:
        found = self._execute(self._known, self._wanted(keys)).fetchall()
        return {values[0] for values in found} if len(self._fields) == 1 else set(found)

    def _load(self, keys: Collection[Key]) -> dict[Key, Row]:
        found = self._execute(self._loading.statement, self._wanted(keys)).fetchall()
        return {self.key_of(row): row for row in self._loading.rows(found)}

    def _wanted(self, keys: Collection[Key]) -> list[list[Any]]:
        """Return the keys as one array for each key field."""
        connection = connections[self._alias]
        columns: Iterable[Iterable[Any]] = [keys] if len(self._fields) == 1 else zip(*keys, strict=True)
        return [
            [column.value(value, connection) for value in values]
            for column, values in zip(self._keys, columns, strict=True)
        ]

    def _values(self, columns: Sequence[Column], rows: Sequence[Row]) -> list[list[Any]]:
        connection = connections[self._alias]
        return [column.values(rows, connection) for column in columns]

    def _execute(self, statement: str, parameters: Sequence[Any]) -> psycopg.Cursor[Any]:
        return execute_for_rows(self._alias, statement, parameters)


def _refuse_columns(values: Mapping[str, Any]) -> None:
    """Raise `ValueError` for an expression of a stored row's columns, which may be older than the row in memory."""
    for name, value in values.items():
        if any(map(_names_column, _parts(value))):
            raise ValueError(
                f"{name} is set to {shown(value)}, which names a column; compute with the attributes of the row"
            )


def _parts(value: Any) -> Iterator[object]:
    """Yield the value, or the parts of an expression, those of its subqueries included."""
    for part in getattr(value, "flatten", lambda: [value])():
        yield part
        for inner in _within(part):
            yield from _parts(inner)


def _within(part: object) -> Iterable[object]:
    """Return the parts of what Django does not flatten."""
    if isinstance(part, models.QuerySet):
        return [part.query]
    if isinstance(part, Query):
        return [*part.annotations.values(), part.where, *part.combined_queries]
    return part.leaves() if isinstance(part, WhereNode) else ()


def _names_column(part: object) -> bool:
    """Return True for ``F("amount")`` and ``OuterRef("amount")``, and for a condition such as ``Q(amount=1)``."""
    return isinstance(part, models.F) or (
        isinstance(part, models.Q) and any(isinstance(child, tuple) for child in part.children)
    )


def copied(row: Row) -> Row:
    """Return a copy that shares no value with the row. ``copy.deepcopy`` would look for the model in an installed app,
    and pickle the row as the model says."""
    twin = row.__class__.__new__(row.__class__)
    as_bytes = {id(value): bytes(value) for value in row.__dict__.values() if isinstance(value, memoryview)}
    twin.__dict__.update(copy.deepcopy(row.__dict__, {id(row): twin, **as_bytes}))  # it copies no memoryview
    return twin


def _digest(key: Key) -> str:
    return sha256(repr(key).encode()).hexdigest()
