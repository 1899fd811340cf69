from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from django.db import connection

from tests.following.conftest import behaviour, following_tables, harness  # noqa: F401

if TYPE_CHECKING:
    from tests.following.harness import Harness

_SCHEMAS = "SELECT nspname FROM pg_namespace WHERE nspname ~ '^enode_'"


@pytest.fixture
def projections(harness: Harness) -> Iterator[Harness]:  # noqa: F811
    """The counters' projections are all there are; what a rebuild leaves behind goes."""
    from enode_django.eventing.registry import subscribers
    from tests.following.domain import CounterRows, Entries

    with subscribers.only(CounterRows, Entries):
        yield harness
    with connection.cursor() as cursor:
        cursor.execute(_SCHEMAS)
        for (name,) in cursor.fetchall():
            cursor.execute(f'DROP SCHEMA "{name}" CASCADE')


def schemas() -> list[str]:
    with connection.cursor() as cursor:
        cursor.execute(f"{_SCHEMAS} ORDER BY nspname")
        return [name for (name,) in cursor.fetchall()]
