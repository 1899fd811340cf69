"""Aggregates of an unknown type do not hold up others, and are handled when code that knows the type arrives."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import count

import pytest

from enode_django import AggregateRoot, applies
from enode_django.eventing.subscribers import Subscriber
from enode_django.eventstore.base import StreamRecord
from enode_django.ids import new_id
from enode_django.models import Subscription
from enode_django.serialization.codec import STREAM
from enode_django.serialization.plain import pack
from tests.following.domain import Added, Behaviour, Guest, Thanked
from tests.following.harness import Harness
from tests.following.test_sweeping import Sweep, every_kind

_numbers = count()


@pytest.fixture(params=[0, 1, 3], ids=["rows", "entries", "handlers"])
def subscriber(request: pytest.FixtureRequest) -> Subscriber:
    return every_kind()[request.param]


@pytest.fixture
def number() -> int:
    """A number for the type names of this test: a declared class stays known until the process ends."""
    return next(_numbers)


def stored(harness: Harness, id: str, number: int, version: int = 1, event: str = "") -> StreamRecord:
    events = STREAM + pack(([(event or f"later.Event{number}", 1, {"amount": 7})], None))
    kind, now = f"later.Aggregate{number}", datetime.now(UTC)
    record = StreamRecord(id, version, new_id(), kind, "later.Do", now, events, b"")
    harness.store.append([record])
    return record


def deploy(number: int) -> None:
    """Declare the type in this process, with an event that subscribers of `Added` handle."""

    class Event(Added):
        type_name = f"later.Event{number}"

    class Aggregate(AggregateRoot):
        type_name = f"later.Aggregate{number}"

        @applies(Event)
        def _added(self, event: Event) -> None: ...


def handled(behaviour: Behaviour) -> list[str]:
    return [call for call in behaviour.calls if call != "second"]


def noted() -> list[str]:
    return [name for subscription in Subscription.objects.all() for name in subscription.passed_over]


def test_what_nobody_knows_is_passed_over_and_handled_when_the_code_arrives(
    harness: Harness, behaviour: Behaviour, subscriber: Subscriber, number: int
) -> None:
    old = Sweep(harness, subscriber)
    harness.deliver(old.subscription, [stored(harness, "x", number), *harness.stored("c", Added(amount=1))])
    stored(harness, "y", number)
    old.run()
    for version in (1, 2):
        harness.stored("c", Added(amount=1), after=version)
        harness.clock.now += 30.0
        old.run()
    assert handled(behaviour) == ["c/1/0", "c/2/0", "c/3/0"]
    assert not harness.window.unfinished
    assert harness.parked(subscriber.name) == []
    assert noted() == [f"later.Aggregate{number}"]
    deploy(number)
    new = Sweep(harness, subscriber)
    new.run()
    assert sorted(handled(behaviour)[3:]) == ["x/1/0", "y/1/0"]
    assert noted() == []


def test_a_new_worker_that_dies_on_its_way_back_leaves_the_rest_to_the_next(
    harness: Harness, behaviour: Behaviour, subscriber: Subscriber, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = Sweep(harness, subscriber)
    for id in "uvwxyz":
        stored(harness, id, number)
    old.run()
    deploy(number)
    monkeypatch.setattr("enode_django.eventing.sweep.ROWS_AT_ONCE", 2)
    first = Sweep(harness, subscriber)
    for _ in range(20):
        if not handled(behaviour):
            first.run(1)
    assert 0 < len(handled(behaviour)) < 6
    second = Sweep(harness, subscriber)
    second.run()
    assert sorted(handled(behaviour)) == [f"{id}/1/0" for id in "uvwxyz"]


def test_what_the_new_code_does_not_follow_is_forgotten(harness: Harness, subscriber: Subscriber, number: int) -> None:
    stored(harness, "x", number)
    old = Sweep(harness, subscriber)
    old.run()
    swept = old.swept()

    class Aggregate(AggregateRoot):
        type_name = f"later.Aggregate{number}"

        @applies(Thanked)
        def _thanked(self, event: Thanked) -> None: ...

    subscriber._enode_known_types.clear()
    new = Sweep(harness, subscriber)
    new.run()
    assert noted() == []
    assert new.swept() >= swept


def test_a_known_event_of_an_unknown_type_is_handled(
    harness: Harness, behaviour: Behaviour, subscriber: Subscriber, number: int
) -> None:
    """The class of the aggregate was removed, but the classes of its events were kept."""
    harness.deliver(harness.subscription(subscriber), [stored(harness, "x", number, event="following.Added")])
    stored(harness, "y", number, event="following.Added")
    Sweep(harness, subscriber).run()
    assert sorted(handled(behaviour)) == ["x/1/0", "y/1/0"]


def test_an_unknown_event_of_a_followed_aggregate_is_parked_and_goes_on_when_the_code_arrives(
    harness: Harness, behaviour: Behaviour, subscriber: Subscriber, number: int
) -> None:
    sweep = Sweep(harness, subscriber)
    harness.stored("c", Added(amount=1))
    events = STREAM + pack(([(f"later.Event{number}", 1, {"amount": 7})], None))
    unknown = StreamRecord("c", 2, new_id(), "following.Counter", "later.Do", datetime.now(UTC), events, b"")
    harness.store.append([unknown])
    sweep.run()
    assert [parked.error_type for parked in harness.parked(subscriber.name)] == ["UnknownMessageType"]
    deploy(number)
    from enode_django.eventing.code import code_fingerprint

    code_fingerprint.cache_clear()
    sweep.run()
    assert list(dict.fromkeys(handled(behaviour))) == ["c/1/0", "c/2/0"]
    assert harness.parked(subscriber.name) == []


def test_an_aggregate_that_is_known_and_not_followed_is_no_matter(harness: Harness, subscriber: Subscriber) -> None:
    from tests.following.harness import stream_of

    harness.store.append([stream_of("g", 1, [Thanked()], Guest)])
    Sweep(harness, subscriber).run()
    assert noted() == []
