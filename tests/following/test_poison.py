"""A failing handler is tried again, and then its aggregate is parked. Other aggregates do not wait."""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Sequence
from typing import Any, TypeVar

import django.db
import psycopg
import pytest

from enode_django.eventing.event_processors import Begun
from enode_django.eventing.registry import subscribers
from enode_django.eventing.subscribers import Subscriber
from enode_django.eventing.unparking import retry_parked, skip_parked
from enode_django.exceptions import EnodeError, NotParked
from enode_django.signals import aggregate_parked
from tests.following.domain import Added, Behaviour, CounterRows, Entries, Kindness, Opened, TooMuch, handler_group
from tests.following.harness import Harness

Value = TypeVar("Value")


@pytest.fixture(params=["rows", "entries", "handlers"])
def subscriber(request: pytest.FixtureRequest) -> Subscriber:
    every = [subscribers.instance(CounterRows), subscribers.instance(Entries), handler_group()]
    return next(one for one in every if one.name == f"following.{request.param}")


def test_a_failing_handler_is_tried_again_after_growing_pauses(
    harness: Harness, behaviour: Behaviour, subscriber: Subscriber
) -> None:
    behaviour.failing["c"] = 2
    subscription = harness.subscription(subscriber, attempts=5)
    harness.deliver(subscription, harness.stored("c", Added(amount=1)))
    assert subscription.next_retry == harness.clock.now + 1.0
    assert subscription.held_in(harness.window) == harness.window.unfinished == 1
    subscription.retry_due()
    assert not behaviour.calls
    harness.clock.now += 1.0
    subscription.retry_due()
    assert subscription.next_retry == harness.clock.now + 2.0
    harness.clock.now += 2.0
    subscription.retry_due()
    assert [call for call in behaviour.calls if call != "second"] == ["c/1/0"]
    assert subscription.next_retry is None
    assert not harness.window.unfinished
    assert harness.parked(subscriber.name) == []


def fail_until_parked(harness: Harness, subscriber: Subscriber) -> None:
    subscription = harness.subscription(subscriber)
    harness.deliver(subscription, harness.stored("c", Added(amount=1), Added(amount=2), Added(amount=3)), "in1")
    for _ in range(10):
        harness.clock.now += 100
        subscription.retry_due()


def test_after_so_many_attempts_the_aggregate_is_parked_and_says_why(
    harness: Harness, behaviour: Behaviour, subscriber: Subscriber
) -> None:
    behaviour.failing["c"] = 1_000
    fail_until_parked(harness, subscriber)
    (parked,) = harness.parked(subscriber.name)
    assert (parked.aggregate_root_id, parked.version, parked.attempts) == ("c", 1, 3)
    assert parked.error_type == "RuntimeError"
    assert "told to fail at c/1/0" in parked.error
    assert "Traceback" in parked.error
    assert parked.first_failed_at <= parked.last_failed_at
    assert not harness.window.unfinished
    # Senders that wait for any of its versions get their notices at once.
    assert [(notice.error, address) for address, notice in harness.notices] == [("RuntimeError", "in1")] * 3


def test_receivers_are_told_of_a_parked_aggregate_and_may_fail(harness: Harness, behaviour: Behaviour) -> None:
    told: list[tuple[str, str, str]] = []

    def note(sender: type, subscriber: str, aggregate_root_id: str, error: Exception, **_: object) -> None:
        told.append((subscriber, aggregate_root_id, str(error)))
        raise RuntimeError("the receiver is broken")

    behaviour.failing["c"] = 1_000
    subscriber = subscribers.instance(Entries)
    aggregate_parked.connect(note, sender=Entries)
    try:
        fail_until_parked(harness, subscriber)
    finally:
        aggregate_parked.disconnect(note, sender=Entries)
    assert told == [("following.entries", "c", "told to fail at c/1/0")]
    assert len(harness.parked(subscriber.name)) == 1


def test_what_was_handled_before_the_poison_stays_handled(harness: Harness, behaviour: Behaviour) -> None:
    subscriber = subscribers.instance(Entries)
    subscription = harness.subscription(subscriber)
    records = harness.stored("c", Added(amount=1), Added(amount=2), Opened(owner="x"), Added(amount=3))
    original = behaviour.handle
    behaviour.handle = lambda event: _fail_at(event.id, "c/4/0") or original(event)  # type: ignore[method-assign]
    try:
        harness.deliver(subscription, records)
        for _ in range(10):
            harness.clock.now += 100
            subscription.retry_due()
    finally:
        behaviour.handle = original  # type: ignore[method-assign]
    assert harness.entries("c") == [(1, 1), (2, 2)]
    assert harness.checkpoint("following.entries", "c") == 3
    (parked,) = harness.parked("following.entries")
    assert parked.version == 4


