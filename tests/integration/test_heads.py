"""Leaping from aggregate to aggregate."""

from __future__ import annotations

import pytest
from django.db import connection

from enode_django.eventstore import heads as module
from enode_django.eventstore.heads import Head, HeadsPage, heads_page
from enode_django.eventstore.postgres import PostgresEventStore
from enode_django.testing.event_store_read_contract import history, refusal, stream

pytestmark = pytest.mark.django_db(transaction=True)

TYPE = "bank.BankAccount"


@pytest.fixture
def store() -> PostgresEventStore:
    return PostgresEventStore()


def all_pages(low: str, high: str | None, limit: int) -> list[str]:
    found: list[str] = []
    at: str | None = low
    while at is not None:
        page = heads_page("default", at, high, limit=limit)
        assert len(page.heads) <= limit
        found += [head.aggregate_root_id for head in page.heads]
        at = page.next_id
    return found


def test_each_aggregate_comes_once_with_its_newest_version_and_type(store: PostgresEventStore) -> None:
    store.append([*history("a", 3), *history("b", 1), stream("b", 2, aggregate_root_type="other"), refusal("b")])
    assert heads_page("default", "", None, limit=10) == HeadsPage([Head("a", TYPE, 3), Head("b", "other", 2)], None)


def test_an_aggregate_that_has_refusals_only_is_left_out(store: PostgresEventStore) -> None:
    store.append([refusal("a"), stream("b", 1), refusal("c")])
    assert heads_page("default", "", None, limit=10) == HeadsPage([Head("b", TYPE, 1)], None)


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5])
def test_pages_laid_end_to_end_show_all(store: PostgresEventStore, limit: int) -> None:
    store.append([stream(id, 1) for id in "abd"] + [refusal("c")])
    assert all_pages("", None, limit) == ["a", "b", "d"]
    assert all_pages("b", "d", limit) == ["b"]
    assert heads_page("default", "a", "b", limit=1).next_id is None


def test_ids_are_in_the_order_of_bytes(store: PostgresEventStore) -> None:
    ids = ["A", "B", "a", "ä", "中"]
    store.append([stream(id, 1) for id in reversed(ids)])
    assert all_pages("", None, 2) == ids
    assert all_pages("B", "ä", 2) == ["B", "a"]


def test_an_empty_store_has_none() -> None:
    assert heads_page("default", "", None, limit=3) == HeadsPage([], None)


def test_a_long_history_costs_no_more_than_a_short_one(store: PostgresEventStore) -> None:
    store.append([*history("a", 3_000), *history("b", 3_000)])
    with connection.cursor() as cursor:
        cursor.execute("SET enable_seqscan = off")
        cursor.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {module._HEADS}", ["", 10])
        ((plan,),) = cursor.fetchall()
        cursor.execute("RESET enable_seqscan")
    assert plan[0]["Plan"]["Shared Hit Blocks"] + plan[0]["Plan"]["Shared Read Blocks"] < 40
