"""Events of an aggregate are handled in the order of versions, whatever the queue delivers."""

from __future__ import annotations

import pytest

from enode_django.eventing.registry import subscribers
from enode_django.eventing.subscribers import Subscriber
from tests.following.domain import Added, Behaviour, CounterRows, Entries, Guest, Noted, Opened, Thanked, handler_group
from tests.following.harness import Harness, shuffled, stream_of


def every_kind() -> list[Subscriber]:
    return [subscribers.instance(CounterRows), subscribers.instance(Entries), handler_group()]


@pytest.fixture(params=["rows", "entries", "handlers"])
def subscriber(request: pytest.FixtureRequest) -> Subscriber:
    return next(one for one in every_kind() if one.name == f"following.{request.param}")


def calls(behaviour: Behaviour) -> list[str]:
    return [call for call in behaviour.calls if call != "second"]


def test_events_1_3_2_are_handled_1_2_3_each_once(
    harness: Harness, behaviour: Behaviour, subscriber: Subscriber
) -> None:
    one, two, three = harness.stored("c", Added(amount=1), Added(amount=2), Added(amount=3))
    subscription = harness.subscription(subscriber)
    harness.deliver(subscription, [one, three, two])
    assert calls(behaviour) == ["c/1/0", "c/2/0", "c/3/0"]


def test_messages_in_wrong_order_over_several_batches(
    harness: Harness, behaviour: Behaviour, subscriber: Subscriber
) -> None:
    one, two, three = harness.stored("c", Added(amount=1), Added(amount=2), Added(amount=3))
    subscription = harness.subscription(subscriber)
    for record in (one, three, two):
        harness.deliver(subscription, [record])
    assert calls(behaviour) == ["c/1/0", "c/2/0", "c/3/0"]
    assert harness.window.committable == 3


def test_a_gap_is_read_from_the_store_at_once(harness: Harness, behaviour: Behaviour, subscriber: Subscriber) -> None:
    records = harness.stored("c", *(Added(amount=n) for n in range(1, 6)))
    harness.deliver(harness.subscription(subscriber), records[-1:])
    assert calls(behaviour) == [f"c/{n}/0" for n in range(1, 6)]


@pytest.mark.parametrize("seed", range(5))
def test_every_message_twice_and_shuffled_is_handled_once(
    harness: Harness, behaviour: Behaviour, subscriber: Subscriber, seed: int
) -> None:
    records = [r for id in "abc" for r in harness.stored(id, *(Added(amount=n) for n in range(1, 8)))]
    subscription = harness.subscription(subscriber)
    messages = shuffled(records, seed)
    for start in range(0, len(messages), 5):
        harness.deliver(subscription, messages[start : start + 5])
    assert sorted(calls(behaviour)) == sorted(f"{id}/{n}/0" for id in "abc" for n in range(1, 8))
    for id in "abc":
        assert [call for call in calls(behaviour) if call.startswith(id)] == [f"{id}/{n}/0" for n in range(1, 8)]
    assert not harness.window.unfinished


def test_checkpoints_move_over_versions_with_nothing_to_handle(harness: Harness, subscriber: Subscriber) -> None:
    records = harness.stored("c", Noted(), Noted())
    subscription = harness.subscription(subscriber)
    harness.deliver(subscription, records)
    assert subscription.runner.processor.positions(["c"]) == {"c": 2}
    assert not harness.window.unfinished


def test_aggregates_that_cannot_have_followed_events_get_no_checkpoint(
    harness: Harness, subscriber: Subscriber
) -> None:
    record = stream_of("guest", 1, [Thanked()], Guest)
    harness.store.append([record])
    subscription = harness.subscription(subscriber)
    harness.deliver(subscription, [record])
    assert harness.checkpoint(subscriber.name, "guest") is None
    assert not harness.window.unfinished


def test_a_long_history_is_handled_in_portions(harness: Harness, behaviour: Behaviour, subscriber: Subscriber) -> None:
    records = harness.stored("c", *(Added(amount=1) for _ in range(2_345)))
    harness.deliver(harness.subscription(subscriber), records[-1:])
    assert len(calls(behaviour)) == 2_345


def test_a_garbage_message_is_finished_and_the_rest_goes_on(
    harness: Harness, behaviour: Behaviour, subscriber: Subscriber
) -> None:
    pulled = harness.pulled(harness.stored("c", Added(amount=1), Added(amount=2)))
    pulled.bodies[0] = b"garbage"
    harness.subscription(subscriber).handle([pulled])
    assert calls(behaviour) == ["c/1/0", "c/2/0"]
    assert not harness.window.unfinished


def test_several_events_of_one_stream_are_handled_in_order(harness: Harness, behaviour: Behaviour) -> None:
    records = harness.stored("c", [Opened(owner="ann"), Noted(), Added(amount=4), Added(amount=5)])
    harness.deliver(harness.subscription(subscribers.instance(CounterRows)), records)
    assert behaviour.calls == ["c/1/0", "c/1/2", "c/1/3"]
    assert harness.rows() == {"c": ("ann", 9, 1)}


def test_whoever_waits_is_told_once_it_is_handled_and_again_for_a_repeat(
    harness: Harness, subscriber: Subscriber
) -> None:
    records = harness.stored("c", Added(amount=1), Noted())
    subscription = harness.subscription(subscriber)
    harness.deliver(subscription, records, reply_to="in1")
    # There is a notice only for the stream with an event that the subscriber handles.
    assert [(address, n.command_id, n.error) for address, n in harness.notices] == [("in1", records[0].command_id, "")]
    harness.deliver(subscription, records[:1], reply_to="in2")
    assert harness.notices[-1][0] == "in2"
    assert harness.notices[-1][1].subscriber == subscriber.name


def test_a_version_that_the_store_does_not_have_holds_nothing_up(harness: Harness, behaviour: Behaviour) -> None:
    lost = stream_of("c", 3, [Added(amount=3)])
    one = harness.stored("c", Added(amount=1))
    subscription = harness.subscription(subscribers.instance(Entries))
    harness.deliver(subscription, [lost])
    assert harness.entries("c") == [(1, 1)]
    harness.deliver(subscription, one)
    assert harness.entries("c") == [(1, 1)]
