"""The progress of a subscriber after lost versions, errors that pass, and failures in long histories."""

from __future__ import annotations

from typing import TypeVar

import pytest
from django.db import OperationalError

from enode_django.eventing import event_processors
from enode_django.eventing.event_processors import LEAST_AT_ONCE, EventProcessor
from enode_django.eventing.registry import subscribers
from enode_django.eventing.subscribers import Subscriber
from enode_django.eventstore.base import StreamRecord
from tests.following.domain import (
    Added,
    Behaviour,
    CounterRows,
    Entries,
    Kindness,
    Noted,
    Opened,
    TooMuch,
    handler_group,
)
from tests.following.harness import Harness, stream_of

Value = TypeVar("Value")


def one_each(harness: Harness, ids: str) -> list[StreamRecord]:
    return [record for id in ids for record in harness.stored(id, Added(amount=1))]


@pytest.fixture(params=["rows", "entries", "handlers"])
def subscriber(request: pytest.FixtureRequest) -> Subscriber:
    every = [subscribers.instance(CounterRows), subscribers.instance(Entries), handler_group()]
    return next(one for one in every if one.name == f"following.{request.param}")


def test_the_message_of_a_version_that_the_store_does_not_have_is_finished_untold(
    harness: Harness, subscriber: Subscriber
) -> None:
    """A store that was restored from a dump is behind its queue. The queue must still be committed past the message."""
    lost = stream_of("c", 3, [Added(amount=3)])
    harness.stored("c", Added(amount=1))
    harness.deliver(harness.subscription(subscriber), [lost], "in1")
    assert not harness.window.unfinished
    assert harness.notices == []


