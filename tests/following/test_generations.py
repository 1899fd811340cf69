"""A generation of the store begins: aggregates are compared with the store, and nothing is handled twice."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime

import pytest
from django.db import connection, transaction
from psycopg.errors import LockNotAvailable

from enode_django.eventing import checkpoints, failovers, parking
from enode_django.eventing.pending import PendingAggregate
from enode_django.eventing.registry import subscribers
from enode_django.eventing.unparking import retry_parked
from enode_django.eventstore.base import Part, StreamRecord
from enode_django.eventstore.positions import Position
from enode_django.eventstore.postgres import PostgresEventStore
from enode_django.exceptions import StoreUnavailable, SubscriberUnavailable
from enode_django.models import GenerationCheck, HandledRefusal, StoreGeneration
from enode_django.monitoring.work import ask_parked
from enode_django.runtime import replay
from tests.acceptance.waiting import last_for
from tests.following.domain import Added, Behaviour, CounterRows, Entries, Kindness, Opened, TooMuch, handler_group
from tests.following.harness import Harness, stream_of
from tests.following.orders import CustomerTotals, Order, order, totals
from tests.following.test_sweeping import ALL, Sweep, restore
from tests.integration.store_sessions import bare_session


class Flickers(PostgresEventStore):
    """While ``flickers``, every second query of heads or rows raises `StoreUnavailable`. ``asked`` has the beginnings
    of the ranges that were answered."""

    def __init__(self) -> None:
        super().__init__()
        self.flickers = False
        self.asked: list[Position | str] = []
        self._times = 0

    def _ask_or_fail(self, about: Position | str) -> None:
        self._times += self.flickers
        if self._times % 2:
            raise StoreUnavailable("it flickers")
        self.asked.append(about)

    def settled(self, after: Position, before: Position, *, limit: int) -> Part:
        self._ask_or_fail(after)
        return super().settled(after, before, limit=limit)

    def heads_before(self, aggregate_root_ids: Iterable[str], position: Position) -> Mapping[str, int]:
        ids = sorted(aggregate_root_ids)
        self._ask_or_fail(ids[0])
        return super().heads_before(ids, position)


def swept_again(sweep: Sweep, harness: Harness) -> None:
    harness.clock.now += 60.0
    sweep.run(200)


def begin_generation(harness: Harness) -> None:
    harness.store.begin_generation(harness.store.position().generation)


def test_refusals_that_were_swept_are_not_handled_again(harness: Harness) -> None:
    sweep = Sweep(harness, subscribers.instance(Kindness))
    harness.refused("c", TooMuch("no", amount=1))
    sweep.run()
    assert len(harness.sent) == 1
    HandledRefusal.objects.all().delete()  # as the pruning does after a day
    restore()
    harness.refused("d", TooMuch("no", amount=2))
    swept_again(sweep, harness)
    assert [command.amount for command in harness.sent] == [1, 2]  # type: ignore[attr-defined]


def test_versions_below_what_was_swept_are_compared_again(harness: Harness, behaviour: Behaviour) -> None:
    sweep = Sweep(harness, subscribers.instance(Entries))
    harness.stored("c", Added(amount=1))
    sweep.run()
    checkpoints.forget("default", sweep.name, ["c"])
    swept_again(sweep, harness)
    assert behaviour.calls == ["c/1/0"]
    restore()
    swept_again(sweep, harness)
    assert behaviour.calls == ["c/1/0", "c/1/0"]


def test_a_comparison_goes_on_where_the_store_was_away(
    harness: Harness, behaviour: Behaviour, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("enode_django.eventing.sweep.ROWS_AT_ONCE", 3)
    store = harness.store = Flickers()
    for number in range(12):
        harness.stored(f"c{number:02}", Added(amount=1))
    sweep = Sweep(harness, subscribers.instance(Entries))
    sweep.run(100)
    begin_generation(harness)
    store.flickers = True
    store.asked.clear()
    for _ in range(200):
        harness.clock.now += 1.0
        try:
            sweep.subscription.tick(ALL)
        except SubscriberUnavailable:
            continue
    assert [asked for asked in store.asked if isinstance(asked, str)] == ["c00", "c03", "c06", "c09"]
    rows = [asked for asked in store.asked if isinstance(asked, Position)]
    assert len(rows) >= 4
    assert rows == sorted(set(rows))  # none twice
    known = failovers.known("default", sweep.name)[0]
    assert known.is_healed
    assert not GenerationCheck.objects.exists()


def test_a_batch_under_way_is_waited_for(harness: Harness, behaviour: Behaviour) -> None:
    sweep = Sweep(harness, subscribers.instance(CounterRows))
    harness.stored("c", Added(amount=1))
    sweep.run()
    with bare_session() as late:
        late.execute("SELECT FROM following_counterrow WHERE aggregate_root_id = 'c' FOR UPDATE")
        begin_generation(harness)
        late.execute("UPDATE following_counterrow SET version = 7, total = 70")
        swept_again(sweep, harness)
        assert not failovers.known("default", sweep.name)[0].is_healed
        late.commit()
    swept_again(sweep, harness)
    assert harness.rows() == {"c": ("", 1, 1)}


def test_no_generation_is_noted_until_a_batch_that_has_asked_for_them_ends(harness: Harness) -> None:
    checkpoints.subscribe("default", "any", 0, Position(1, 1))
    with bare_session() as other:
        with transaction.atomic():
            assert failovers.generations_cursor("default", "any").fetchall() == [(0, 1)]
            with pytest.raises(LockNotAvailable):
                other.execute("SELECT FROM enode_django_subscription FOR NO KEY UPDATE NOWAIT")
            other.rollback()
        other.execute("SELECT FROM enode_django_subscription FOR NO KEY UPDATE NOWAIT")
        other.rollback()


def test_an_event_that_is_still_stored_stays_parked_with_the_time_since_it_fails(harness: Harness) -> None:
    since = datetime(2026, 1, 1, tzinfo=UTC)
    for id, version in (("kept", 2), ("erased", 3)):
        row = parking.Parked("any", "following.Counter", id, version, "any", "ValueError", "", 1, since, since)
        parking.park("default", row)
    checks = {id: failovers.Check(stored=2, handled=2) for id in ("kept", "erased")}
    failovers.save_checks("default", "any", 0, 1, checks, taken_back=False)
    assert [(row.aggregate_root_id, row.first_failed_at) for row in harness.parked("any")] == [("kept", since)]


def ahead(harness: Harness, *lost: StreamRecord) -> None:
    """Delete the newest rows of the store, as if a standby had never got them, and begin a generation."""
    with connection.cursor() as cursor:
        for record in lost:
            cursor.execute("DELETE FROM enode_django_eventstream WHERE command_id = %s", [record.command_id])
    begin_generation(harness)


def test_two_failovers_before_anything_is_compared(harness: Harness, behaviour: Behaviour) -> None:
    """The versions that the first failover lost were stored again before the second."""
    sweep = Sweep(harness, subscribers.instance(CounterRows))
    records = harness.stored("c", Added(amount=1), Added(amount=10), Added(amount=10))
    harness.deliver(sweep.subscription, records)
    ahead(harness, *records[1:])
    harness.stored("c", Added(amount=100), Added(amount=100), Added(amount=100), after=1)
    begin_generation(harness)
    swept_again(sweep, harness)
    assert harness.rows() == {"c": ("", 301, 4)}


def test_what_was_healed_already_is_held_against_the_second_failover_only(
    harness: Harness, behaviour: Behaviour
) -> None:
    sweep = Sweep(harness, handler_group())
    harness.deliver(sweep.subscription, harness.stored("c", Added(amount=1)))
    begin_generation(harness)
    harness.clock.now += 2.0
    harness.deliver(sweep.subscription, harness.stored("c", Added(amount=2), after=1))
    assert GenerationCheck.objects.count() == 1
    begin_generation(harness)
    swept_again(sweep, harness)
    assert not GenerationCheck.objects.exists()
    assert [call for call in behaviour.calls if call != "second"] == ["c/1/0", "c/2/0"]


def test_an_event_handler_whose_batch_was_under_way_is_asked_again(
    harness: Harness, behaviour: Behaviour, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise its checkpoint could cover new events that took the place of lost ones."""
    sweep = Sweep(harness, handler_group())
    handle = behaviour.handle

    def overtaken(event: Added) -> None:
        if not behaviour.calls:
            failovers.notice("default", sweep.name, 0, 2**40)
        handle(event)

    monkeypatch.setattr(behaviour, "handle", overtaken)
    harness.deliver(sweep.subscription, harness.stored("c", Added(amount=1)))
    assert [call for call in behaviour.calls if call != "second"] == ["c/1/0", "c/1/0"]
    assert GenerationCheck.objects.get().generation == 2**40


