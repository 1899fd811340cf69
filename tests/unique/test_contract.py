"""The driver of unique values in memory. That in PostgreSQL is held to the contract by the sample's tests."""

from __future__ import annotations

import pytest
from django.db import connection

from enode_django.eventstore.postgres_unique_values import TABLE
from enode_django.eventstore.unique_values import MemoryUniqueValues, UniqueValues
from enode_django.testing.contracts import UniqueValuesContract


class TestMemoryUniqueValues(UniqueValuesContract):
    @pytest.fixture
    def values(self) -> UniqueValues:
        return MemoryUniqueValues()


@pytest.mark.django_db
def test_rows_with_commands_under_way_are_found_by_an_index() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL enable_seqscan = off")
        cursor.execute(
            f"EXPLAIN SELECT 1 FROM {TABLE} WHERE (claims <> '{{}}' OR releases <> '{{}}')"
            " AND changed_at <= statement_timestamp()"
        )
        plan = "\n".join(row for (row,) in cursor.fetchall())
    assert "enode_unique_unsettled" in plan
