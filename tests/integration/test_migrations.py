from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.db import connection
from django.db.migrations.executor import MigrationExecutor

pytestmark = pytest.mark.django_db(transaction=True)
BEFORE, AFTER = "0005_store_generations", "0006_shards"


def migrate(name: str) -> None:
    MigrationExecutor(connection).migrate([("enode_django", name)])


@pytest.fixture(autouse=True)
def back_to_the_newest() -> Iterator[None]:
    yield
    executor = MigrationExecutor(connection)
    executor.migrate(executor.loader.graph.leaf_nodes("enode_django"))


def subscriptions(columns: str) -> list[tuple[object, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {columns} FROM enode_django_subscription")
        return cursor.fetchall()


def test_subscriptions_are_taken_over_as_those_of_the_first_shard() -> None:
    migrate(BEFORE)
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO enode_django_subscription VALUES ('bank.Ledger', now(), 17, 4711, 3, 3)")
    places = "subscriber, start_generation, start_position, swept_generation, swept_position, started_at"
    before = subscriptions(places)
    migrate(AFTER)
    assert subscriptions("subscriber, shard") == [("bank.Ledger", 0)]
    assert subscriptions(places) == before
    migrate(BEFORE)
    assert subscriptions(places) == before
