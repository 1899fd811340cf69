"""A pytest plugin that empties the tables after a transactional test, faster than Django does.

Django truncates every table and then recreates content types and permissions, which takes longer than most tests. Here
only tables with rows are emptied, and the tables that migrations fill stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.db import connections
from django.test import TransactionTestCase

FILLED_BY_MIGRATIONS = {"django_content_type", "auth_permission"}
SMALL = 128 * 1024
"""The bytes up to which it is cheaper to delete the rows: a truncated table gets new files, as each of its indexes."""

# A table without a page has no rows. Files are looked at rather than tables, which a new session would have to load.
# The pages of a partitioned table are in its partitions.
TABLES_WITH_PAGES = (
    "SELECT relname, pg_relation_size(oid) FROM pg_class"
    " WHERE relname = ANY(%s) AND relkind IN ('r', 'p') AND pg_table_is_visible(oid)"
    " AND (relkind = 'p' OR pg_relation_size(oid) > 0) ORDER BY relname"
)


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
    names = {*connection.introspection.django_table_names(include_views=False)} - FILLED_BY_MIGRATIONS
    with connection.cursor() as cursor:
        cursor.execute(TABLES_WITH_PAGES, [[*names]])
        sizes = {connection.ops.quote_name(name): size for name, size in cursor.fetchall()}
    if sizes:
        connection.ops.execute_sql_flush([_emptied(sizes)])


def _emptied(sizes: dict[str, int]) -> str:
    """Return statements that empty the tables, once the transactions have ended that write to them."""
    statements = [f"LOCK TABLE {', '.join(sizes)} IN SHARE ROW EXCLUSIVE MODE"]
    if large := [name for name, size in sizes.items() if size > SMALL]:
        statements.append(f"TRUNCATE {', '.join(large)} CASCADE")
    statements += [f"DELETE FROM {name}" for name, size in sizes.items() if size <= SMALL]
    return "; ".join(statements)
