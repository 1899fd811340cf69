"""Nothing of a parked aggregate is lost: by a skip, by a retry, or by workers that pass over it meanwhile."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from enode_django.eventing import parking
from enode_django.eventing.registry import subscribers
from enode_django.eventing.subscribers import Subscriber
from enode_django.eventing.unparking import retry_parked, skip_parked
from enode_django.exceptions import NotParked
from tests.following.domain import Added, Behaviour, CounterRows, Entries, Kindness, Opened, TooMuch, handler_group
from tests.following.harness import Harness


@pytest.fixture(params=["rows", "entries", "handlers"])
def subscriber(request: pytest.FixtureRequest) -> Subscriber:
    every = [subscribers.instance(CounterRows), subscribers.instance(Entries), handler_group()]
    return next(one for one in every if one.name == f"following.{request.param}")


def test_what_fails_behind_a_skipped_event_is_parked_in_its_place(
    harness: Harness, behaviour: Behaviour, subscriber: Subscriber
) -> None:
    behaviour.failing["c"] = 1_000
    harness.deliver(harness.subscription(subscriber, attempts=1), harness.stored("c", Added(amount=1), Added(amount=2)))
    parked = skip_parked(harness.subscription(subscriber, attempts=5), "c")
    assert parked is not None
    assert parked.version == 2
    assert [row.version for row in harness.parked(subscriber.name)] == [2]


def test_what_fails_while_a_retry_catches_up_is_parked(
    harness: Harness, behaviour: Behaviour, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Version 2 is stored after the retry has read how far it has to go."""
    behaviour.failing["c"] = 1
    subscription = harness.subscription(subscribers.instance(Entries), attempts=1)
    harness.deliver(subscription, harness.stored("c", Added(amount=1)))
    original = behaviour.handle

    def handle(event: Added) -> None:
        original(event)
        behaviour.failing["c"] = 1_000
        if event.id == "c/1/0":
            harness.stored("c", Added(amount=2), after=1)

    monkeypatch.setattr(behaviour, "handle", handle)
    parked = retry_parked(harness.subscription(subscribers.instance(Entries), attempts=5), "c")
    assert parked is not None
    assert parked.version == 2


def test_what_fails_again_is_shown_with_its_latest_failure(harness: Harness) -> None:
    since = datetime.now(UTC)
    once = parking.Parked("any", "following.Counter", "c", 1, "any", "ValueError", "old", 1, since, since, None, "a:1")
    parking.park("default", once)
    (first,) = harness.parked("any")
    parking.park("default", once._replace(error_type="KeyError", error="new", fingerprint="a:2"), pause=60.0)
    (row,) = harness.parked("any")
    assert (row.error_type, row.error, row.fingerprint, row.attempts) == ("KeyError", "new", "a:2", 2)
    assert row.first_failed_at == first.first_failed_at
    assert row.last_failed_at > first.last_failed_at
    assert row.next_try_at is not None


def parked_at_a_refusal(harness: Harness, behaviour: Behaviour) -> None:
    behaviour.failing["c"] = 1_000
    subscription = harness.subscription(subscribers.instance(Kindness), attempts=1)
    harness.deliver(subscription, [harness.refused("c", TooMuch("no", amount=1))])


def test_a_parked_refusal_waits_when_the_retry_fails_before_it(harness: Harness, behaviour: Behaviour) -> None:
    parked_at_a_refusal(harness, behaviour)
    harness.stored("c", Opened(owner="ann"))
    parked = retry_parked(harness.subscription(subscribers.instance(Kindness)), "c")
    assert parked is not None
    assert (parked.version, parked.error_type) == (1, "RuntimeError")
    behaviour.failing.clear()
    assert retry_parked(harness.subscription(subscribers.instance(Kindness)), "c") is None
    assert [type(command).__name__ for command in harness.sent] == ["Congratulate", "Congratulate", "Console"]


def test_what_failed_last_is_what_an_aggregate_is_parked_at_whatever_waits_longer(
    harness: Harness, behaviour: Behaviour, monkeypatch: pytest.MonkeyPatch
) -> None:
    behaviour.failing["c"] = 1
    subscriber = subscribers.instance(Kindness)
    subscription = harness.subscription(subscriber, attempts=1)
    harness.deliver(subscription, harness.stored("c", Opened(owner="ann"), Opened(owner="bea")))
    harness.deliver(subscription, [harness.refused("c", TooMuch("no", amount=1))])
    original = behaviour.handle

    def handle(event: Opened) -> None:
        if event.id == "c/2/0":
            raise ValueError("poison")
        original(event)

    monkeypatch.setattr(behaviour, "handle", handle)
    parked = retry_parked(subscription, "c")
    assert parked is not None
    assert parked.version == 2
    assert parking.parked_among("default", subscriber.name, ["c"]) == {"c": "ValueError"}
    assert skip_parked(subscription, "c") is None
    assert [type(command).__name__ for command in harness.sent] == ["Congratulate", "Congratulate", "Console"]


