"""Values that are unique among all aggregates: their first owner may come last in a rebuild."""

from __future__ import annotations

import pytest
from django.db import connection

from enode_django import DomainEvent, handles
from enode_django.eventing.registry import subscribers
from enode_django.rebuilding import retrying
from enode_django.rebuilding.engine import InProcess
from enode_django.rebuilding.rebuild import rebuild
from tests.following.domain import Added, Closed
from tests.following.harness import Harness
from tests.rebuilding.domain import Book, Books, Effects, Posting, Postings, Suite, Suites
from tests.rebuilding.histories import follow, nothing, postings
from tests.rebuilding.tables import sql


def take(event: DomainEvent) -> None:
    """Let each aggregate have the name of its last event only."""
    if isinstance(event, Added):
        Posting.objects.filter(account=event.aggregate_root_id).update(once=None)
        last = Posting.objects.filter(account=event.aggregate_root_id, amount=event.amount)
        last.update(once=f"name) = (once)=({event.amount}")


def names() -> dict[str, int]:
    return dict(Posting.objects.filter(once__isnull=False).values_list("account", "amount"))


@pytest.fixture
def named(postings: Harness, effects: Effects) -> Harness:
    effects.posting = take
    return postings


UNIQUE = "UNIQUE (once) DEFERRABLE INITIALLY DEFERRED"


@pytest.mark.parametrize("constraint", [UNIQUE, "UNIQUE (once)", "EXCLUDE (once WITH =)"])
def test_a_value_that_somebody_else_has_taken_since_parks_nobody(named: Harness, constraint: str) -> None:
    """Aggregates that owned the value later come earlier in the replay."""
    sql(
        "ALTER TABLE rebuilding_posting DROP CONSTRAINT once",
        f"ALTER TABLE rebuilding_posting ADD CONSTRAINT once {constraint}",
    )
    try:
        named.stored("c", Added(amount=1), Added(amount=2))
        named.stored("b", Added(amount=1), Added(amount=3))
        named.stored("a", Added(amount=1))
        named.stored("d", Added(amount=9))
        for id in "cbad":
            named.deliver(named.subscription(Postings()), named.store.load(id))
        assert names() == {"a": 1, "b": 3, "c": 2, "d": 9}
        rebuilt = rebuild(Postings.name, InProcess(), nothing)
        assert rebuilt.replayed.parked == ()
        assert (rebuilt.comparison.is_equal, rebuilt.comparison.is_whole) == (True, True)
        assert names() == {"a": 1, "b": 3, "c": 2, "d": 9}
        assert named.parked(Postings.name) == []
        named.stored("a", Added(amount=4), after=1)
        follow(Postings)
        assert names()["a"] == 4
    finally:
        sql(
            "ALTER TABLE rebuilding_posting DROP CONSTRAINT once",
            f"ALTER TABLE rebuilding_posting ADD CONSTRAINT once {UNIQUE}",
        )


def test_a_value_that_two_have_at_once_parks_the_one_who_came_later(named: Harness) -> None:
    named.stored("b", Added(amount=1))
    named.stored("a", Added(amount=1))
    rebuilt = rebuild(Postings.name, InProcess(), nothing, accept_differences=True)
    assert rebuilt.replayed.parked == ("a",)
    assert names() == {"b": 1}
    assert [(one.aggregate_root_id, one.version) for one in named.parked(Postings.name)] == [("a", 1)]
    assert named.parked(Postings.name)[0].aggregate_root_type == "following.Counter"


def test_what_fails_for_another_reason_is_tried_once_more_and_stays_parked(named: Harness, effects: Effects) -> None:
    tried: list[str] = []

    def fail(event: DomainEvent) -> None:
        if event.aggregate_root_id == "b":
            tried.append(event.id)
            raise ValueError("no")

    effects.posting = fail
    named.stored("a", Added(amount=1))
    named.stored("b", Added(amount=2), Closed())
    rebuilt = rebuild(Postings.name, InProcess(), nothing)
    assert rebuilt.replayed.parked == ("b",)
    assert len(tried) >= 2
    assert [one.aggregate_root_id for one in named.parked(Postings.name)] == ["b"]


class OneBookEach(Books):
    name = "rebuilding.one_book_each"
    abstract = True

    @handles
    def added(self, event: Added) -> None:
        Book.objects.update_or_create(account=event.aggregate_root_id, defaults={"number": event.amount})


@pytest.mark.parametrize("key", ["(number)", "(number, before_id) NULLS NOT DISTINCT"])
def test_a_unique_column_of_rows_that_point_to_rows_with_such_a_column_may_change_its_owner(
    named: Harness, key: str
) -> None:
    if "NULLS" in key and connection.cursor().connection.info.server_version < 150000:
        pytest.skip("needs PostgreSQL 15")
    sql(f"CREATE UNIQUE INDEX one_number ON rebuilding_book {key}")
    try:
        with subscribers.only(OneBookEach):
            named.stored("b", Added(amount=1), Added(amount=2))
            named.stored("a", Added(amount=1), Added(amount=3))
            named.stored("c", Added(amount=1))
            for id in "bac":
                named.deliver(named.subscription(OneBookEach()), named.store.load(id))
            rebuilt = rebuild(OneBookEach.name, InProcess(), nothing)
            assert rebuilt.replayed.parked == ()
            assert dict(Book.objects.values_list("account", "number")) == {"a": 3, "b": 2, "c": 1}
    finally:
        sql("DROP INDEX one_number")


def test_a_unique_column_of_a_row_in_two_tables_may_change_its_owner_whatever_the_order_of_the_models(
    named: Harness,
) -> None:
    sql("CREATE UNIQUE INDEX one_number ON rebuilding_room (number)")
    try:
        with subscribers.only(Suites):
            named.stored("b", Added(amount=1), Added(amount=2))
            named.stored("a", Added(amount=1), Added(amount=3))
            named.stored("c", Added(amount=1))
            for id in "bac":
                named.deliver(named.subscription(Suites()), named.store.load(id))
            assert rebuild(Suites.name, InProcess(), nothing).replayed.parked == ()
            assert dict(Suite.objects.values_list("account", "number")) == {"a": 3, "b": 2, "c": 1}
    finally:
        sql("DROP INDEX one_number")


@pytest.mark.parametrize("most", [0, 3])
def test_failed_aggregates_with_more_streams_than_a_retry_reads_stay_parked(
    named: Harness, effects: Effects, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(retrying, "MOST_STREAMS", most)

    def fail(event: DomainEvent) -> None:
        if isinstance(event, Added) and event.amount == 2:
            raise ValueError("no")

    effects.posting = fail
    for id in "ab":
        named.stored(id, Added(amount=1), Added(amount=2), Added(amount=3))
    rebuilt = rebuild(Postings.name, InProcess(), nothing, accept_differences=True)
    assert sorted(rebuilt.replayed.parked) == ["a", "b"]
    assert sorted(one.aggregate_root_id for one in named.parked(Postings.name)) == ["a", "b"]
    assert postings() == {"a": [1], "b": [1]}
