"""Both drivers of unique values."""

from __future__ import annotations

import pytest
from django.db import connections

from enode_django.eventstore.postgres_unique_values import TABLE, PostgresUniqueValues
from enode_django.eventstore.unique_values import MemoryUniqueValues, UniqueValues
from enode_django.testing.contracts import UniqueValuesContract


class TestMemoryUniqueValues(UniqueValuesContract):
    @pytest.fixture
    def values(self) -> UniqueValues:
        return MemoryUniqueValues()


@pytest.mark.django_db(transaction=True)
class TestPostgresUniqueValues(UniqueValuesContract):
    @pytest.fixture
    def values(self) -> UniqueValues:
        return PostgresUniqueValues()

    def leave_thread(self) -> None:
        connections["default"].close()

    def test_rows_with_commands_under_way_are_found_by_an_index(self, values: UniqueValues) -> None:
        with connections["default"].cursor() as cursor:
            cursor.execute("SET enable_seqscan = off")
            cursor.execute(
                f"EXPLAIN SELECT 1 FROM {TABLE} WHERE (claims <> '{{}}' OR releases <> '{{}}')"
                " AND changed_at <= statement_timestamp()"
            )
            plan = "\n".join(row for (row,) in cursor.fetchall())
            cursor.execute("RESET enable_seqscan")
        assert "enode_unique_unsettled" in plan
