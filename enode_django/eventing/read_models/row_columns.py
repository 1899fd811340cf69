"""Convert the fields of a model's instances to columns as they are sent to PostgreSQL."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from itertools import chain
from operator import attrgetter
from typing import Any, TypeVar

from django.conf import settings
from django.db import models
from django.db.backends.base.base import BaseDatabaseWrapper
from django.utils.timezone import is_aware

Row = TypeVar("Row", bound=models.Model)

_ARRAYS = {
    "varchar": "text",  # a cast to varchar(100)[] would truncate a long value, which an insert refuses
    "text": "text",
    "boolean": "boolean",
    "smallint": "smallint",
    "integer": "integer",
    "bigint": "bigint",
    "numeric": "numeric",
    "double precision": "double precision",
    "date": "date",
    "time": "time",
    "timestamp with time zone": "timestamp with time zone",
    "interval": "interval",
    "uuid": "uuid",
    "jsonb": "jsonb",
    "bytea": "bytea",
    "inet": "inet",
}
"""The type of the array for a column's values, by the type of the column. Values are cast as in an insert."""

_WITH_MODIFIER = ("varchar", "numeric")

_AS_THEY_ARE: dict[type[models.Field[Any, Any]], type] = {
    models.CharField: str,
    models.TextField: str,
    models.SlugField: str,
    models.EmailField: str,
    models.URLField: str,
    models.SmallIntegerField: int,
    models.IntegerField: int,
    models.BigIntegerField: int,
    models.AutoField: int,
    models.BigAutoField: int,
    models.PositiveSmallIntegerField: int,
    models.PositiveIntegerField: int,
    models.PositiveBigIntegerField: int,
    models.FloatField: float,
    models.BooleanField: bool,
    models.DecimalField: Decimal,
    models.DateField: date,
    models.DateTimeField: datetime,
    models.DurationField: timedelta,
    models.UUIDField: uuid.UUID,
}
"""The type whose values need no preparing, by the class of the field. Preparing costs more than all other steps."""

_ONLY_IF: dict[type[models.Field[Any, Any]], Callable[[Any], bool]] = {
    models.DecimalField: Decimal.is_finite,
    models.DateTimeField: is_aware,
}
"""A further condition for values that need no preparing. Preparing others raises, or uses the default time zone."""


class Column:
    """The properties of a field that do not depend on its values.

    ``array`` is the type of the array that carries its values, or None if they go into none. ``created_only`` is True
    if the field is set when a row is made, and then kept. Values of exactly the type ``as_it_is`` need no preparing if
    they meet the condition ``only_if``, if there is one.
    """

    def __init__(self, field: models.Field[Any, Any], connection: BaseDatabaseWrapper) -> None:
        self.field = field
        self.attname = field.attname
        self.name = quoted(field, connection)
        self.array = _array_of(field, connection)
        self.created_only = bool(getattr(field, "auto_now_add", False))
        self.as_it_is = _AS_THEY_ARE.get(type(field))
        self.only_if = _ONLY_IF.get(type(field))
        self._get = attrgetter(field.attname) if not is_set_when_saved(field) else None

    def raw(self, rows: Sequence[models.Model]) -> Iterator[Any]:
        """Return the unprepared values. Sets what fields set when they are saved (``auto_now``)."""
        if self._get is not None:
            return map(self._get, rows)
        pre_save = self.field.pre_save
        return (pre_save(row, row._state.adding) for row in rows)

    def values(self, rows: Sequence[models.Model], connection: BaseDatabaseWrapper) -> list[Any]:
        """Return the values of the rows as an array takes them."""
        values, prepare, as_it_is, only_if = [*self.raw(rows)], self._prepare, self.as_it_is, self.only_if
        if {*map(type, values)} == {as_it_is} and (only_if is None or all(map(only_if, values))):
            return values
        return [
            value if type(value) is as_it_is and (only_if is None or only_if(value)) else prepare(value, connection)
            for value in values
        ]

    def value(self, given: Any, connection: BaseDatabaseWrapper) -> Any:
        """Return the value as an array takes it. An expression stays as it is."""
        if type(given) is self.as_it_is and (self.only_if is None or self.only_if(given)):
            return given
        return given if hasattr(given, "resolve_expression") else self._prepare(given, connection)

    def _prepare(self, value: Any, connection: BaseDatabaseWrapper) -> Any:
        prepared = self.field.get_db_prep_save(value, connection=connection)
        # Django's sized integer types do not go into an array with plain integers.
        return int(prepared) if self.as_it_is is int and prepared is not None else prepared


def is_set_when_saved(field: models.Field[Any, Any]) -> bool:
    """Return True if saving a row may set the field: to the time, or by a ``pre_save`` of the field's own."""
    if isinstance(field, models.DateField | models.TimeField):
        own = (models.DateField.pre_save, models.DateTimeField.pre_save, models.TimeField.pre_save)
        if type(field).pre_save in own:
            return field.auto_now or field.auto_now_add
    return type(field).pre_save is not models.Field.pre_save


def quoted(field: models.Field[Any, Any], connection: BaseDatabaseWrapper) -> str:
    return connection.ops.quote_name(field.column or "")


def columns_of(model: type[models.Model], connection: BaseDatabaseWrapper) -> Sequence[Column]:
    """Return the columns that are written: all but generated ones."""
    return [Column(field, connection) for field in model._meta.concrete_fields if not field.generated]


def names_of(columns: Sequence[Column]) -> str:
    return ", ".join(column.name for column in columns)


def arrays(columns: Sequence[Column]) -> str:
    """Return the parameters for these columns in arrays. They are binary: as text they take twice as long."""
    return ", ".join(f"%b::{column.array}[]" for column in columns)


def has_expressions(rows: Sequence[models.Model]) -> bool:
    """Return True if a value of a row is an expression, such as a default of the database. It goes into no array."""
    kinds = {*map(type, chain.from_iterable(row.__dict__.values() for row in rows))}
    return any(hasattr(kind, "resolve_expression") for kind in kinds)


def divided(rows: Sequence[Row], fits_arrays: bool) -> tuple[Sequence[Row], Sequence[Row]]:
    """Return the rows whose values go into arrays, and the others. ``fits_arrays`` is True if all columns have one."""
    if not fits_arrays:
        return [], rows
    if not has_expressions(rows):
        return rows, []
    groups: tuple[list[Row], list[Row]] = [], []
    for row in rows:
        groups[has_expressions([row])].append(row)
    return groups


def has_own_placeholder(field: models.Field[Any, Any]) -> bool:
    """Return True if a statement needs more than ``%s`` for the field's values. Django 6.1 has renamed the method that
    says so; that of `BinaryField` gives ``%s``."""
    names = ("get_placeholder", "get_placeholder_sql")
    return any(
        getattr(type(field), name, None) not in (None, getattr(models.BinaryField, name, None)) for name in names
    )


def _array_of(field: models.Field[Any, Any], connection: BaseDatabaseWrapper) -> str | None:
    """Return None if the field's values do not go into an array: they are arrays, or of an unknown type."""
    if has_own_placeholder(field):
        return None
    if isinstance(field, models.DateTimeField) and not settings.USE_TZ:
        return None  # loaded values are naive then and an event's aware; an array takes one kind only
    base, modifier, rest = (field.db_type(connection) or "").partition("(")
    if modifier and (base not in _WITH_MODIFIER or not rest.endswith(")")):
        return None
    return _ARRAYS.get(base)
