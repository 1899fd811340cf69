"""Rows of many aggregates: each event changes them exactly once, whichever workers handle it, and however often."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from itertools import pairwise
from typing import Any
from uuid import UUID

import pytest
from django.db import OperationalError, connection, transaction
from django.db.models import F, Value
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from enode_django import DomainEvent
from enode_django.eventing import checkpoints
from enode_django.eventing.event_subscription import EventSubscription
from enode_django.eventing.registry import subscribers
from enode_django.eventing.unparking import retry_parked, skip_parked
from enode_django.eventstore.base import StreamRecord
from enode_django.ids import new_id
from tests.following.harness import Harness, shuffled, stream_of
from tests.following.orders import (
    CustomerTotal,
    CustomerTotals,
    DailyTotal,
    DailyTotals,
    Order,
    Rack,
    Racks,
    Renamed,
    back,
    order,
    totals,
    trouble,
)

NAME = CustomerTotals.name


def following(harness: Harness, cls: type[Any] = CustomerTotals, **options: Any) -> EventSubscription:
    return harness.subscription(subscribers.instance(cls), **options)


def stored(harness: Harness, id: str, *events: DomainEvent, after: int = 0) -> list[StreamRecord]:
    records = [stream_of(id, version, [event], Order) for version, event in enumerate(events, after + 1)]
    harness.store.append(records)
    return records


def test_a_row_takes_in_the_events_of_many_aggregates(orders: Harness) -> None:
    subscription = following(orders)
    orders.deliver(subscription, [*stored(orders, "a", order("ann", 3)), *stored(orders, "b", order("ann", 4))])
    orders.deliver(subscription, [*stored(orders, "c", order("bob", 5)), *stored(orders, "d", order("ann", 6))])
    assert totals() == {
        "ann": (3, Decimal(13), {"a": "3", "b": "4", "d": "6"}),
        "bob": (1, Decimal(5), {"c": "5"}),
    }
    assert checkpoints.read("default", NAME, list("abcd")) == dict.fromkeys("abcd", 1)


def test_an_event_without_a_key_changes_no_row_and_is_handled(orders: Harness) -> None:
    orders.deliver(following(orders), stored(orders, "a", order(None, 3), order("ann", 4)))
    assert totals() == {"ann": (1, Decimal(4), {"a": "4"})}
    assert orders.checkpoint(NAME, "a") == 2


def test_events_that_come_again_and_in_any_order_are_handled_once(orders: Harness) -> None:
    records = [one for id in "abc" for one in stored(orders, id, order("ann", 1), order("bob", 2), back("ann", 1))]
    for seed in range(3):
        subscription = following(orders)
        for record in shuffled(records, seed):
            orders.deliver(subscription, [record])
    assert totals() == {"bob": (3, Decimal(6), dict.fromkeys("abc", "2"))}


def test_a_deleted_row_is_made_anew_by_the_next_event_with_its_key(orders: Harness) -> None:
    subscription = following(orders)
    orders.deliver(subscription, stored(orders, "a", order("ann", 3), back("ann", 3), order("ann", 4)))
    assert totals() == {"ann": (1, Decimal(4), {"a": "4"})}
    orders.deliver(subscription, stored(orders, "a", back("ann", 4), order("ann", 5), after=3))
    assert totals() == {"ann": (1, Decimal(5), {"a": "5"})}
    orders.deliver(subscription, stored(orders, "a", back("ann", 5), after=5))
    assert totals() == {}


def test_several_fields_are_a_key_and_a_primary_key_is_counted(orders: Harness) -> None:
    subscription = following(orders, DailyTotals)
    orders.deliver(subscription, stored(orders, "a", order("ann", 3), order("ann", 4, day=2), order("bob", 5)))
    made = {(row.customer, row.day.day): (row.pk, row.made_at) for row in DailyTotal.objects.all()}
    orders.deliver(subscription, stored(orders, "b", order("ann", 6), back("bob", 1), back("cat", 1)))
    rows = {(row.customer, row.day.day): row for row in DailyTotal.objects.all()}
    assert {key: row.amount for key, row in rows.items()} == {("ann", 1): 9, ("ann", 2): 4, ("bob", 1): 4}
    assert {key: (row.pk, row.made_at) for key, row in rows.items()} == made
    assert orders.checkpoint(DailyTotals.name, "b") == 3, "an event that makes no row is handled, too"


def test_fields_that_go_into_no_array_are_stored_in_a_slower_way(orders: Harness) -> None:
    """A value that only the database knows, here a generated column, is looked up between two events."""
    subscription = following(orders, Racks)
    one, two = (str(UUID(int=number)) for number in (1, 2))
    orders.deliver(subscription, stored(orders, "a", order(one, 3), order(one, 4), order(two, 5)))
    first = {str(row.place): row for row in Rack.objects.all()}
    orders.deliver(subscription, stored(orders, "b", order(one.upper(), 6), back(two, 1), order(one, 7)))
    rows = {str(row.place): row for row in Rack.objects.all()}
    assert {place: (row.amounts, row.label, row.doubled) for place, row in rows.items()} == {
        one: ([3, 4, 6, 7], "new", 8),
        two: ([5], "returned", 2),
    }
    assert {place: (row.pk, row.made_at) for place, row in rows.items()} == {
        place: (row.pk, row.made_at) for place, row in first.items()
    }
    assert all(rows[place].changed_at > row.changed_at for place, row in first.items())


def test_a_failing_aggregate_is_parked_and_leaves_nothing_in_rows_that_it_shares(orders: Harness) -> None:
    def fail(event: DomainEvent) -> None:
        if event.aggregate_root_id == "b" and event.version == 2:
            raise RuntimeError("told to fail")

    trouble.happens = fail
    subscription = following(orders, attempts=1)
    records = [one for id in "abc" for one in stored(orders, id, order("ann", 1), order("ann", 2), order("bob", 4))]
    orders.deliver(subscription, records)
    assert orders.checkpoint(NAME, "b") == 1
    assert [(one.aggregate_root_id, one.version) for one in orders.parked(NAME)] == [("b", 2)]
    assert totals() == {
        "ann": (5, Decimal(7), {"a": "2", "b": "1", "c": "2"}),
        "bob": (2, Decimal(8), {"a": "4", "c": "4"}),
    }
    trouble.happens = lambda event: None
    assert retry_parked(subscription, "b") is None
    orders.deliver(subscription, records)
    assert totals() == {
        "ann": (6, Decimal(9), dict.fromkeys("abc", "2")),
        "bob": (3, Decimal(12), dict.fromkeys("abc", "4")),
    }
    assert orders.parked(NAME) == []


def test_a_parked_event_can_be_skipped(orders: Harness) -> None:
    trouble.happens = lambda event: 1 / (event.version - 1)
    subscription = following(orders, attempts=1)
    orders.deliver(subscription, stored(orders, "a", order("ann", 1), order("ann", 2)))
    assert totals() == {}
    assert skip_parked(subscription, "a") is None
    assert totals() == {"ann": (1, Decimal(2), {"a": "2"})}


def test_an_event_whose_value_the_database_refuses_is_parked_alone(orders: Harness) -> None:
    """Its row is also changed by others: they are tried without it."""
    subscription = following(orders, attempts=1)
    records = [
        *stored(orders, "a", order("ann", 1)),
        *stored(orders, "b", order("ann", 2), Renamed(customer="ann", text="longer than ten")),
        *stored(orders, "c", order("ann", 4), order("ann", 8)),
        *stored(orders, "d", order("much longer than twenty characters", 4)),
    ]
    orders.deliver(subscription, records)
    assert {(one.aggregate_root_id, one.version) for one in orders.parked(NAME)} == {("b", 2), ("d", 1)}
    assert {key: amount for key, (_, amount, _) in totals().items()} == {"ann": Decimal(15)}


def test_a_value_of_two_rows_that_must_be_unique_parks_the_later_aggregate(orders: Harness) -> None:
    subscription = following(orders, attempts=1)
    texts = [Renamed(customer=customer, text="taken") for customer in ("ann", "bob")]
    orders.deliver(subscription, stored(orders, "a", texts[0]))
    orders.deliver(subscription, [*stored(orders, "b", texts[1]), *stored(orders, "c", order("bob", 1))])
    assert [row.pk for row in CustomerTotal.objects.filter(text="taken")] == ["ann"]
    assert totals()["bob"] == (1, Decimal(1), {"c": "1"})


def test_a_new_row_may_take_a_unique_value_that_another_row_gives_up(orders: Harness) -> None:
    """Both are changed by one stream, so no smaller batch helps."""
    subscription = following(orders, attempts=1)
    orders.deliver(subscription, stored(orders, "a", Renamed(customer="ann", text="taken")))
    events = [Renamed(customer="ann", text="free"), Renamed(customer="bob", text="taken")]
    records = [stream_of("b", 1, events, Order)]
    orders.store.append(records)
    orders.deliver(subscription, records)
    assert dict(CustomerTotal.objects.values_list("customer", "text")) == {"ann": "free", "bob": "taken"}


def test_a_handler_that_changes_the_key_fails(orders: Harness) -> None:
    class Moving(CustomerTotals):
        name = "following.moving"
        abstract = True

        def ordered(self, row: CustomerTotal, event: Any) -> None:
            row.customer = "eve"

    orders.deliver(following(orders, Moving, attempts=1), stored(orders, "a", order("ann", 1)))
    assert "changed the key of a row from 'ann' to 'eve'" in orders.parked("following.moving")[0].error
    assert totals() == {}


def test_an_expression_that_names_a_column_is_refused(orders: Harness) -> None:
    """The stored row may be older than the row of the batch."""

    class Totals(CustomerTotals):
        name = "following.computed"
        abstract = True

        def ordered(self, row: CustomerTotal, event: Any) -> None:
            row.amount = event.amount if row._state.adding else F("amount") + event.amount

    class Shelves(Racks):
        name = "following.computed_shelves"
        abstract = True

        def ordered(self, row: Rack, event: Any) -> None:
            row.changes = 1 if row._state.adding else F("changes")

    for cls, key in ((Totals, "ann"), (Shelves, str(UUID(int=1)))):
        subscription = following(orders, cls, attempts=1)
        orders.deliver(subscription, stored(orders, f"first of {cls.name}", order(key, 1)))
        orders.deliver(subscription, stored(orders, f"next of {cls.name}", order(key, 2), order(key, 3)))
        (parked,) = orders.parked(cls.name)
        assert "names a column" in parked.error
    assert totals()["ann"][1] == Rack.objects.get().changes == 1


# -- any split --------------------------------------------------------------------------------------------------------

CUSTOMERS = st.sampled_from(["ann", "bob", None])


def histories(ids: str, amounts: list[str]) -> st.SearchStrategy[list[tuple[str, DomainEvent]]]:
    amount = st.sampled_from(amounts)
    event = st.one_of(st.builds(order, CUSTOMERS, amount), st.builds(back, st.sampled_from(["ann", "bob"]), amount))
    return st.lists(st.tuples(st.sampled_from(ids), event), min_size=2, max_size=12)


class NotingTotals(CustomerTotals):
    """Notes in the row whether its last order has made it."""

    name = "following.noting_totals"
    abstract = True

    def ordered(self, row: CustomerTotal, event: Any) -> None:
        super().ordered(row, event)
        row.text = f"{'new' if row._state.adding else 'old'} {row.customer}"


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    history=histories("x", ["1", "0.005", "-7.125", "3"]) | histories("xyz", ["1", "3"]),
    cuts=st.sets(st.integers(1, 11)),
)
def test_any_split_of_a_history_into_batches_gives_the_same_rows(
    orders: Harness, history: list[tuple[str, DomainEvent]], cuts: set[int]
) -> None:
    """Amounts are rounded between events as the column rounds them, which is not the same in every order of aggregates;
    rows are deleted and made again."""
    found = []
    for places in [[0, len(history)], sorted({0, len(history), *(cut for cut in cuts if cut < len(history))})]:
        CustomerTotal.objects.all().delete()
        subscription = following(orders, NotingTotals)
        prefix = new_id()  # aggregates of their own: nothing of them is handled
        versions: Counter[str] = Counter()
        for start, end in pairwise(places):
            records = []
            for id, event in history[start:end]:
                versions[id] += 1
                records.append(stream_of(f"{prefix}{id}", versions[id], [event], Order))
            orders.deliver(subscription, records)
        noted = ["text"] if len(versions) == 1 else []  # the order of aggregates decides which event makes a row
        found.append(sorted(CustomerTotal.objects.values_list("customer", "orders", "amount", *noted)))
    assert found[0] == found[1]


def test_a_row_that_is_looked_up_between_events_is_new_for_the_first_one_only(orders: Harness) -> None:
    class NotingRacks(Racks):
        name = "following.noting_racks"
        abstract = True

        def ordered(self, row: Rack, event: Any) -> None:
            row.amounts.append(int(row._state.adding))

    subscription, place = following(orders, NotingRacks), str(UUID(int=1))
    orders.deliver(subscription, stored(orders, "a", *[order(place, 1)] * 3))
    orders.deliver(subscription, stored(orders, "a", order(place, 1), after=3))
    assert Rack.objects.get().amounts == [1, 0, 0, 0]


class ComputedTotals(DailyTotals):
    """Gives rows values that go into no array."""

    name = "following.computed_totals"
    abstract = True

    def ordered(self, row: DailyTotal, event: Any) -> None:
        super().ordered(row, event)
        if not row._state.adding:
            row.amount = Value(int(row.amount))


@pytest.mark.parametrize("cls", [DailyTotals, ComputedTotals])
def test_a_field_that_is_set_when_a_row_is_made_is_set_by_the_first_event(
    orders: Harness, cls: type[DailyTotals]
) -> None:
    subscription = following(orders, cls)
    orders.deliver(subscription, stored(orders, "a", *[order("ann", amount) for amount in (1, 2, 3)]))
    orders.deliver(subscription, stored(orders, "a", order("ann", 4), after=3))
    assert (DailyTotal.objects.get().first, DailyTotal.objects.get().amount) == ("1", 10)


def test_a_new_row_is_in_a_database_for_the_next_event(orders: Harness) -> None:
    class PlacedTotals(CustomerTotals):
        name = "following.placed_totals"
        abstract = True

        def ordered(self, row: CustomerTotal, event: Any) -> None:
            row.largest[str(event.amount)] = row._state.db

    orders.deliver(following(orders, PlacedTotals), stored(orders, "a", order("ann", 1), order("ann", 2)))
    assert CustomerTotal.objects.get().largest == {"1": None, "2": "default"}


# -- crashes ----------------------------------------------------------------------------------------------------------


class Crash(BaseException):
    pass


def test_a_crash_at_any_statement_loses_nothing_and_doubles_nothing(
    orders: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each statement of a batch that makes, changes and deletes rows is the last one of a worker once."""
    first = [*stored(orders, "a", order("ann", 1)), *stored(orders, "b", order("bob", 2))]
    orders.deliver(following(orders), first)
    records = [
        *stored(orders, "a", order("ann", 4), after=1),
        *stored(orders, "b", back("bob", 2), after=1),
        *stored(orders, "c", order("cat", 8), order("ann", 16)),
    ]
    before = totals()
    crashed = 0
    while _crashes_after(orders, records, crashed, monkeypatch):
        assert totals() == before
        crashed += 1
    assert crashed > 8
    after = {"ann": (3, Decimal(21), {"a": "4", "c": "16"}), "cat": (1, Decimal(8), {"c": "8"})}
    assert totals() == after
    orders.deliver(following(orders), records)  # the commit succeeded, and the offsets were not committed
    assert totals() == after


