"""The tables that rows can be inserted into in bulk, as if each had been inserted alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg
from django.db import models
from django.db.backends.base.base import BaseDatabaseWrapper

from enode_django.eventing.read_models.row_columns import Column, columns_of

DO_INSERT: Any = models.Model._do_insert  # type: ignore[attr-defined]
"""Django's own, whatever is put in its place for a model.

It is private, and there is no public place for what is done here. A signal cannot keep a row from being inserted. A
wrapper of statements (``connection.execute_wrapper``) can, but not return the key that Django then fetches from the
cursor. A manager or a ``save()`` would have to be in the classes of the project, and a database backend in its
settings. So the signature is compared (`deferring.is_hook_known`): where it is another one, rows are inserted at once.
"""

_PRE_SAVES = {field.pre_save for field in (models.Field, models.DateField, models.DateTimeField, models.TimeField)}
"""Others may do what must not be done twice, if it turns out that a row cannot wait."""

# A trigger or a rule may do or see something else for many rows than for each in its turn.
_IS_PLAIN = """
    SELECT relkind = 'r' AND NOT relhasrules
        AND NOT EXISTS (SELECT FROM pg_trigger WHERE tgrelid = known.oid AND NOT tgisinternal)
    FROM pg_class AS known WHERE oid = to_regclass(%s)
"""
_DRAW = """
    SELECT nextval(sequence::regclass) FROM pg_get_serial_sequence(%s, %s) AS sequence, generate_series(1, %s)
    WHERE has_sequence_privilege(sequence, 'USAGE')
"""


def inserts_as_django_does(model: type[models.Model]) -> bool:
    inserts: Any = model._do_insert  # type: ignore[attr-defined]
    return getattr(inserts, "instead_of", inserts) is DO_INSERT


class InsertTable:
    """The table of a model. ``fits``: its rows can be inserted in bulk, as far as the model tells."""

    def __init__(self, model: type[models.Model], connection: BaseDatabaseWrapper) -> None:
        meta: Any = model._meta
        self.auto: Any = meta.auto_field
        self.columns: Sequence[Column] = columns_of(model, connection)
        self.auto_index = next((n for n, column in enumerate(self.columns) if column.field is self.auto), None)
        self.fits = (
            connection.vendor == "postgresql"
            and meta.managed
            and not (meta.proxy or meta.parents)
            and type(meta.base_manager) is models.Manager
            and inserts_as_django_does(model)
            and (self.auto is None or type(self.auto) in (models.AutoField, models.BigAutoField))
            and all(field is self.auto for field in meta.db_returning_fields)
            and len(self.columns) == len(meta.local_concrete_fields)
            and not any(column.has_db_default for column in self.columns)
            and all(column.array and type(column.field).pre_save in _PRE_SAVES for column in self.columns)
        )
        self._plain: bool | None = None
        self._name = connection.ops.quote_name(meta.db_table)
        names = ", ".join(column.name for column in self.columns)
        arrays = ", ".join(f"%b::{column.array}[]" for column in self.columns)
        self._insert = f"INSERT INTO {self._name} ({names}) SELECT * FROM unnest({arrays})"

    def is_plain(self, connection: BaseDatabaseWrapper) -> bool:
        """Return True if the table in the database is a plain one, without triggers and rules. The database is asked
        until the table is there."""
        if self._plain is None:
            self._plain = next((plain for (plain,) in _fetch(connection, _IS_PLAIN, (self._name,))), None)
        return bool(self._plain)

    def draw_ids(self, connection: BaseDatabaseWrapper, count: int) -> list[int]:
        """The highest first; none if the table has no sequence of its own, or this user may not use it."""
        return [id for (id,) in reversed(_fetch(connection, _DRAW, (self._name, self.auto.column, count)))]

    def insert(self, rows: Sequence[Sequence[Any]], connection: BaseDatabaseWrapper) -> None:
        values = [list(column) for column in zip(*rows, strict=True)]
        with connection.wrap_database_errors, psycopg.Cursor[Any](connection.connection) as cursor:
            cursor.execute(self._insert, values, prepare=False)


def _fetch(connection: BaseDatabaseWrapper, query: str, parameters: Sequence[Any]) -> list[Any]:
    with connection.wrap_database_errors, psycopg.Cursor[Any](connection.connection) as cursor:
        return cursor.execute(query, parameters, prepare=False).fetchall()
