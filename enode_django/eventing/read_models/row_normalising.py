"""Give rows in memory the values that the database would give back, so that an event sees the same row whether the
previous event was handled in the same batch or in another one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from functools import cached_property
from types import SimpleNamespace
from typing import Any

from django.db import models
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models.expressions import DatabaseDefault

from enode_django.eventing.read_models.column_types import OnlyDatabaseKnows, Stored, json_stored, stored_by
from enode_django.eventing.read_models.compiled_rows import (
    HANDLED,
    NEVER_SEEN,
    Normalise,
    Preparing,
    RowField,
    compiled,
)
from enode_django.eventing.read_models.row_columns import Column, has_own_placeholder, is_set_when_saved


class RowNormaliser:
    """Normalises instances of ``model`` in memory, except the fields named in ``kept``, which handlers leave as they
    are. The functions for its fields are chosen once. Used by one thread."""

    def __init__(
        self,
        model: type[models.Model],
        connection: BaseDatabaseWrapper,
        kept: Collection[str] = ("aggregate_root_id", "version"),
    ) -> None:
        fields = [field for field in model._meta.concrete_fields if field.name not in kept]
        self._not_taken = {"_state", *(field.attname for field in model._meta.concrete_fields if field.name in kept)}
        written = [field for field in fields if not field.generated]
        self._fields = [_row_field(field, connection) for field in written]
        self._set_when_saved = [field for field in written if is_set_when_saved(field)]
        self._is_always_loaded = len(written) < len(fields) or not _is_made_of_fields(model)
        self._attributes = {"_state", HANDLED, *(field.attname for field in model._meta.concrete_fields)}
        self._alias = connection.alias
        # A row that has only its attributes needs no preparing, unless there is something to do for every row.
        length = None if self._set_when_saved or self._is_always_loaded else len(self._attributes)
        self.normalise_in_memory = compiled(self._fields, Preparing(length, self._prepare, _unknown), self._alias)
        """Normalise a row like `normalise`. Raises `OnlyDatabaseKnows` where that returns False."""

    def normalise(self, row: models.Model, *, partly: bool = False) -> bool:
        """Give the row the values that it would have if it were stored and loaded. If only the database knows one of
        them, return False; then no value is changed, or with ``partly`` all others are.

        A generated column is such a value. What the model's own ``from_db`` or ``__init__`` adds is forgotten.
        """
        try:
            self.normalise_in_memory(row)
        except OnlyDatabaseKnows:
            if partly:
                self._normalise_partly(row.__dict__)
                make_stored(row, self._alias)
            return False
        return True

    def _normalise_partly(self, values: dict[str, Any]) -> None:
        """Change the values that are known without the database."""
        seen = list(values[HANDLED] or [NEVER_SEEN] * len(self._fields))
        for number, (field, normalise) in enumerate(self._one_by_one):
            if values[field.name] is not seen[number]:
                alone = SimpleNamespace(**{field.name: values[field.name], HANDLED: ()}, _state=SimpleNamespace())
                with suppress(OnlyDatabaseKnows):
                    normalise(alone)
                    values[field.name] = getattr(alone, field.name)
                    seen[number] = values[field.name] if field.is_steady else NEVER_SEEN
        values[HANDLED] = seen

    @cached_property
    def _one_by_one(self) -> Sequence[tuple[RowField, Normalise]]:
        return [(field, compiled([field], _PREPARED, self._alias)) for field in self._fields]

    def _prepare(self, row: models.Model) -> None:
        """Set the fields that saving a row sets; delete the attributes that a loaded row does not have. Raises
        `OnlyDatabaseKnows` if no row can be normalised in memory."""
        for field in self._set_when_saved:
            field.pre_save(row, row._state.adding)
        values = row.__dict__
        for name in values.keys() - self._attributes:
            del values[name]
        if self._is_always_loaded:
            raise OnlyDatabaseKnows(_unknown(row))

    def take_over(self, row: models.Model, loaded: models.Model) -> None:
        """Give the row the values of a loaded row. It is a stored one from then on."""
        make_stored(row, loaded._state.db)
        values = row.__dict__
        values.update((name, value) for name, value in loaded.__dict__.items() if name not in self._not_taken)


def make_stored(row: models.Model, alias: str | None) -> None:
    """Make the state of a row that of one which was loaded from the database ``alias``."""
    row._state.adding, row._state.db = False, alias


def _unknown(row: models.Model) -> str:
    return f"{type(row).__qualname__} {row.pk!r} has to be stored to be normalised"


_PREPARED = Preparing(3, _unknown, str)
"""For a row of one field, which has no other attribute than that, `HANDLED` and ``_state``."""


def _is_made_of_fields(model: type[models.Model]) -> bool:
    """Return True if a loaded row has the values of its fields and nothing else."""
    ours: Any = model
    base: Any = models.Model
    return ours.from_db.__func__ is base.from_db.__func__ and ours.__init__ is base.__init__


def _row_field(field: models.Field[Any, Any], connection: BaseDatabaseWrapper) -> RowField:
    """Return how a value that a handler gave to the field becomes the one that a loaded row has."""
    column, by_column = Column(field, connection), _by_column(field, connection)
    col: Any = field.get_col(field.model._meta.db_table)
    converters = _converters(field, col, connection)
    is_steady = type(field) in vars(models).values() and not isinstance(field, models.JSONField)
    kind = column.as_it_is if is_steady and by_column is not None and not converters else None

    def convert(value: Any) -> Any:
        written = column.value(field.db_default if isinstance(value, DatabaseDefault) else value, connection)
        if written is None and field.null:
            loaded = None
        elif written is None or by_column is None:
            raise OnlyDatabaseKnows
        else:
            loaded = by_column(written)
        for converter in converters:
            loaded = converter(loaded, col, connection)
        return loaded

    return RowField(field.attname, kind, by_column, convert, is_steady)


def _converters(
    field: models.Field[Any, Any], col: Any, connection: BaseDatabaseWrapper
) -> Sequence[Callable[..., Any]]:
    """Return the functions that convert loaded data of the driver into values."""
    if isinstance(field, models.JSONField) and _is_plain_json(field):
        return ()  # its column returns the value itself, not the text that it would be read from
    return [*connection.ops.get_db_converters(col), *col.get_db_converters(connection)]


def _by_column(field: models.Field[Any, Any], connection: BaseDatabaseWrapper) -> Stored | None:
    """Return the function for the field's column, or None if it is unknown what the column returns."""
    if isinstance(field, models.JSONField) and _is_plain_json(field):
        return json_stored
    if type(field).select_format is not models.Field.select_format:
        return None
    of_array = getattr(field, "base_field", None)
    if of_array is not None and (field.db_type(connection) or "").endswith("]"):
        return _array(_by_column(of_array, connection))
    if has_own_placeholder(field):
        return None
    by_type = stored_by(field.db_type(connection) or "", connection)
    checked = field.db_parameters(connection).get("check")
    if by_type is None or not checked:
        return by_type
    return _not_negative(by_type) if field.get_internal_type().startswith("Positive") else None


def _array(of_items: Stored | None) -> Stored | None:
    if of_items is None:
        return None

    def stored(value: Any) -> list[Any]:
        if not isinstance(value, list) or any(isinstance(item, list) for item in value):
            raise OnlyDatabaseKnows
        return [None if item is None else of_items(item) for item in value]

    return stored


def _not_negative(stored: Stored) -> Stored:
    def checked(value: Any) -> Any:
        if value < 0:
            raise OnlyDatabaseKnows
        return stored(value)

    return checked


def _is_plain_json(field: models.JSONField[Any, Any]) -> bool:
    return type(field).from_db_value is models.JSONField.from_db_value and field.decoder is None
