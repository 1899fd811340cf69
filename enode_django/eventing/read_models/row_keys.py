"""The keys that identify the rows of a `MultiProjection`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, Generic, TypeAlias, TypeVar

from django.core.exceptions import ValidationError
from django.db import models
from django.db.backends.base.base import BaseDatabaseWrapper

from enode_django.eventing.read_models.column_types import OnlyDatabaseKnows, Stored, stored_by
from enode_django.exceptions import shown

Row = TypeVar("Row", bound=models.Model)
Field: TypeAlias = "models.Field[Any, Any]"
Key: TypeAlias = Any
"""The value of the key field, or a tuple of those of several key fields."""


class RowKeys(Generic[Row]):
    """The keys of rows of ``model``, which ``fields`` identify. ``key_of`` returns a row's key."""

    def __init__(self, model: type[Row], fields: Sequence[Field], connection: BaseDatabaseWrapper) -> None:
        self.key_of: Callable[[Row], Key] = attrgetter(*(field.attname for field in fields))
        self._model = model
        self._fields = fields
        self._canonical = [_canonical(field, connection) for field in fields]

    def canonical(self, given: Any) -> Key:
        """Return a key as a loaded row has it. Raises ``ValidationError`` for a value that the field refuses, and
        `ValueError` for another number of values than there are key fields, or if one of several is None."""
        if len(self._fields) == 1 and not isinstance(given, list | tuple):
            return self._converted(0, given)
        values = tuple(given) if isinstance(given, list | tuple) else (given,)
        if len(values) != len(self._fields) or None in values:
            names = ", ".join(field.name for field in self._fields)
            raise ValueError(f"the key {given!r} must be a tuple with a value for each of {names}")
        key = tuple(self._converted(place, value) for place, value in enumerate(values))
        return key if len(key) > 1 else key[0]

    def _converted(self, place: int, value: Any) -> Any:
        try:
            return self._canonical[place](value)
        except ValidationError as error:
            field = self._fields[place]
            raise ValidationError(f"the key {shown(value)} does not fit {field}: {' '.join(error.messages)}") from error

    def new(self, key: Key) -> Row:
        """Return a new row with that key, which is not stored."""
        values = key if len(self._fields) > 1 else (key,)
        return self._model(**{field.attname: value for field, value in zip(self._fields, values, strict=True)})


def _canonical(field: Field, connection: BaseDatabaseWrapper) -> Callable[[Any], Any]:
    """Return a function that converts a value to that of a loaded row, unless the column refuses it."""
    by_column: Stored = stored_by(field.db_type(connection) or "", connection) or (lambda value: value)

    def convert(given: Any) -> Any:
        value = field.to_python(given)
        if isinstance(field, models.DateTimeField):
            value = field.get_prep_value(value)  # a naive time becomes an aware one
        try:
            return by_column(value)
        except OnlyDatabaseKnows:
            return value

    return convert