@pytest.mark.parametrize("projection", [CounterRows, Entries])
def test_what_was_handled_before_the_poison_stays_handled_with_one_attempt_only(
    harness: Harness, behaviour: Behaviour, projection: type[CounterRows] | type[Entries]
) -> None:
    subscription = harness.subscription(subscribers.instance(projection), attempts=1)
    original = behaviour.handle
    behaviour.handle = lambda event: _fail_at(event.id, "c/3/0") or original(event)  # type: ignore[method-assign]
    try:
        harness.deliver(subscription, harness.stored("c", *(Added(amount=1) for _ in range(5))))
    finally:
        behaviour.handle = original  # type: ignore[method-assign]
    assert subscription.runner.processor.positions(["c"]) == {"c": 2}
    assert [parked.version for parked in harness.parked(subscription.subscriber.name)] == [3]
    assert skip_parked(subscription, "c") is None
    assert subscription.runner.processor.positions(["c"]) == {"c": 5}


def _fail_at(id: str, poisoned: str) -> None:
    if id == poisoned:
        raise ValueError(f"{id} is poison")


def test_later_events_wait_behind_what_is_parked_also_after_a_restart(
    harness: Harness, behaviour: Behaviour, subscriber: Subscriber
) -> None:
    behaviour.failing["c"] = 3
    fail_until_parked(harness, subscriber)
    behaviour.calls.clear()
    restarted = harness.subscription(subscriber)
    harness.deliver(restarted, harness.stored("c", Added(amount=4), after=3), "in2")
    harness.deliver(restarted, harness.stored("d", Added(amount=5)))
    assert [call for call in behaviour.calls if call != "second"] == ["d/1/0"]
    assert harness.notices[-1][1].error == "RuntimeError"
    assert not harness.window.unfinished


def test_retry_catches_up_from_the_store(harness: Harness, behaviour: Behaviour, subscriber: Subscriber) -> None:
    behaviour.failing["c"] = 3
    fail_until_parked(harness, subscriber)
    harness.stored("c", Added(amount=4), after=3)  # was never announced
    subscription = harness.subscription(subscriber)
    assert retry_parked(subscription, "c") is None
    assert [call for call in behaviour.calls if call != "second"] == [f"c/{n}/0" for n in range(1, 5)]
    assert harness.parked(subscriber.name) == []
    assert subscription.runner.processor.positions(["c"]) == {"c": 4}


def test_a_retry_that_fails_again_stays_parked_with_one_more_attempt(
    harness: Harness, behaviour: Behaviour, subscriber: Subscriber
) -> None:
    behaviour.failing["c"] = 1_000
    fail_until_parked(harness, subscriber)
    parked = retry_parked(harness.subscription(subscriber), "c")
    assert parked is not None
    assert (parked.version, parked.attempts) == (1, 4)


def test_a_retry_that_gets_past_the_poison_to_another_is_parked_there(
    harness: Harness, behaviour: Behaviour, subscriber: Subscriber
) -> None:
    behaviour.failing["c"] = 1_000
    fail_until_parked(harness, subscriber)
    behaviour.failing.clear()
    original = behaviour.handle
    behaviour.handle = lambda event: _fail_at(event.id, "c/2/0") or original(event)  # type: ignore[method-assign]
    try:
        parked = retry_parked(harness.subscription(subscriber), "c")
    finally:
        behaviour.handle = original  # type: ignore[method-assign]
    assert parked is not None
    assert (parked.version, parked.error_type) == (2, "ValueError")
    assert len(harness.parked(subscriber.name)) == 1


def test_skip_leaves_out_one_event_and_goes_on_with_the_next(
    harness: Harness, behaviour: Behaviour, subscriber: Subscriber
) -> None:
    behaviour.failing["c"] = 3
    fail_until_parked(harness, subscriber)
    assert skip_parked(harness.subscription(subscriber), "c") is None
    assert [call for call in behaviour.calls if call != "second"] == ["c/2/0", "c/3/0"]
    assert harness.parked(subscriber.name) == []