def test_a_refusal_that_comes_as_a_retry_ends_is_handled(
    harness: Harness, behaviour: Behaviour, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker has found the aggregate parked, and the retry unparks it before the worker lets the refusal wait."""
    parked_at_a_refusal(harness, behaviour)
    subscriber = subscribers.instance(Kindness)
    worker = harness.subscription(subscriber)
    wait_behind = parking.wait_behind

    def retry_first(*arguments: object) -> object:
        monkeypatch.setattr(parking, "wait_behind", wait_behind)
        behaviour.failing.clear()
        assert retry_parked(harness.subscription(subscriber), "c") is None
        return wait_behind(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(parking, "wait_behind", retry_first)
    harness.deliver(worker, [harness.refused("c", TooMuch("no", amount=2))])
    assert [command.amount for command in harness.sent] == [1, 2]  # type: ignore[attr-defined]
    assert harness.parked(subscriber.name) == []
    assert not harness.window.unfinished


def test_a_refusal_that_comes_while_a_retry_is_at_work_is_handled(
    harness: Harness, behaviour: Behaviour, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker lets it wait behind what the retry is just handling."""
    parked_at_a_refusal(harness, behaviour)
    behaviour.failing.clear()
    subscriber = subscribers.instance(Kindness)
    worker = harness.subscription(subscriber)
    original = behaviour.handle

    def handle(event: TooMuch) -> None:
        monkeypatch.setattr(behaviour, "handle", original)
        harness.deliver(worker, [harness.refused("c", TooMuch("no", amount=2))])
        original(event)

    monkeypatch.setattr(behaviour, "handle", handle)
    assert retry_parked(harness.subscription(subscriber), "c") is None
    assert [command.amount for command in harness.sent] == [1, 2]  # type: ignore[attr-defined]
    assert harness.parked(subscriber.name) == []


# -- what is skipped --------------------------------------------------------------------------------------------------


def test_what_is_not_parked_any_more_is_not_skipped(
    harness: Harness, behaviour: Behaviour, subscriber: Subscriber
) -> None:
    """It was tried again meanwhile, and the aggregate is parked at the next event."""
    behaviour.failing["c"] = 1_000
    subscription = harness.subscription(subscriber, attempts=1)
    records = harness.stored("c", Added(amount=1), Added(amount=2))
    harness.deliver(subscription, records)
    assert skip_parked(subscription, "c") is not None
    with pytest.raises(NotParked, match="has parked 'c' at version 2, not at what command"):
        skip_parked(subscription, "c", command_id=records[0].command_id)
    assert [row.version for row in harness.parked(subscriber.name)] == [2]


def test_an_event_of_an_aggregate_that_is_older_than_its_subscriber_is_skipped(
    harness: Harness, behaviour: Behaviour
) -> None:
    """It has no checkpoint: what was stored before the subscriber began counts as handled."""
    harness.stored("c", Opened(owner="ann"), Added(amount=1))
    subscription = harness.subscription(handler_group(start="now"), attempts=1)
    subscription.runner.processor.subscribe(harness.store)
    behaviour.failing["c"] = 1_000
    failing, following = harness.stored("c", Added(amount=2), Added(amount=3), after=2)
    harness.deliver(subscription, [failing])
    assert [row.version for row in harness.parked("following.handlers")] == [3]
    behaviour.failing.clear()
    behaviour.calls.clear()
    assert skip_parked(subscription, "c", command_id=failing.command_id) is None
    harness.deliver(subscription, [following])
    assert [call for call in behaviour.calls if "/" in call] == ["c/4/0"]


def test_events_before_the_one_to_be_skipped_are_not_left_out(
    harness: Harness, behaviour: Behaviour, subscriber: Subscriber
) -> None:
    """The tables were replaced, or taken back after a failover, since it was parked."""
    harness.stored("c", Opened(owner="ann"), Added(amount=1), Added(amount=2))
    now = datetime.now(UTC)
    row = parking.Parked(subscriber.name, "following.Counter", "c", 3, "any", "ValueError", "", 1, now, now)
    parking.park("default", row)
    subscription = harness.subscription(subscriber)
    with pytest.raises(NotParked, match="has not handled what comes before version 3 of 'c'"):
        skip_parked(subscription, "c")
    assert retry_parked(subscription, "c") is None
    assert harness.parked(subscriber.name) == []
    if subscriber.name == "following.rows":
        assert harness.rows() == {"c": ("ann", 3, 3)}
    else:
        assert {"c/2/0", "c/3/0"} <= set(behaviour.calls)
