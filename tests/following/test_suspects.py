"""The notes of a subscriber about what it handles, and the suspects that they name after the death of its worker.

In these tests a death is an error that no code catches. The notes stay as they are, as those of a killed process do.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence

import pytest
from django.db import transaction

from enode_django.concurrency.in_flight import NOTHING_IN_FLIGHT, position_of, queue_and_offset
from enode_django.domain.messages import DomainEvent
from enode_django.domain.refusals import DomainException
from enode_django.eventing.event_subscription import EventSubscription
from enode_django.eventing.in_flight import InFlight, is_of_a_sweep
from enode_django.eventing.registry import subscribers
from enode_django.eventing.subscribers import Subscriber
from enode_django.eventing.unparking import retry_parked
from enode_django.eventstore.base import StreamRecord
from enode_django.eventstore.postgres import PostgresEventStore
from tests.following.domain import Added, Behaviour, CounterRows, Entries, Kindness, Opened, TooMuch, handler_group
from tests.following.harness import Harness
from tests.following.test_sweeping import Sweep

MAX_DEATHS = 3


class Death(BaseException):
    """The death of a worker."""


def every_kind() -> list[Subscriber]:
    return [subscribers.instance(CounterRows), subscribers.instance(Entries), handler_group()]


@pytest.fixture(params=range(3), ids=["rows", "entries", "handlers"])
def subscriber(request: pytest.FixtureRequest) -> Subscriber:
    return every_kind()[request.param]


@pytest.fixture(autouse=True)
def usual_handlers(behaviour: Behaviour) -> Iterator[None]:
    yield
    vars(behaviour).pop("handle", None)


class Deadly:
    """Handlers whose worker dies at the events ``ids``. ``calls`` has the noted position at each call, ``deaths`` the
    number of deaths by offset."""

    def __init__(self, behaviour: Behaviour, *ids: str) -> None:
        self.ids = ids
        self.note = [NOTHING_IN_FLIGHT, 0]
        self.calls: list[tuple[str, int]] = []
        self.steps: set[int] = set()
        self.deaths: dict[int, int] = {}
        behaviour.handle = self._handle  # type: ignore[method-assign]

    def in_flight(self, suspects: threading.Lock | None = None) -> InFlight:
        return InFlight(self.note, suspects, max_deaths=MAX_DEATHS)

    def _handle(self, event: DomainEvent | DomainException) -> None:
        self.calls.append((event.id, self.note[0]))
        self.steps.add(self.note[1])
        if event.id in self.ids:
            _, offset = queue_and_offset(self.note[0])
            self.deaths[offset] = self.deaths.get(offset, 0) + 1
            raise Death(event.id)


def new_follower(harness: Harness, subscriber: Subscriber, deadly: Deadly) -> EventSubscription:
    """Return the subscription of a worker that has just acquired the queue, and has learned of the deaths."""
    subscription = harness.subscription(subscriber, in_flight=deadly.in_flight())
    subscription.suspect(0, dict(deadly.deaths))
    return subscription


def deliver(harness: Harness, subscription: EventSubscription, records: Sequence[StreamRecord]) -> None:
    """Deliver records from offset 0 on, as the queue does after a death."""
    harness.window = type(harness.window)("events", 0, epoch=1, committed=0, deadline=1e9)
    harness.deliver(subscription, records)


def added(harness: Harness, *ids: str) -> list[StreamRecord]:
    return [record for id in ids for record in harness.stored(id, Added(amount=1))]


def test_each_stream_is_noted_with_a_step_of_its_own_and_nothing_is_noted_afterwards(
    harness: Harness, behaviour: Behaviour, subscriber: Subscriber
) -> None:
    deadly = Deadly(behaviour)
    records = harness.stored("c", Added(amount=1), Added(amount=2)) + added(harness, "d")
    harness.deliver(new_follower(harness, subscriber, deadly), records)
    first, second = position_of(0, 0), position_of(0, 2)
    assert deadly.calls == [("c/1/0", first), ("c/2/0", first), ("d/1/0", second)]
    assert len(deadly.steps) == 3
    assert deadly.note[0] == NOTHING_IN_FLIGHT


def test_what_a_worker_died_at_is_handled_alone_after_all_else_and_parked_when_it_kills_again_and_again(
    harness: Harness, behaviour: Behaviour, subscriber: Subscriber
) -> None:
    deadly = Deadly(behaviour, "bad/1/0")
    records = added(harness, "a", "bad", "b")
    for deaths in range(1, MAX_DEATHS + 1):
        with pytest.raises(Death):
            deliver(harness, new_follower(harness, subscriber, deadly), records)
        assert deadly.deaths == {1: deaths}
    assert harness.checkpoint(subscriber.name, "b") == 1 or harness.rows()["b"][1] == 1, "the others have gone on"
    deliver(harness, new_follower(harness, subscriber, deadly), records)
    assert deadly.deaths == {1: MAX_DEATHS}, "it is not handled any more"
    assert not harness.window.unfinished
    (parked,) = harness.parked(subscriber.name)
    assert (parked.aggregate_root_id, parked.version, parked.attempts) == ("bad", 1, 1)
    assert parked.error_type == "EventKilledWorker"
    assert f"{MAX_DEATHS} workers died or hung" in parked.error
    deadly.ids = ()
    assert retry_parked(harness.subscription(subscriber), "bad") is None
    assert harness.checkpoint(subscriber.name, "bad") == 1 or harness.rows()["bad"][1] == 1


def test_an_innocent_suspect_is_handled_and_that_is_all(
    harness: Harness, behaviour: Behaviour, subscriber: Subscriber
) -> None:
    deadly = Deadly(behaviour)
    subscription = new_follower(harness, subscriber, deadly)
    subscription.suspect(0, {0: MAX_DEATHS - 1})
    records = harness.stored("c", Added(amount=1), Added(amount=2)) + added(harness, "d")
    harness.deliver(subscription, records)
    assert [id for id, _ in deadly.calls] == ["d/1/0", "c/1/0", "c/2/0"]
    assert [queue_and_offset(at)[1] for _, at in deadly.calls] == [2, 0, 1], "one version at a time"
    assert not harness.window.unfinished
    assert harness.parked(subscriber.name) == []


def test_what_was_parked_meanwhile_is_not_parked_again(harness: Harness, behaviour: Behaviour) -> None:
    subscriber = subscribers.instance(Entries)
    behaviour.failing["c"] = 1_000
    subscription = harness.subscription(subscriber, attempts=1)
    subscription.suspect(0, {1: MAX_DEATHS})
    records = harness.stored("c", Added(amount=1), Added(amount=2))
    harness.deliver(subscription, records[:1])
    harness.deliver(subscription, records[1:])
    (parked,) = harness.parked(subscriber.name)
    assert (parked.error_type, parked.version) == ("RuntimeError", 1)
    assert not harness.window.unfinished


def test_what_others_have_handled_meanwhile_is_not_parked(harness: Harness, behaviour: Behaviour) -> None:
    subscriber = subscribers.instance(Entries)
    records = added(harness, "c")
    harness.deliver(harness.subscription(subscriber), records)
    subscription = harness.subscription(subscriber)
    subscription.suspect(0, {0: MAX_DEATHS})
    deliver(harness, subscription, records)
    assert harness.parked(subscriber.name) == []
    assert not harness.window.unfinished


def test_a_refusal_that_kills_its_workers_is_parked(harness: Harness, behaviour: Behaviour) -> None:
    subscriber = subscribers.instance(Kindness)
    deadly = Deadly(behaviour)
    refusal = harness.refused("c", TooMuch(amount=5))
    original = behaviour.handle

    def handle(event: DomainEvent | DomainException) -> None:
        deadly.ids = (event.id,) if isinstance(event, TooMuch) else ()
        original(event)

    behaviour.handle = handle  # type: ignore[method-assign]
    for _ in range(MAX_DEATHS):
        with pytest.raises(Death):
            deliver(harness, new_follower(harness, subscriber, deadly), [refusal])
    deliver(harness, new_follower(harness, subscriber, deadly), [refusal])
    (parked,) = harness.parked(subscriber.name)
    assert (parked.version, parked.command_id) == (None, refusal.command_id)
    assert parked.error_type == "EventKilledWorker"
    assert not harness.window.unfinished


def test_a_refusal_that_was_handled_meanwhile_is_not_parked(harness: Harness, behaviour: Behaviour) -> None:
    subscriber = subscribers.instance(Kindness)
    refusal = harness.refused("c", TooMuch(amount=5))
    harness.deliver(harness.subscription(subscriber), [refusal])
    subscription = harness.subscription(subscriber)
    subscription.suspect(0, {0: MAX_DEATHS})
    deliver(harness, subscription, [refusal])
    assert harness.parked(subscriber.name) == []
    assert not harness.window.unfinished


def test_a_sweep_that_kills_its_workers_parks_what_it_was_at(
    harness: Harness, behaviour: Behaviour, subscriber: Subscriber
) -> None:
    added(harness, "a", "bad", "b")
    deadly = Deadly(behaviour, "bad/1/0")
    for deaths in range(1, MAX_DEATHS + 1):
        with pytest.raises(Death):
            swept(harness, subscriber, deadly)
        assert [*deadly.deaths.values()] == [deaths]
        assert all(is_of_a_sweep(offset) for offset in deadly.deaths)
    sweep = swept(harness, subscriber, deadly)
    assert sweep.subscription.runner.processor.positions(["a", "b"]) == {"a": 1, "b": 1}
    (parked,) = harness.parked(subscriber.name)
    assert (parked.aggregate_root_id, parked.version, parked.error_type) == ("bad", 1, "EventKilledWorker")


def swept(harness: Harness, subscriber: Subscriber, deadly: Deadly) -> Sweep:
    sweep = Sweep(harness, subscriber, deadly.in_flight())
    sweep.subscription.suspect(0, dict(deadly.deaths))
    sweep.run(5)
    return sweep


def test_deaths_at_one_version_do_not_count_for_another_when_it_is_swept(
    harness: Harness, behaviour: Behaviour
) -> None:
    subscriber = subscribers.instance(Entries)
    added(harness, "bad")
    deadly = Deadly(behaviour, "bad/1/0")
    for _ in range(MAX_DEATHS):
        with pytest.raises(Death):
            swept(harness, subscriber, deadly)
    swept(harness, subscriber, deadly)
    deadly.ids = ()
    assert retry_parked(harness.subscription(subscriber), "bad") is None
    harness.stored("bad", Added(amount=2), after=1)
    harness.clock.now += 30.0
    sweep = swept(harness, subscriber, deadly)
    assert sweep.subscription.runner.processor.positions(["bad"]) == {"bad": 2}
    assert harness.parked(subscriber.name) == []


def test_suspects_of_all_subscribers_of_a_process_are_handled_one_at_a_time(
    harness: Harness, behaviour: Behaviour
) -> None:
    suspects = threading.Lock()
    deadly = Deadly(behaviour)
    subscription = harness.subscription(subscribers.instance(CounterRows), in_flight=deadly.in_flight(suspects))
    subscription.suspect(0, {1: 1})
    held: list[bool] = []
    original = behaviour.handle
    behaviour.handle = lambda event: held.append(suspects.locked()) or original(event)  # type: ignore
    harness.deliver(subscription, added(harness, "a", "suspect", "b"))
    assert held == [False, False, True]
    assert not suspects.locked()


@pytest.mark.parametrize("projection", [CounterRows, Entries])
def test_the_time_of_hooks_after_the_commit_counts(
    harness: Harness, behaviour: Behaviour, projection: type[CounterRows] | type[Entries]
) -> None:
    note, noted = [NOTHING_IN_FLIGHT, 0], []

    def hook() -> None:
        noted.append(tuple(note))

    behaviour.handle = lambda event: transaction.on_commit(hook)  # type: ignore[method-assign]
    subscription = harness.subscription(subscribers.instance(projection), in_flight=InFlight(note))
    harness.deliver(subscription, added(harness, "a", "b"))
    assert [position for position, _ in noted] == [position_of(0, 0)] * 2
    assert len({step for _, step in noted}) == 2
    assert note[0] == NOTHING_IN_FLIGHT


class NotesReads(PostgresEventStore):
    """Records the noted position at each read."""

    def __init__(self, note: Sequence[int]) -> None:
        super().__init__()
        self.note = note
        self.noted: list[int] = []

    def load_ranges(self, ranges: Mapping[str, tuple[int, int]], *, limit: int) -> Mapping[str, Sequence[StreamRecord]]:
        self.noted.append(self.note[0])
        return super().load_ranges(ranges, limit=limit)


def test_the_time_of_the_store_does_not_count(harness: Harness, behaviour: Behaviour) -> None:
    deadly = Deadly(behaviour)
    store = harness.store = NotesReads(deadly.note)
    subscription = new_follower(harness, subscribers.instance(CounterRows), deadly)
    records = harness.stored("c", Opened(owner="x"), Added(amount=1), Added(amount=2))
    harness.deliver(subscription, [records[0], records[2]])
    assert store.noted == [NOTHING_IN_FLIGHT]
    assert len(deadly.calls) == 3


# -- handing over -------------------------------------------------------------------------------------------------


def test_what_is_handed_over_between_portions_is_left_to_others(
    harness: Harness, behaviour: Behaviour, subscriber: Subscriber
) -> None:
    """A portion has two streams. The queue is handed over after the first portion."""
    calls = iter([lambda: None, lambda: harness.window.close()])
    subscription = harness.subscription(subscriber, hand_over=lambda: next(calls, lambda: None)())
    subscription.runner.processor.at_once = subscription.runner.processor.most_at_once = 2
    harness.deliver(subscription, added(harness, *"abcdef"))
    assert [call for call in behaviour.calls if call != "second"] == ["a/1/0", "b/1/0"]
    assert subscription.next_retry is None
    assert harness.window.unfinished == 4, "others pull them again"


def test_what_no_queue_brought_is_handled_to_its_end(harness: Harness, behaviour: Behaviour) -> None:
    subscriber = subscribers.instance(Entries)
    subscription = harness.subscription(subscriber, hand_over=harness.window.close)
    subscription.runner.processor.at_once = subscription.runner.processor.most_at_once = 2
    subscription.follow(added(harness, *"abcdef"))
    assert len(behaviour.calls) == 6