def test_what_is_not_parked_cannot_be_retried_or_skipped(harness: Harness, subscriber: Subscriber) -> None:
    subscription = harness.subscription(subscriber)
    with pytest.raises(NotParked, match="has not parked 'c'"):
        retry_parked(subscription, "c")
    with pytest.raises(NotParked, match="has not parked 'c'"):
        skip_parked(subscription, "c")


def test_an_event_that_cannot_be_decoded_parks_too(harness: Harness, subscriber: Subscriber) -> None:
    (record,) = harness.stored("c", Added(amount=1))
    from enode_django.models import EventStream

    broken = record._replace(events=record.events.replace(b"following.Added", b"following.Newer"))
    EventStream.unprotected.filter(aggregate_root_id="c").update(events=broken.events)
    subscription = harness.subscription(subscriber)
    harness.deliver(subscription, [broken])
    for _ in range(10):
        harness.clock.now += 100
        subscription.retry_due()
    (parked,) = harness.parked(subscriber.name)
    assert parked.error_type == "UnknownMessageType"


def _error(sqlstate: str, kind: type[psycopg.Error] = psycopg.OperationalError) -> django.db.Error:
    class WithState(kind):  # type: ignore[misc, valid-type]
        pass

    WithState.sqlstate = sqlstate
    error = django.db.OperationalError("from the database")
    error.__cause__ = WithState("from the database")
    return error


@pytest.mark.parametrize("sqlstate", ["40P01", "57014", "08006", "42P01"])
def test_transient_database_errors_are_tried_again_without_limit(
    harness: Harness, behaviour: Behaviour, subscriber: Subscriber, sqlstate: str
) -> None:
    tries = 0
    original = behaviour.handle

    def handle(event: Added) -> None:
        nonlocal tries
        tries += 1
        if tries < 20:
            raise _error(sqlstate)
        original(event)

    behaviour.handle = handle  # type: ignore[method-assign, assignment]
    try:
        subscription = harness.subscription(subscriber, attempts=1)
        harness.deliver(subscription, harness.stored("c", Added(amount=1)))
        subscription.retry_due()
        while tries < 20:
            if subscription.next_retry is None:
                (parked,) = harness.parked(subscriber.name)
                assert parked.next_try_at is not None
                retry_parked(subscription, "c")
            else:
                harness.clock.now = subscription.next_retry
                subscription.retry_due()
    finally:
        behaviour.handle = original  # type: ignore[method-assign]
    assert [call for call in behaviour.calls if call != "second"] == ["c/1/0"]
    assert harness.parked(subscriber.name) == []


