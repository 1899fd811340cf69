"""Load instances of a model from its table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Generic, TypeVar

from django.db import connections, models
from django.db.models.sql import Query

Row = TypeVar("Row", bound=models.Model)


class RowLoading(Generic[Row]):
    """Loads rows as Django's own queries do, without the managers of the model.

    ``statement`` selects and locks the rows that meet the SQL ``condition``, in the order of the columns ``order``.
    """

    def __init__(self, model: type[Row], alias: str, condition: str, order: str) -> None:
        fields = model._meta.concrete_fields
        compiler: Any = Query(model).get_compiler(alias)
        connection = connections[alias]
        table = model._meta.db_table
        columns = [field.get_col(table) for field in fields]
        selected = [column.select_format(compiler, *compiler.compile(column))[0] for column in columns]
        self.statement = (
            f"SELECT {', '.join(selected)} FROM {connection.ops.quote_name(table)} "
            f"WHERE {condition} ORDER BY {order} FOR UPDATE"
        )
        self._model = model
        self._alias = alias
        self._names = [field.attname for field in fields]
        self._converters = [
            (index, converter, column)
            for index, column in enumerate(columns)
            for converter in [*connection.ops.get_db_converters(column), *column.get_db_converters(connection)]
        ]

    def rows(self, found: Iterable[Sequence[Any]]) -> Iterator[Row]:
        from_db, alias, names, connection = self._model.from_db, self._alias, self._names, connections[self._alias]
        for values in found:
            if self._converters:
                converted = list(values)
                for index, converter, column in self._converters:
                    converted[index] = converter(converted[index], column, connection)
                values = converted
            yield from_db(alias, names, values)
