"""Helpers for the rows that handlers insert, and for the statements that inserted them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from django.db import connections, models

from enode_django.databases import execute
from enode_django.eventing.registry import subscribers
from tests.following.domain import Added
from tests.following.lines import Line, Lines

Row = TypeVar("Row", bound=models.Model)
Script = Callable[[Added], object]
Run = Callable[..., dict[str, str]]


def statements(model: type[models.Model]) -> int:
    """Return the number of statements that have inserted the existing rows."""
    table = model._meta.db_table
    (row,) = execute("default", f"SELECT count(DISTINCT (xmin::text, cmin::text)) FROM {table}", ()).fetchall()
    return int(row[0])


def a_line(event: Added, **values: Any) -> Line:
    return inserted(Line(account=event.aggregate_root_id, **values))


def inserted(row: Row) -> Row:
    subscribers.instance(Lines).insert(row)
    return row


def accounts() -> list[str]:
    return list(Line.objects.order_by("account", "version").values_list("account", flat=True))


def waits(alias: str = "default") -> bool:
    """Return True if the database has no row of `Named`: the inserted ones still wait."""
    (known,) = connections[alias].connection.execute("SELECT count(*) FROM following_named").fetchone()
    return bool(known == 0)
