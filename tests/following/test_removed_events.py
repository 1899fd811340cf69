"""A removed type of events or refusals does not hold up subscribers that never handled it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from itertools import count

import pytest

from enode_django import DomainEvent, DomainException
from enode_django.eventing import event_types
from enode_django.eventing.event_handlers import EventHandler, EventHandlerGroup
from enode_django.eventing.registry import subscribers
from enode_django.eventing.retry_decisions import RetryPolicy
from enode_django.eventing.subscribers import Subscriber
from enode_django.eventing.sweep import SweepingSubscription
from enode_django.eventing.unparking import retry_parked
from enode_django.eventstore.base import StreamRecord
from enode_django.ids import new_id
from enode_django.models import Subscription
from enode_django.serialization.codec import REFUSAL, STREAM
from enode_django.serialization.plain import pack
from enode_django.serialization.registry import types
from tests.following.domain import Added, CounterRows, Kindness, TooMuch
from tests.following.harness import Harness
from tests.following.test_sweeping import Sweep, every_kind

_numbers = count()


@pytest.fixture(params=range(4), ids=["rows", "entries", "kindness", "handlers"])
def subscriber(request: pytest.FixtureRequest) -> Subscriber:
    chosen = every_kind()[request.param]
    forget(chosen)
    return chosen


def forget(subscriber: Subscriber) -> None:
    subscriber._enode_removed_types = subscriber._enode_removed_refusals = frozenset()


@pytest.fixture(params=range(2), ids=["kindness", "handlers"])
def handles_refusals(request: pytest.FixtureRequest) -> Subscriber:
    group = EventHandlerGroup("following.refusals")
    group.add(EventHandler(TooMuch, "refusals.seen", 10, lambda refusal: None, "beginning"))
    chosen: Sequence[Subscriber] = (subscribers.instance(Kindness), group)
    forget(chosen[request.param])
    return chosen[request.param]


@pytest.fixture
def name() -> str:
    return f"removed.Event{next(_numbers)}"


@pytest.fixture
def remove(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    def remove(name: str) -> None:
        monkeypatch.delitem(types._classes[DomainEvent], name)
        for one in every_kind():
            one._enode_known_handlers.pop(name, None)

    return remove


@pytest.fixture
def remove_refusal(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    def remove(name: str) -> None:
        monkeypatch.delitem(types._classes[DomainException], name)

    return remove


def declare(name: str, base: type[DomainEvent | DomainException] = DomainEvent) -> None:
    type("Event", (base,), {"type_name": name, "__module__": __name__, "__annotations__": {}})


def stored(harness: Harness, id: str, *names: str) -> None:
    """Store one stream for each name, with one event of this type name."""
    now = datetime.now(UTC)
    for version, name in enumerate(names, 1):
        events = STREAM + pack(([(name, 1, {"amount": 7})], None))
        harness.store.append([StreamRecord(id, version, new_id(), "following.Counter", "later.Do", now, events, b"")])


def refused(harness: Harness, id: str, name: str) -> StreamRecord:
    events = REFUSAL + pack((name, 1, "no", {"amount": 7}))
    record = StreamRecord(id, None, new_id(), "following.Counter", "later.Do", datetime.now(UTC), events, b"")
    harness.store.append([record])
    return record


def test_an_event_that_was_known_and_not_handled_is_passed_over(
    harness: Harness,
    subscriber: Subscriber,
    name: str,
    remove: Callable[[str], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    declare(name)
    Sweep(harness, subscriber)
    remove(name)
    stored(harness, "c", "following.Added", name, "following.Added")
    sweep = Sweep(harness, subscriber)
    sweep.run()
    assert harness.parked(subscriber.name) == []
    assert sweep.subscription.runner.processor.positions(["c"]) == {"c": 3}
    assert not [record for record in caplog.records if record.levelname in ("WARNING", "ERROR")]


def test_an_event_that_was_handled_parks_and_says_so_once(
    harness: Harness, name: str, remove: Callable[[str], None], caplog: pytest.LogCaptureFixture
) -> None:
    subscriber = subscribers.instance(CounterRows)
    declare(name, Added)
    Sweep(harness, subscriber)
    remove(name)
    for id in "cd":
        stored(harness, id, "following.Added", name)
    sweep = Sweep(harness, subscriber)
    sweep.subscription.policy = RetryPolicy(2, 1.0, (1.0, 2.0, 5.0))
    sweep.run()
    for _ in range(5):
        harness.clock.now += 3_600.0
        sweep.run(5)
    assert [(parked.aggregate_root_id, parked.version) for parked in harness.parked(subscriber.name)] == [
        ("c", 2),
        ("d", 2),
    ]
    loud = [record.getMessage() for record in caplog.records if record.levelname in ("WARNING", "ERROR")]
    assert len(loud) == 3, loud
    assert "waits for code that knows more" in loud[0]
    assert all(f"parked {id} at version 2" in text and name in text for id, text in zip("cd", loud[1:], strict=True))


def test_an_event_that_only_newer_code_knows_parks(harness: Harness, subscriber: Subscriber, name: str) -> None:
    stored(harness, "c", "following.Added", name)
    Sweep(harness, subscriber).run()
    assert [parked.version for parked in harness.parked(subscriber.name)] == [2]


def test_what_newer_code_records_lets_older_code_go_on(
    harness: Harness, subscriber: Subscriber, name: str, remove: Callable[[str], None]
) -> None:
    stored(harness, "c", "following.Added", name)
    old = Sweep(harness, subscriber)
    old.run()
    declare(name)
    event_types.record("default", subscriber)
    remove(name)
    assert retry_parked(old.subscription, "c") is None
    assert harness.parked(subscriber.name) == []


def test_the_record_is_written_where_it_has_changed_only(harness: Harness, name: str) -> None:
    subscriber = subscribers.instance(CounterRows)
    first = Sweep(harness, subscriber)
    row = Subscription.objects.extra(select={"place": "xmin::text"}).get()
    assert row.event_types["following.Added"] is True
    assert row.event_types["following.Noted"] is False
    assert isinstance(first.subscription, SweepingSubscription)
    Sweep(harness, subscriber)
    assert Subscription.objects.extra(select={"place": "xmin::text"}).get().place == row.place
    declare(name)
    Sweep(harness, subscriber)
    assert Subscription.objects.get().event_types[name] is False


def test_a_refusal_that_was_known_and_not_handled_is_passed_over(
    harness: Harness, handles_refusals: Subscriber, name: str, remove_refusal: Callable[[str], None]
) -> None:
    declare(name, DomainException)
    Sweep(harness, handles_refusals)
    remove_refusal(name)
    refused(harness, "c", name)
    harness.deliver(harness.subscription(handles_refusals, attempts=1), [refused(harness, "d", name)])
    Sweep(harness, handles_refusals).run()
    assert harness.parked(handles_refusals.name) == []
    assert harness.window.unfinished == 0


@pytest.mark.parametrize("base", [TooMuch, None], ids=["that was handled", "that only newer code knows"])
def test_a_refusal_parks(
    harness: Harness,
    handles_refusals: Subscriber,
    name: str,
    remove_refusal: Callable[[str], None],
    base: type[DomainException] | None,
) -> None:
    if base is not None:
        declare(name, base)
        Sweep(harness, handles_refusals)
        remove_refusal(name)
    declare(name)  # an event with the same name makes no difference
    Sweep(harness, handles_refusals)
    harness.deliver(harness.subscription(handles_refusals, attempts=1), [refused(harness, "c", name)])
    assert [parked.version for parked in harness.parked(handles_refusals.name)] == [None]


def test_an_aggregate_that_is_parked_at_a_refusal_goes_on_when_newer_code_has_recorded_it(
    harness: Harness, handles_refusals: Subscriber, name: str, remove_refusal: Callable[[str], None]
) -> None:
    old = Sweep(harness, handles_refusals)
    harness.deliver(harness.subscription(handles_refusals, attempts=1), [refused(harness, "c", name)])
    assert len(harness.parked(handles_refusals.name)) == 1
    declare(name, DomainException)
    event_types.record("default", handles_refusals)
    remove_refusal(name)
    assert retry_parked(old.subscription, "c") is None
    assert harness.parked(handles_refusals.name) == []