def test_a_database_that_is_away_does_not_let_the_handlers_before_it_run_again(
    harness: Harness, behaviour: Behaviour, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise each try would send the same mails again while the database is away."""
    original = behaviour.handle
    tries = 0

    def handle(event: Added) -> None:
        nonlocal tries
        if event.id == "c/2/0":
            tries += 1
            if tries < 5:
                raise OperationalError("away")
        original(event)

    monkeypatch.setattr(behaviour, "handle", handle)
    records = [*harness.stored("b", Added(amount=1)), *harness.stored("c", Added(amount=1), Added(amount=2))]
    subscription = harness.subscription(handler_group())
    harness.deliver(subscription, records)
    while subscription.next_retry is not None:
        harness.clock.now = subscription.next_retry
        subscription.retry_due()
    assert [call for call in behaviour.calls if call != "second"] == ["b/1/0", "c/1/0", "c/2/0"]


def counted_loads(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the list that gets the number of streams of each load of ranges from now on."""
    loaded: list[int] = []
    load_ranges = harness.store.load_ranges

    def count(*arguments: object, **options: int) -> object:
        found = load_ranges(*arguments, **options)  # type: ignore[arg-type]
        loaded.append(sum(map(len, found.values())))
        return found

    monkeypatch.setattr(harness.store, "load_ranges", count)
    return loaded


def test_gaps_do_not_make_a_transaction_larger_than_it_should_be(
    harness: Harness, subscriber: Subscriber, monkeypatch: pytest.MonkeyPatch
) -> None:
    subscription = harness.subscription(subscriber)
    monkeypatch.setattr(subscription.runner.processor, "at_once", 20)
    monkeypatch.setattr(subscription.runner.processor, "most_at_once", 20, raising=False)
    loaded = counted_loads(harness, monkeypatch)
    last = [harness.stored(f"c{n}", *(Added(amount=1) for _ in range(30)))[-1] for n in range(10)]
    harness.deliver(subscription, last)
    assert subscription.runner.processor.positions([f"c{n}" for n in range(10)]) == {f"c{n}": 30 for n in range(10)}
    assert max(loaded) <= 20
    assert not harness.window.unfinished


def test_large_events_make_the_next_batch_smaller(
    harness: Harness, subscriber: Subscriber, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch that catches up is read from the store: it must fit into memory."""
    last = [harness.stored(f"c{n:02}", *(Added(amount=1) for _ in range(10)))[-1] for n in range(10)]
    size = len(last[0].events)
    monkeypatch.setattr(EventProcessor, "bytes_at_once", 5 * size)
    subscription = harness.subscription(subscriber)
    processor = subscription.runner.processor
    monkeypatch.setattr(processor, "at_once", 20)
    loaded = counted_loads(harness, monkeypatch)
    harness.deliver(subscription, last)
    harness.deliver(
        subscription, [harness.stored(f"c{n:02}", Added(amount=1), Added(amount=1), after=10)[-1] for n in range(10)]
    )
    assert processor.positions([f"c{n:02}" for n in range(10)]) == {f"c{n:02}": 12 for n in range(10)}
    assert loaded[0] > 5
    assert max(loaded[1:]) <= 5
    assert processor.limit == 5


def test_a_transaction_of_a_projection_grows_while_its_handlers_are_fast(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_processors, "SECONDS_AT_ONCE", 1e9)
    subscription = harness.subscription(subscribers.instance(Entries))
    processor = subscription.runner.processor
    processor.at_once = 5
    harness.deliver(subscription, one_each(harness, "ab"))
    assert processor.at_once == 5, "less than half of a batch does not show the pace"
    harness.deliver(subscription, one_each(harness, "cdef"))
    assert processor.at_once == 10_000


def test_a_slow_transaction_makes_the_next_one_smaller_however_small_it_was(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_processors, "SECONDS_AT_ONCE", 0.0)
    subscription = harness.subscription(subscribers.instance(Entries))
    processor = subscription.runner.processor
    processor.at_once = 10_000
    harness.deliver(subscription, one_each(harness, "ab"))
    assert processor.at_once == LEAST_AT_ONCE


def test_works_are_divided_by_the_size_that_the_transaction_before_has_set(
    harness: Harness, behaviour: Behaviour, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_processors, "SECONDS_AT_ONCE", 1e9)
    calls_before: list[int] = []
    subscription = harness.subscription(
        subscribers.instance(Entries), hand_over=lambda: calls_before.append(len(behaviour.calls))
    )
    subscription.runner.processor.at_once = 2
    harness.deliver(subscription, one_each(harness, "abcdefg"))
    assert set(calls_before) == {0, 2, 7}, "two, and then all others together"


def test_a_command_that_cannot_be_sent_parks_the_refusal_it_follows_from(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    def send(commands: object) -> None:
        raise ValueError("cannot be encoded")

    monkeypatch.setattr(harness, "_send", send)
    subscription = harness.subscription(subscribers.instance(Kindness), attempts=1)
    harness.deliver(subscription, [harness.refused("c", TooMuch("no", amount=1))])
    assert [(row.version, row.error_type) for row in harness.parked("following.kindness")] == [(None, "ValueError")]


def test_who_waits_hears_of_a_parked_stream_whose_first_event_is_unknown(
    harness: Harness, behaviour: Behaviour
) -> None:
    (record,) = harness.stored("c", [Noted(), Opened(owner="ann"), Added(amount=1)])
    from enode_django.models import EventStream

    newer = record._replace(events=record.events.replace(b"following.Noted", b"following.Newer"))
    EventStream.unprotected.filter(aggregate_root_id="c").update(events=newer.events)
    harness.deliver(harness.subscription(subscribers.instance(Entries), attempts=1), [newer], "in1")
    assert [notice.error for _, notice in harness.notices] == ["UnknownMessageType"]


def test_events_of_two_kinds_at_once_are_followed_by_either(harness: Harness, behaviour: Behaviour) -> None:
    from enode_django import AggregateRoot, DomainEvent, Projection, applies, handles

    class Moved(DomainEvent):
        type_name = "review.Moved"

    class Audited(DomainEvent):
        type_name = "review.Audited"

    class Renamed(Moved, Audited):
        type_name = "review.Renamed"

    class Shelf(AggregateRoot):
        type_name = "review.Shelf"

        @applies(Moved)
        def _moved(self, event: Moved) -> None: ...

    class Audits(Projection):
        name = "review.audits"
        abstract = True
        models = Entries.models

        @handles(Audited)
        def audited(self, event: Audited) -> None:
            behaviour.calls.append(event.id)

    record = stream_of("s", 1, [Renamed()], Shelf)
    harness.store.append([record])
    harness.deliver(harness.subscription(Audits()), [record])
    assert behaviour.calls == ["s/1/0"]


def test_a_long_history_does_not_go_on_version_by_version_after_a_failure(
    harness: Harness, behaviour: Behaviour, subscriber: Subscriber, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise all other aggregates would wait for one transaction per version."""
    original = behaviour.handle
    failures = ["c/400/0", "c/200/0"]

    def handle(event: Added) -> None:
        if failures and event.id == failures[-1]:
            behaviour.failing["c"] = 1
        original(event)

    subscription = harness.subscription(subscriber)
    applied: list[int] = []
    apply = subscription.runner.processor.apply

    def count(*arguments: object, **options: bool) -> object:
        applied.append(1)
        return apply(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(behaviour, "handle", handle)
    monkeypatch.setattr(subscription.runner.processor, "apply", count)
    harness.deliver(subscription, harness.stored("c", *(Added(amount=1) for _ in range(600)))[-1:])
    while failures:
        failures.pop()
        harness.clock.now += 10.0
        subscription.retry_due()
    assert subscription.runner.processor.positions(["c"]) == {"c": 600}
    assert not harness.window.unfinished
    assert len(applied) < 100
