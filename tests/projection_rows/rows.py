"""Looking at the rows of projections."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection, models

from enode_django.eventing.read_models.rows import RowTable
from tests.integration.rowsapp.models import (
    Plain,
    WithArray,
)

ALIAS = "default"

ODD = [pytest.param(Plain, id="in arrays"), pytest.param(WithArray, id="as values")]
"""Each value is tried in a table that is written in arrays, and in one that is not."""


def table(model: type[Any]) -> RowTable[Any]:
    return RowTable(model, ALIAS)


def stored(model: type[models.Model]) -> dict[str, dict[str, str | None]]:
    """Every column as the database writes it, by id."""
    columns = [field.column for field in model._meta.concrete_fields]
    selected = ", ".join(f'"{column}"::text' for column in columns)
    with connection.cursor() as cursor:
        cursor.execute(f'SELECT {selected} FROM "{model._meta.db_table}"')
        rows = [dict(zip(columns, row, strict=True)) for row in cursor.fetchall()]
    return {str(row.pop("aggregate_root_id")): row for row in rows}


def written(model: type[Any], id: str) -> Any:
    return model._base_manager.get(aggregate_root_id=id)


def put(model: type[Any], id: str, version: int, **values: Any) -> None:
    model(aggregate_root_id=id, version=version, **values).save(force_insert=True)