def test_a_projection_that_cannot_be_taken_back_is_reported_and_goes_on(
    harness: Harness, behaviour: Behaviour, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(Entries, "aggregate_field", "")
    sweep = Sweep(harness, subscribers.instance(Entries))
    records = harness.stored("c", Added(amount=1), Added(amount=10))
    harness.deliver(sweep.subscription, records)
    ahead(harness, records[1])
    harness.stored("c", Added(amount=100), after=1)
    with caplog.at_level(logging.ERROR, logger="enode_django.subscribers"):
        swept_again(sweep, harness)
    assert "has handled versions 2 to 2 of c, which are not stored any more" in caplog.text
    assert harness.entries("c") == [(1, 1), (2, 10), (2, 100)]
    assert GenerationCheck.objects.values_list("handled_version", "stored_version", "taken_back").get() == (2, 1, False)


def test_a_row_of_many_aggregates_cannot_be_taken_back_and_a_rebuild_is_asked_for(
    orders: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    sweep = Sweep(orders, subscribers.instance(CustomerTotals))
    events = [order("ann", 1), order("ann", 10)]
    records = [stream_of("c", version, [event], Order) for version, event in enumerate(events, 1)]
    orders.store.append(records)
    orders.deliver(sweep.subscription, records)
    ahead(orders, records[1])
    orders.store.append([stream_of("c", 2, [order("ann", 100)], Order)])
    with (
        subscribers.only(CustomerTotals),
        caplog.at_level(logging.ERROR, logger="enode_django.subscribers"),
    ):
        swept_again(sweep, orders)
        (problem,) = ask_parked().problems
    assert "versions 2 to 2 of c, which are not stored any more, and cannot take that back; rebuild it" in caplog.text
    assert "rebuild it (manage.py rebuildprojection following.customer_totals --accept-differences)" in problem.reason
    assert totals()["ann"][1] == 111, "it goes on, with what was lost in its row"


def test_an_aggregate_parked_at_an_event_that_is_lost_goes_on(harness: Harness, behaviour: Behaviour) -> None:
    sweep = Sweep(harness, subscribers.instance(CounterRows))
    first, lost = harness.stored("c", Added(amount=1), Added(amount=10))
    harness.deliver(sweep.subscription, [first])
    behaviour.failing["c"] = 2
    harness.deliver(sweep.subscription, [lost])
    harness.clock.now += 5.0
    sweep.subscription.retry_due()
    assert harness.parked(sweep.name)
    ahead(harness, lost)
    new = harness.stored("c", Added(amount=100), after=1)
    harness.clock.now += 2.0
    harness.deliver(sweep.subscription, new)
    swept_again(sweep, harness)
    assert not harness.parked(sweep.name)
    assert harness.rows() == {"c": ("", 101, 2)}


def test_a_refusal_that_waits_behind_an_event_that_is_lost_is_handled(harness: Harness, behaviour: Behaviour) -> None:
    sweep = Sweep(harness, subscribers.instance(Kindness))
    first, lost = harness.stored("c", Added(amount=1), Opened(owner="ann"))
    harness.deliver(sweep.subscription, [first])
    behaviour.failing["c"] = 2
    harness.deliver(sweep.subscription, [lost])
    harness.clock.now += 5.0
    sweep.subscription.retry_due()
    assert [row.version for row in harness.parked(sweep.name)] == [2]
    ahead(harness, lost)
    harness.deliver(sweep.subscription, [harness.refused("c", TooMuch("no", amount=1))])
    swept_again(sweep, harness)
    harness.deliver(sweep.subscription, harness.stored("c", Opened(owner="bob"), after=1))
    swept_again(sweep, harness)
    assert harness.parked(sweep.name) == []
    assert [command.aggregate_root_id for command in harness.sent] == ["guest-c", "guest-bob", "guest-bob"]


def test_nothing_is_taken_back_when_the_store_has_nothing_of_very_much(
    harness: Harness, behaviour: Behaviour, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The settings may name another database by mistake."""
    monkeypatch.setattr("enode_django.eventing.erased_events.LOST_AT_ONCE", 3)
    sweep = Sweep(harness, subscribers.instance(CounterRows))
    records = [record for id in "abc" for record in harness.stored(id, Added(amount=1))]
    harness.deliver(sweep.subscription, records)
    ahead(harness, *records)
    with caplog.at_level(logging.ERROR, logger="enode_django.subscribers"):
        swept_again(sweep, harness)
    assert "has handled 3 aggregates of which shard default of the event store has none" in caplog.text
    assert len(harness.rows()) == 3


# -- events of a generation that nobody has heard of ------------------------------------------------------------------


def heals_without_handling_again(sweep: Sweep, harness: Harness, behaviour: Behaviour) -> None:
    assert sorted({*behaviour.calls} - {"second"}) == ["c/1/0", "c/2/0"]
    behaviour.calls.clear()
    swept_again(sweep, harness)
    assert failovers.known("default", sweep.name)[0].is_healed
    assert behaviour.calls == []
    assert not GenerationCheck.objects.exists()


@pytest.fixture(params=["following.entries", "following.handlers"])
def handled(request: pytest.FixtureRequest, harness: Harness, behaviour: Behaviour) -> Sweep:
    """A subscriber that has handled version 1 of "c" before a generation began."""
    every = [subscribers.instance(Entries), handler_group()]
    sweep = Sweep(harness, next(one for one in every if one.name == request.param))
    harness.deliver(sweep.subscription, harness.stored("c", Added(amount=1)))
    return sweep


def test_events_that_their_caller_hands_over_are_not_handled_again(
    harness: Harness, behaviour: Behaviour, handled: Sweep
) -> None:
    """As without a queue, where nobody looks for generations before."""
    begin_generation(harness)
    connection.close()  # as a failover does
    records = harness.stored("c", Added(amount=2), after=1)
    handled.subscription.follow(records, harness.store.generation_of("c"))
    heals_without_handling_again(handled, harness, behaviour)


def test_events_that_are_read_from_the_store_are_not_handled_again(
    harness: Harness, behaviour: Behaviour, handled: Sweep
) -> None:
    begin_generation(harness)
    harness.stored("c", Added(amount=2), after=1)
    handled.subscription.catch_up([PendingAggregate("c", "following.Counter", 2)])
    heals_without_handling_again(handled, harness, behaviour)


class BeginsLater(PostgresEventStore):
    """Another generation that begins after one that was rolled back has another number, which has the second."""

    def position(self) -> Position:
        position = super().position()
        if connection.in_atomic_block:
            last_for(1.1)
        return position


def test_a_generation_that_a_batch_finds_is_one_that_the_store_has(
    harness: Harness, behaviour: Behaviour, handled: Sweep
) -> None:
    """It begins inside the batch's transaction, which is rolled back. The comparison begins another one, for good."""
    harness.stored("c", Added(amount=2), after=1)
    StoreGeneration.unprotected.update(cluster="elsewhere")
    handled.subscription.runner.processor.store = BeginsLater()
    handled.subscription.catch_up([PendingAggregate("c", "following.Counter", 2)])
    (known,) = failovers.known("default", handled.name).values()
    assert StoreGeneration.objects.filter(generation=known.generation).exists()
    heals_without_handling_again(handled, harness, behaviour)


def test_events_that_a_retry_by_hand_handles_are_not_handled_again(
    harness: Harness, behaviour: Behaviour, handled: Sweep
) -> None:
    behaviour.failing["c"] = 1
    begin_generation(harness)
    harness.stored("c", Added(amount=2), after=1)
    now = datetime.now(UTC)
    row = parking.Parked(handled.name, "following.Counter", "c", 2, "any", "ValueError", "", 1, now, now)
    parking.park("default", row)
    assert retry_parked(handled.subscription, "c") is not None
    assert retry_parked(handled.subscription, "c") is None
    heals_without_handling_again(handled, harness, behaviour)


def test_replayed_events_are_not_handled_again(harness: Harness, behaviour: Behaviour) -> None:
    sweep = Sweep(harness, subscribers.instance(Entries))
    harness.deliver(sweep.subscription, harness.stored("c", Added(amount=1)))
    begin_generation(harness)
    harness.stored("c", Added(amount=2), after=1)
    assert replay(sweep.name) == {sweep.name: 1}
    heals_without_handling_again(sweep, harness, behaviour)