def test_an_error_that_nobody_can_place_is_not_swallowed(
    harness: Harness, subscriber: Subscriber, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*arguments: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(harness.store, "load_ranges", broken)
    records = harness.stored("c", Added(amount=1), Added(amount=2))
    with pytest.raises((ZeroDivisionError, EnodeError, TypeError)):
        harness.deliver(harness.subscription(subscriber), records[1:])


def test_one_aggregate_in_many_fails_and_all_others_are_handled(
    harness: Harness, behaviour: Behaviour, subscriber: Subscriber
) -> None:
    behaviour.failing["c050"] = 1_000
    records = [r for n in range(100) for r in harness.stored(f"c{n:03}", Added(amount=n), Added(amount=n))]
    subscription = harness.subscription(subscriber)
    harness.deliver(subscription, records)
    handled = {call.split("/")[0] for call in behaviour.calls if call != "second"}
    assert len(handled) == 99
    assert harness.window.unfinished == 2


def test_a_refusal_that_fails_parks_and_later_refusals_wait_behind_it(harness: Harness, behaviour: Behaviour) -> None:
    behaviour.failing["c"] = 1_000
    subscriber = subscribers.instance(Kindness)
    subscription = harness.subscription(subscriber)
    harness.deliver(subscription, [harness.refused("c", TooMuch("no", amount=1))])
    for _ in range(10):
        harness.clock.now += 100
        subscription.retry_due()
    later = harness.refused("c", TooMuch("no", amount=2))
    harness.deliver(subscription, [later])
    assert [(parked.version, parked.attempts) for parked in harness.parked(subscriber.name)] == [(None, 3), (None, 0)]
    assert harness.sent == []
    behaviour.failing.clear()
    assert retry_parked(subscription, "c") is None
    assert [command.amount for command in harness.sent] == [1, 2]  # type: ignore[attr-defined]
    assert harness.parked(subscriber.name) == []


def test_a_refusal_that_was_skipped_does_not_come_back(harness: Harness, behaviour: Behaviour) -> None:
    behaviour.failing["c"] = 1_000
    subscriber = subscribers.instance(Kindness)
    subscription = harness.subscription(subscriber, attempts=1)
    refusal = harness.refused("c", TooMuch("no", amount=1))
    harness.deliver(subscription, [refusal])
    assert skip_parked(subscription, "c") is None
    harness.deliver(subscription, [refusal])
    assert harness.parked(subscriber.name) == []


def test_what_fails_behind_what_was_skipped_is_parked_in_its_place(
    harness: Harness, behaviour: Behaviour, subscriber: Subscriber
) -> None:
    behaviour.failing["c"] = 1_000
    subscription = harness.subscription(subscriber, attempts=1)
    harness.deliver(subscription, harness.stored("c", Added(amount=1), Added(amount=2), Added(amount=3)))
    for version in (2, 3):
        another = harness.subscription(subscriber, attempts=5)
        parked = skip_parked(another, "c")
        assert parked is not None
        assert (parked.version, parked.aggregate_root_type, another.next_retry) == (version, "following.Counter", None)
        assert harness.parked(subscriber.name) == [parked]
    behaviour.failing["c"] = 0
    assert skip_parked(subscription, "c") is None


def test_an_unknown_type_waits_for_a_deploy_before_it_is_parked(harness: Harness, subscriber: Subscriber) -> None:
    (record,) = harness.stored("c", Added(amount=1))
    unknown = record._replace(events=record.events.replace(b"following.Added", b"following.Newer"))
    subscription = harness.subscription(subscriber)
    subscription.policy = subscription.policy._replace(unknown_delays=(60.0, 120.0))
    harness.deliver(subscription, [unknown])
    for pause in (60.0, 120.0):
        assert subscription.next_retry == harness.clock.now + pause
        assert harness.parked(subscriber.name) == []
        harness.clock.now += pause
        subscription.retry_due()
    assert len(harness.parked(subscriber.name)) == 1


def test_a_worker_that_looked_before_a_retry_does_not_handle_again_what_the_retry_has_handled(
    harness: Harness, behaviour: Behaviour, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise an old event would be the last one that an event handler sees."""
    behaviour.failing["c"] = 1
    group = handler_group()
    records = harness.stored("c", *(Added(amount=n) for n in range(1, 5)))
    worker = harness.subscription(group, attempts=1)
    harness.deliver(worker, records[:1])
    processor: Any = worker.runner.processor
    read, retried = processor._read, []

    def look_and_be_slow(ids: Sequence[str], even_parked: bool) -> Begun:
        found: Begun = read(ids, even_parked)
        if not retried:
            retried.append(retry_parked(harness.subscription(group), "c"))
        return found

    monkeypatch.setattr(processor, "_read", look_and_be_slow)
    harness.deliver(worker, records[1:3])
    assert retried == [None]
    assert [call for call in behaviour.calls if call != "second"] == [f"c/{n}/0" for n in range(1, 5)]


@pytest.mark.parametrize("error", [SystemExit, CancelledError])
@pytest.mark.parametrize("refuses", [False, True])
def test_a_handler_that_exits_or_is_cancelled_parks_its_aggregate_and_does_not_end_the_worker(
    harness: Harness, behaviour: Behaviour, subscriber: Subscriber, refuses: bool, error: type[BaseException]
) -> None:
    """Code that is used as a script, too, calls `sys.exit`; `asyncio.run` raises the cancellation of its task."""
    running = subscribers.instance(Kindness) if refuses else subscriber
    behaviour.failing["c"], behaviour.error = 10, error
    subscription = harness.subscription(running, attempts=1)
    poison = [harness.refused("c", TooMuch("c", amount=1))] if refuses else harness.stored("c", Added(amount=1))
    harness.deliver(subscription, [*poison, *harness.stored("d", Opened(owner="ann"), Added(amount=1))])
    assert [(one.aggregate_root_id, one.error_type) for one in harness.parked(running.name)] == [("c", error.__name__)]
    assert any(id.startswith("d/") for id in behaviour.calls)
