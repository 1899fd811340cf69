"""Looking at rows that handlers create, and at the statements that inserted them."""

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
    """How many statements have inserted the rows that there are."""
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
    """Whether there is a row that the database has not been sent."""
    (known,) = connections[alias].connection.execute("SELECT count(*) FROM following_named").fetchone()
    return bool(known == 0)
