"""The meaning of a table's rows, as SQL: their fields without surrogate keys. A foreign key to a surrogate key is
replaced by the fields of the row that it points to.

Surrogate keys depend on the order of inserts, so they differ between generations in rows with the same meaning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

from django.db import models

from enode_django.eventing.multi_projections import MultiProjection, key_fields
from enode_django.rebuilding.definitions import quoted
from enode_django.rebuilding.making import literal
from enode_django.rebuilding.target import Target

Place = Callable[[str], str]
"""Return the quoted name of a table in one generation, with `%` doubled, given its name."""
Field: TypeAlias = "models.Field[Any, Any]"


class Meaning(NamedTuple):
    """The SQL for the rows of a table: ``tables`` is the FROM clause, in which the table itself is called ``row``.

    ``fields`` is an expression of type jsonb, ``whose`` one for the aggregate root id of a row (None: unknown).
    ``name`` is an expression for a text that two different versions of a row have in common (NULL: there is none): that
    aggregate root id, or the key of a `MultiProjection`. ``is_as_stored``: rows with the same columns have the same
    meaning in both generations.
    """

    fields: str
    whose: str | None
    name: str
    tables: str
    is_as_stored: bool


def meaning(target: Target, model: type[models.Model], place: Place) -> Meaning:
    """Return the meaning of a model's rows in one generation. Pure."""
    writer = _Writer(target, place)
    fields = writer.fields("row", model, ())
    whose = writer.whose(model)
    tables = " ".join([f"{place(model._meta.db_table)} AS row", *writer.joins])
    return Meaning(fields, whose, whose or _key(target), tables, not [*left_out_of(target, model)])


def _key(target: Target) -> str:
    if not isinstance(target.subscriber, MultiProjection):
        return "NULL"
    columns = [f"row.{escaped(quoted(str(field.column)))}" for field in key_fields(type(target.subscriber))]
    return f"concat_ws(', ', {', '.join(columns)})"


def left_out_of(target: Target, model: type[models.Model]) -> Iterator[Field]:
    """Yield the fields whose columns are not compared as stored: volatile ones, and surrogate keys and keys to them."""
    for field in model._meta.local_concrete_fields:
        if field.name in target.subscriber.volatile or _counts_inserts(target, field):
            yield field


def is_attributed(target: Target, model: type[models.Model]) -> bool:
    """Return True if the aggregate of each row of the model is known. Pure."""
    return _Writer(target, quoted).whose(model) is not None


class _Writer:
    """Writes expressions, and collects the joins that they need."""

    def __init__(self, target: Target, place: Place) -> None:
        self.joins: list[str] = []
        self._target = target
        self._place = place

    def fields(self, row: str, model: type[models.Model], way: Sequence[type[models.Model]]) -> str:
        """Return the expression for the fields of ``row``. ``way`` has the models whose keys led to it. A key to one of
        these is not followed, to avoid a cycle: its row is compared as a row of its own table."""
        left_out = [*left_out_of(self._target, model)]
        columns = ", ".join(escaped(literal(str(field.column))) for field in left_out)
        stored = f"to_jsonb({row}.*) - ARRAY[{columns}]::text[]"
        followed = [field for field in left_out if self._is_followed(field) and _pointed_at(field) not in (*way, model)]
        if not way:  # a key to a row of the same table is followed once
            followed += [field for field in left_out if self._is_followed(field) and _pointed_at(field) is model]
        nested = [
            f"{escaped(literal(field.name))}, {self._pointed_at_by(row, field, (*way, model))}" for field in followed
        ]
        kept = [field for field in model._meta.local_concrete_fields if field not in left_out]
        nested += [_is_null(row, field) for field in kept if _may_be_two_nulls(field)]
        # One call for each: PostgreSQL takes 100 arguments.
        return " || ".join([f"({stored})", *map("jsonb_build_object({})".format, nested)])

    def _is_followed(self, field: Field) -> bool:
        return isinstance(field, models.ForeignKey) and field.name not in self._target.subscriber.volatile

    def _pointed_at_by(self, row: str, field: Field, way: Sequence[type[models.Model]]) -> str:
        alias = self._joined(row, field)
        fields = self.fields(alias, _pointed_at(field), way)
        column = f"{row}.{escaped(quoted(str(field.column)))}"
        return f"CASE WHEN {column} IS NOT NULL THEN {fields} END"

    def _joined(self, row: str, field: Any) -> str:
        alias = f"row_{len(self.joins)}"
        other = f"{alias}.{escaped(quoted(str(field.target_field.column)))}"
        table = self._place(_pointed_at(field)._meta.db_table)
        self.joins.append(f"LEFT JOIN {table} AS {alias} ON {other} = {row}.{escaped(quoted(str(field.column)))}")
        return alias

    def whose(self, model: type[models.Model]) -> str | None:
        """Return the expression for the aggregate root id of a row. A row of a many-to-many table belongs to the first
        of its two rows that names an aggregate, a row of multi-table inheritance to the aggregate of its parent row."""
        column = self._target.aggregate_field(model)
        if column is not None:
            return f"row.{escaped(quoted(column))}"
        for field in model._meta.local_concrete_fields:
            if _belongs_to(model, field) and _pointed_at(field) in self._target.written:
                column = self._target.aggregate_field(_pointed_at(field))
                if column is not None:
                    return f"{self._joined('row', field)}.{escaped(quoted(column))}"
        return None


def _belongs_to(model: type[models.Model], field: Field) -> bool:
    is_key = isinstance(field, models.ForeignKey) and not field.null
    return is_key and bool(model._meta.auto_created or field in model._meta.parents.values())


def _may_be_two_nulls(field: Field) -> bool:
    """Return True if a NULL of the column and a null in its JSON are the same in the JSON of a row."""
    return isinstance(field, models.JSONField) and bool(field.null)


def _is_null(row: str, field: Field) -> str:
    column = str(field.column)
    return f"{escaped(literal(f'{column} IS NULL'))}, {row}.{escaped(quoted(column))} IS NULL"


def _counts_inserts(target: Target, field: Field) -> bool:
    if isinstance(field, models.ForeignKey):
        return _pointed_at(field) in target.written and _counts_inserts(target, field.target_field)
    return isinstance(field, models.AutoField | models.BigAutoField | models.SmallAutoField)


def _pointed_at(field: Any) -> type[models.Model]:
    """Return the model with the rows that the key points to: it may be declared with a proxy of that."""
    model: type[models.Model] = field.remote_field.model._meta.concrete_model
    return model


def escaped(sql: str) -> str:
    """Return SQL with `%` doubled, for a statement with parameters."""
    return sql.replace("%", "%%")