def _crashes_after(
    harness: Harness, records: Sequence[StreamRecord], statements: int, monkeypatch: pytest.MonkeyPatch
) -> bool:
    """Handle the records, and crash after ``count`` statements. Return False if there were fewer."""
    import psycopg

    execute, left = psycopg.Cursor.execute, [statements]

    def counted(self: Any, *arguments: Any, **options: Any) -> Any:
        if not left[0]:
            raise Crash
        left[0] -= 1
        return execute(self, *arguments, **options)

    subscription = following(harness)
    with monkeypatch.context() as patched:
        patched.setattr(psycopg.Cursor, "execute", counted)
        try:
            harness.deliver(subscription, records)
        except Crash:
            connection.close()
            return True
    return False


# -- at the same time -------------------------------------------------------------------------------------------------


def in_threads(*calls: Callable[[], object]) -> None:
    def closed(call: Callable[[], object]) -> None:
        try:
            call()
        finally:
            connection.close()

    with ThreadPoolExecutor(len(calls)) as threads:
        for done in [threads.submit(closed, call) for call in calls]:
            done.result(60)


@pytest.mark.parametrize("keys", [1, 7])
def test_workers_that_meet_in_keys_lose_nothing(orders: Harness, keys: int) -> None:
    """The workers handle different aggregates and some common ones. All keys are new."""
    records = {
        id: stored(orders, id, *[order(f"c{(number + place) % keys}", 1) for place in range(4)])
        for number, id in enumerate(f"o{number}" for number in range(40))
    }
    ids = sorted(records)

    def work(some: Sequence[str]) -> None:
        harness = Harness()
        subscription = following(harness)
        for start in range(0, len(some), 5):
            harness.deliver(subscription, [one for id in some[start : start + 5] for one in records[id]])

    in_threads(lambda: work(ids[:25]), lambda: work(ids[:14:-1]))
    assert sum(amount for _, amount, _ in totals().values()) == 160
    assert len(totals()) == keys
    named = [id for _, _, largest in totals().values() for id in largest]
    assert sorted(named) == sorted(ids * min(keys, 4))


