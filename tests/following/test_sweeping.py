"""A sweep finds streams in the store that no message ever announced."""

from __future__ import annotations

import psycopg
import pytest
from django.db import connection

from enode_django.bus.messages import encode_published
from enode_django.concurrency.backoff import once
from enode_django.equeue.messages import Commit
from enode_django.equeue.transports.memory import MemoryTransport
from enode_django.eventing import checkpoints
from enode_django.eventing.in_flight import InFlight
from enode_django.eventing.registry import subscribers
from enode_django.eventing.retry_decisions import RetryPolicy
from enode_django.eventing.runner import Runner
from enode_django.eventing.subscribers import Subscriber
from enode_django.eventing.sweep import FORGET_REFUSALS, SweepingSubscription
from enode_django.eventstore.positions import BEGINNING, Position
from enode_django.models import HandledRefusal, StoreGeneration, Subscription
from enode_django.runtime import make_processor
from tests.following.domain import (
    Added,
    Behaviour,
    CounterRows,
    Entries,
    Guest,
    Kindness,
    Opened,
    Thanked,
    TooMuch,
    handler_group,
)
from tests.following.harness import Harness, stream_of

ALL = frozenset({0, 1})


class Sweep:
    """A sweeping subscription for a topic of two queues in memory."""

    def __init__(self, harness: Harness, subscriber: Subscriber, in_flight: InFlight | None = None) -> None:
        self.harness = harness
        self.transport = MemoryTransport()
        self.transport.create_topic("events", 2)
        self.name = subscriber.name
        self.lease = self.transport.acquire(self.name, "events", 0, "me", 1e6)
        self.subscription = SweepingSubscription(
            Runner(make_processor(subscriber, harness.store, harness._send), once, in_flight),
            policy=RetryPolicy(2, 1.0),
            notify=harness.notices.extend,
            transport=self.transport,
            topic="events",
            interval=30.0,
            clock=harness.clock,
        )
        self.subscription.begin()

    def swept(self) -> Position:
        subscription = checkpoints.subscription("default", self.name, 0)
        assert subscription is not None
        return subscription.swept_position

    def run(self, rounds: int = 60) -> None:
        """Retry and tick in ``rounds`` rounds, half a second apart: by default enough for a whole sweep."""
        for _ in range(rounds):
            self.subscription.retry_due()
            self.subscription.tick(ALL)
            self.harness.clock.now += 0.5


def every_kind() -> list[Subscriber]:
    return [
        subscribers.instance(CounterRows),
        subscribers.instance(Entries),
        subscribers.instance(Kindness),
        handler_group(),
    ]


@pytest.fixture(params=range(4), ids=["rows", "entries", "kindness", "handlers"])
def subscriber(request: pytest.FixtureRequest) -> Subscriber:
    return every_kind()[request.param]


def test_a_lost_tail_is_fetched_from_the_store(harness: Harness, subscriber: Subscriber) -> None:
    harness.stored("c", Opened(owner="ann"), Added(amount=2))
    harness.stored("d", Opened(owner="bea"))
    sweep = Sweep(harness, subscriber)
    sweep.run()
    assert sweep.subscription.runner.processor.positions(["c", "d"]) == {"c": 2, "d": 1}
    assert sweep.swept() > BEGINNING


def test_the_next_sweep_looks_at_what_is_new_only(harness: Harness, behaviour: Behaviour) -> None:
    sweep = Sweep(harness, subscribers.instance(Entries))
    harness.stored("c", Added(amount=1))
    sweep.run()
    first = sweep.swept()
    harness.stored("c", Added(amount=2), after=1)
    harness.stored("d", Added(amount=3))
    harness.clock.now += 30.0
    sweep.run()
    assert behaviour.calls == ["c/1/0", "c/2/0", "d/1/0"]
    assert sweep.swept() > first


def test_it_waits_until_the_queue_is_worked_off(harness: Harness, behaviour: Behaviour) -> None:
    (record,) = harness.stored("c", Added(amount=1))
    sweep = Sweep(harness, subscribers.instance(Entries))
    sweep.transport.send("events", {0: [encode_published(record)]})
    sweep.run()
    assert behaviour.calls == []
    sweep.transport.commit(sweep.name, "events", {0: Commit(sweep.lease.epoch, 1)})
    sweep.run()
    assert behaviour.calls == ["c/1/0"]


def test_it_does_not_wait_for_messages_that_are_gone(harness: Harness, behaviour: Behaviour) -> None:
    """The queue may have lost them, or deleted them before the subscriber began."""
    (record,) = harness.stored("c", Added(amount=1))
    sweep = Sweep(harness, subscribers.instance(Entries))
    sweep.transport.send("events", {0: [encode_published(record)]})
    sweep.transport._queues["events"][0].trim(1)
    assert sweep.transport.committed(sweep.name, "events")[0] < sweep.transport.end_offsets("events")[0]
    sweep.run()
    assert behaviour.calls == ["c/1/0"]


