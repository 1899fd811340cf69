"""Values that are unique across aggregates: an aggregate whose value is still taken waits for the others."""

from __future__ import annotations

import pytest

from enode_django import ModelProjection, Projection, handles
from enode_django.equeue.transports.memory import MemoryTransport
from enode_django.eventing.event_subscription import EventSubscription
from enode_django.eventing.registry import subscribers
from enode_django.eventing.retry_decisions import CONFLICT_PATIENCE
from enode_django.eventing.subscribers import Subscriber
from enode_django.eventstore.base import StreamRecord
from enode_django.runtime import make_subscription
from tests.following.domain import CounterRow, Opened
from tests.following.harness import Harness

PATIENCE = 60.0


class Names(ModelProjection[CounterRow]):
    """Keeps an aggregate's last owner in the unique field ``note``."""

    name = "following.names"
    model = CounterRow

    @handles(Opened)
    def opened(self, row: CounterRow, event: Opened) -> None:
        row.note = event.owner


class NamesByHand(Projection):
    name = "following.names_by_hand"
    models = (CounterRow,)

    @handles(Opened)
    def opened(self, event: Opened) -> None:
        CounterRow.objects.update_or_create(pk=event.aggregate_root_id, defaults={"note": event.owner})


@pytest.fixture(params=[Names, NamesByHand])
def projection(request: pytest.FixtureRequest) -> Subscriber:
    return subscribers.instance(request.param)


@pytest.fixture
def subscription(harness: Harness, projection: Subscriber) -> EventSubscription:
    subscription = harness.subscription(projection)
    subscription.policy = subscription.policy._replace(conflict_patience=PATIENCE)
    return subscription


def names() -> dict[str, str | None]:
    return dict(CounterRow.objects.values_list("pk", "note"))


def named(harness: Harness, id: str, *given: str, after: int = 0) -> list[StreamRecord]:
    return harness.stored(id, *(Opened(owner=name) for name in given), after=after)


def test_one_that_takes_a_value_too_early_is_handled_as_soon_as_another_has_let_go_of_it(
    harness: Harness, subscription: EventSubscription
) -> None:
    harness.deliver(subscription, named(harness, "a", "x"))
    lets_go, takes = named(harness, "a", "y", after=1), named(harness, "b", "x")
    harness.deliver(subscription, takes)
    assert (names(), subscription.next_retry) == ({"a": "x"}, harness.clock.now + 1.0)
    harness.deliver(subscription, lets_go)
    assert subscription.next_retry == harness.clock.now
    subscription.retry_due()
    assert names() == {"a": "y", "b": "x"}
    assert (subscription.next_retry, harness.window.unfinished, harness.parked(subscription.subscriber.name)) == (
        None,
        0,
        [],
    )


def test_two_aggregates_swap_a_value_in_one_batch(harness: Harness, subscription: EventSubscription) -> None:
    harness.deliver(subscription, [*named(harness, "a", "x"), *named(harness, "b", "y")])
    harness.deliver(subscription, [*named(harness, "a", "free", "y", after=1), *named(harness, "b", "x", after=1)])
    for _ in range(4):
        subscription.retry_due()
    assert names() == {"a": "y", "b": "x"}
    assert harness.parked(subscription.subscriber.name) == []


def test_one_whose_value_another_lets_go_of_late_waits_longer_than_for_other_failures(
    harness: Harness, subscription: EventSubscription, caplog: pytest.LogCaptureFixture
) -> None:
    harness.deliver(subscription, named(harness, "a", "x"))
    harness.deliver(subscription, named(harness, "b", "x"))
    wait(harness, subscription, PATIENCE - 5)
    assert (names(), harness.parked(subscription.subscriber.name)) == ({"a": "x"}, [])
    assert f"(1, tried for {PATIENCE:g} s): " in caplog.text
    CounterRow.objects.filter(pk="a").update(note="y")  # as another worker might
    wait(harness, subscription, 5)
    assert names() == {"a": "y", "b": "x"}
    assert (subscription.next_retry, harness.parked(subscription.subscriber.name)) == (None, [])


def test_one_whose_value_nobody_lets_go_of_is_parked_in_the_end_and_others_go_on(
    harness: Harness, subscription: EventSubscription
) -> None:
    harness.deliver(subscription, named(harness, "a", "x"))
    harness.deliver(subscription, named(harness, "b", "x"))
    harness.deliver(subscription, named(harness, "c", "z"))
    wait(harness, subscription, PATIENCE + 10)
    (parked,) = harness.parked(subscription.subscriber.name)
    assert (parked.aggregate_root_id, parked.version, parked.error_type) in [
        ("b", 1, "IntegrityError"),
        ("b", 1, "UniqueViolation"),
    ]
    assert 3 < parked.attempts < 25
    assert names() == {"a": "x", "c": "z"}
    assert (subscription.next_retry, harness.window.unfinished) == (None, 0)


def test_other_violations_of_a_projection_do_not_wait_for_others(
    harness: Harness, subscription: EventSubscription
) -> None:
    harness.deliver(subscription, named(harness, "a", "much too long" * 10))
    wait(harness, subscription, 10)
    assert [parked.attempts for parked in harness.parked(subscription.subscriber.name)] == [3]


def wait(harness: Harness, subscription: EventSubscription, seconds: float) -> None:
    for _ in range(int(seconds)):
        harness.clock.now += 1.0
        subscription.retry_due()


def test_workers_wait_for_others_that_long(harness: Harness, projection: Subscriber) -> None:
    subscription = make_subscription(projection, MemoryTransport(), harness.store)
    assert subscription.policy.conflict_patience == CONFLICT_PATIENCE == PATIENCE
