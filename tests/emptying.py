"""A pytest plugin that empties the tables after a transactional test, faster than Django does.

Django truncates every table and then recreates content types and permissions, which takes longer than most tests. Here
only tables with rows are truncated, and the tables that migrations fill stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.db import connections
from django.test import TransactionTestCase

FILLED_BY_MIGRATIONS = {"django_content_type", "auth_permission"}


@pytest.fixture(scope="session", autouse=True)
def quick_emptying() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TransactionTestCase, "_fixture_teardown", _empty_databases)
        yield


def _empty_databases(test: TransactionTestCase) -> None:
    for alias in test._databases_names(include_mirrors=False):  # type: ignore[attr-defined]
        empty_tables(alias)


def empty_tables(alias: str) -> None:
    """Empty the tables of models that have rows, without resetting sequences."""
    connection = connections[alias]
    names = connection.introspection.django_table_names(only_existing=True, include_views=False)
    quoted = sorted(map(connection.ops.quote_name, {*names} - FILLED_BY_MIGRATIONS))
    with connection.cursor() as cursor:
        cursor.execute(" UNION ALL ".join(f"SELECT '{name}' WHERE EXISTS (SELECT FROM {name})" for name in quoted))
        filled = [name for (name,) in cursor.fetchall()]
    if filled:
        connection.ops.execute_sql_flush([f"TRUNCATE {', '.join(filled)} CASCADE"])