def test_two_that_make_the_same_row_wait_for_each_other(orders: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second finds no row either, and waits for the first, which makes it."""
    is_handling, may_go_on = threading.Event(), threading.Event()

    def wait(event: DomainEvent) -> None:
        if event.aggregate_root_id == "a":
            is_handling.set()
            assert may_go_on.wait(60)

    trouble.happens = wait
    one, two = stored(orders, "a", order("ann", 1)), stored(orders, "b", order("ann", 2))

    def first() -> None:
        harness = Harness()
        harness.deliver(following(harness), one)

    def second() -> None:
        assert is_handling.wait(60)
        harness = Harness()
        harness.deliver(following(harness), two)

    def watch() -> None:
        assert is_handling.wait(60)
        _until_somebody_waits()
        may_go_on.set()

    in_threads(first, second, watch)
    assert totals() == {"ann": (2, Decimal(3), {"a": "1", "b": "2"})}


def _until_somebody_waits() -> None:
    """Return when a session of this database waits for another one's transaction."""
    waiting = """
        SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'transactionid'
    """
    for _ in range(100_000):
        with connection.cursor() as cursor:
            cursor.execute(waiting)
            if cursor.fetchone()[0]:
                return
    raise AssertionError("nobody waits")


def test_a_failover_that_erased_events_is_reported_and_not_taken_back(orders: Harness) -> None:
    subscription = following(orders)
    orders.deliver(subscription, stored(orders, "a", order("ann", 1), order("ann", 2)))
    processor = subscription.runner.processor
    with transaction.atomic():
        assert processor.claimed(["a"]) == {"a": 2}
        assert processor.take_back({"a": 1}) is False
    assert orders.checkpoint(NAME, "a") == 1
    assert totals()["ann"][0] == 2, "the row keeps what cannot be taken back; a rebuild makes it anew"


def test_an_error_of_the_connection_is_no_failure_of_an_aggregate(orders: Harness) -> None:
    left = [OperationalError("gone")]

    def fail(event: DomainEvent) -> None:
        if left:
            raise left.pop()

    trouble.happens = fail
    subscription = following(orders)
    records = [*stored(orders, "a", order("ann", 1)), *stored(orders, "b", order("ann", 2))]
    orders.deliver(subscription, records)
    orders.clock.now += 100
    subscription.retry_due()
    assert totals() == {"ann": (2, Decimal(3), {"a": "1", "b": "2"})}