def test_only_the_owner_of_the_first_queue_sweeps(harness: Harness, behaviour: Behaviour) -> None:
    harness.stored("c", Added(amount=1))
    sweep = Sweep(harness, subscribers.instance(Entries))
    for _ in range(10):
        sweep.subscription.tick(frozenset({1}))
        harness.clock.now += 30.0
    assert behaviour.calls == []


def test_more_rows_than_one_look_takes_are_swept_in_parts(
    harness: Harness, behaviour: Behaviour, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("enode_django.eventing.sweep.ROWS_AT_ONCE", 3)
    for number in range(20):
        harness.stored(f"c{number:02}", *(Added(amount=n) for n in range(1 + number % 5)))
    sweep = Sweep(harness, subscribers.instance(Entries))
    sweep.run(200)
    assert len(behaviour.calls) == sum(1 + number % 5 for number in range(20))


def test_aggregates_that_are_not_followed_are_left_alone(harness: Harness, subscriber: Subscriber) -> None:
    harness.store.append([stream_of("guest", 1, [Thanked()], Guest)])
    sweep = Sweep(harness, subscriber)
    sweep.run()
    assert harness.checkpoint(subscriber.name, "guest") is None
    assert sweep.swept() > BEGINNING


def test_refusals_that_were_never_announced_are_handled_once(harness: Harness) -> None:
    announced = harness.refused("c", TooMuch("no", amount=1))
    harness.refused("d", TooMuch("no", amount=2))
    sweep = Sweep(harness, subscribers.instance(Kindness))
    harness.deliver(sweep.subscription, [announced])
    sweep.run()
    assert sorted(command.amount for command in harness.sent) == [1, 2]  # type: ignore[attr-defined]
    harness.clock.now += 30.0
    sweep.run()
    assert len(harness.sent) == 2


def test_handled_refusals_are_forgotten_after_a_while(harness: Harness) -> None:
    sweep = Sweep(harness, subscribers.instance(Kindness))
    harness.deliver(sweep.subscription, [harness.refused("c", TooMuch("no", amount=1))])
    assert HandledRefusal.objects.count() == 1
    HandledRefusal.objects.update(handled_at="2020-01-01T00:00:00Z")
    sweep.run()
    assert HandledRefusal.objects.count() == 0


def test_more_refusals_than_one_portion_are_forgotten(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("enode_django.eventing.sweep.ROWS_AT_ONCE", 2)
    sweep = Sweep(harness, subscribers.instance(Kindness))
    harness.deliver(sweep.subscription, [harness.refused(id, TooMuch("no", amount=1)) for id in "abcde"])
    HandledRefusal.objects.update(handled_at="2020-01-01T00:00:00Z")
    sweep.run()
    assert HandledRefusal.objects.count() == 0


def test_handled_refusals_are_remembered_while_a_transaction_holds_the_sweep_back(harness: Harness) -> None:
    sweep = Sweep(harness, subscribers.instance(Kindness))
    with psycopg.connect(**connection.get_connection_params()) as other:
        other.execute("SELECT pg_current_xact_id()")
        sweep.run()
        harness.deliver(sweep.subscription, [harness.refused("c", TooMuch("no", amount=1))])
        HandledRefusal.objects.update(handled_at="2020-01-01T00:00:00Z")
        harness.clock.now += 2 * FORGET_REFUSALS
        sweep.run()
    harness.clock.now += 30.0
    sweep.run()
    assert len(harness.sent) == 1, "it was not handled again"
    assert HandledRefusal.objects.count() == 0


def test_handled_refusals_are_remembered_if_the_sweep_came_further_but_not_to_them(harness: Harness) -> None:
    sweep = Sweep(harness, subscribers.instance(Kindness))
    with psycopg.connect(**connection.get_connection_params()) as later:
        with psycopg.connect(**connection.get_connection_params()) as earlier:
            for one in (earlier, later):
                one.execute("SELECT pg_current_xact_id()")
            sweep.run()
            harness.deliver(sweep.subscription, [harness.refused("c", TooMuch("no", amount=1))])
        HandledRefusal.objects.update(handled_at="2020-01-01T00:00:00Z")
        harness.clock.now += 30.0
        sweep.run()
    harness.clock.now += 30.0
    sweep.run()
    assert len(harness.sent) == 1, "it was not handled again"
    assert HandledRefusal.objects.count() == 0


def test_the_sweep_does_not_pass_an_aggregate_that_is_set_aside(harness: Harness, behaviour: Behaviour) -> None:
    """Otherwise a crash would lose events that only the sweep has found."""
    behaviour.failing["c"] = 1
    harness.stored("c", Added(amount=1))
    sweep = Sweep(harness, subscribers.instance(Entries))
    sweep.subscription.retry_due()
    sweep.subscription.tick(ALL)
    assert sweep.subscription.next_retry is not None
    assert sweep.swept() == BEGINNING
    sweep.run()
    assert behaviour.calls == ["c/1/0"]
    assert sweep.swept() > BEGINNING


def test_what_is_parked_does_not_stop_the_sweep(harness: Harness, behaviour: Behaviour) -> None:
    behaviour.failing["c"] = 1_000
    harness.stored("c", Added(amount=1))
    harness.stored("d", Added(amount=1))
    sweep = Sweep(harness, subscribers.instance(Entries))
    sweep.run()
    assert behaviour.calls == ["d/1/0"]
    assert len(harness.parked("following.entries")) == 1
    assert sweep.swept() > BEGINNING


def test_a_process_manager_that_starts_now_sweeps_only_what_came_later(harness: Harness, behaviour: Behaviour) -> None:
    harness.stored("old", Added(amount=1))
    sweep = Sweep(harness, handler_group(start="now"))
    harness.stored("new", Added(amount=2))
    harness.stored("old", Added(amount=3), after=1)
    sweep.run()
    assert sorted(call for call in behaviour.calls if call != "second") == ["new/1/0", "old/2/0"]


# After a restore


def restore() -> None:
    """Record another cluster, as if the database had been restored, and close the session."""
    StoreGeneration.unprotected.update(cluster="another/1")
    connection.close()


def test_after_a_restore_everything_is_compared_again(harness: Harness, behaviour: Behaviour) -> None:
    sweep = Sweep(harness, subscribers.instance(Entries))
    harness.stored("c", Added(amount=1), Added(amount=2))
    sweep.run()
    ahead = 2**40
    Subscription.objects.update(swept_position=ahead)
    checkpoints.forget("default", sweep.name, ["c"])
    restore()
    harness.stored("c", Added(amount=3), after=2)
    harness.clock.now += 30.0
    sweep.run(200)
    assert behaviour.calls == ["c/1/0", "c/2/0", "c/1/0", "c/2/0", "c/3/0"]
    assert sweep.swept() > Position(0, ahead)
    assert sweep.swept().generation == harness.store.position().generation > 0
    harness.clock.now += 30.0
    sweep.run(200)
    assert len(behaviour.calls) == 5


def test_a_store_that_was_set_back_unnoticed_is_compared_again(harness: Harness, behaviour: Behaviour) -> None:
    """A copy of the files was put in place: the cluster is the same, and only the subscription shows the restore."""
    sweep = Sweep(harness, subscribers.instance(Entries))
    harness.store.position()
    Subscription.objects.update(swept_position=2**40)
    harness.stored("c", Added(amount=1))
    sweep.run(200)
    assert behaviour.calls == ["c/1/0"]
    assert sweep.swept() > Position(0, 2**40)
    assert StoreGeneration.objects.count() == 2
    harness.stored("c", Added(amount=2), after=1)
    harness.clock.now += 30.0
    sweep.run(200)
    assert behaviour.calls == ["c/1/0", "c/2/0"]
    assert StoreGeneration.objects.count() == 2


def test_a_goal_behind_what_another_worker_swept_is_no_restore(harness: Harness, behaviour: Behaviour) -> None:
    sweep = Sweep(harness, subscribers.instance(Entries))
    (record,) = harness.stored("c", Added(amount=1))
    sweep.transport.send("events", {0: [encode_published(record)]})
    sweep.run(2)  # the sweep has a goal now, and waits for the queue
    harness.stored("d", Added(amount=1))
    checkpoints.save_swept("default", sweep.name, 0, harness.store.position())
    sweep.transport.commit(sweep.name, "events", {0: Commit(sweep.lease.epoch, 1)})
    sweep.run()
    assert StoreGeneration.objects.filter(generation__gt=0).count() == 0


def test_who_began_now_takes_nothing_new_as_handled_after_a_restore(harness: Harness, behaviour: Behaviour) -> None:
    harness.stored("old", Added(amount=1))
    Sweep(harness, handler_group(start="now"))
    Subscription.objects.update(start_position=2**40, swept_position=2**40)
    restore()
    harness.stored("new", Added(amount=2))
    harness.stored("old", Added(amount=3), after=1)
    Sweep(harness, handler_group(start="now")).run(200)
    assert sorted(call for call in behaviour.calls if call != "second") == ["new/1/0", "old/2/0"]
