"""Values that are unique across aggregates: one that comes too early waits for the others."""

from __future__ import annotations

import pytest

from enode_django import ModelProjection, Projection, handles
from enode_django.equeue.transports.memory import MemoryTransport
from enode_django.eventing.follower import Follower
from enode_django.eventing.registry import subscribers
from enode_django.eventing.retrying import CONFLICT_PATIENCE
from enode_django.eventing.subscribers import Subscriber
from enode_django.eventstore.base import StreamRecord
from enode_django.runtime import make_follower
from tests.following.domain import CounterRow, Opened
from tests.following.harness import Harness

PATIENCE = 60.0


class Names(ModelProjection[CounterRow]):
    """An aggregate's last owner is its name, which no other has."""

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
def follower(harness: Harness, projection: Subscriber) -> Follower:
    follower = harness.follower(projection)
    follower.policy = follower.policy._replace(conflict_patience=PATIENCE)
    return follower


def names() -> dict[str, str | None]:
    return dict(CounterRow.objects.values_list("pk", "note"))


def named(harness: Harness, id: str, *given: str, after: int = 0) -> list[StreamRecord]:
    return harness.stored(id, *(Opened(owner=name) for name in given), after=after)


def test_one_that_takes_a_value_too_early_is_handled_as_soon_as_another_has_let_go_of_it(
    harness: Harness, follower: Follower
) -> None:
    harness.deliver(follower, named(harness, "a", "x"))
    lets_go, takes = named(harness, "a", "y", after=1), named(harness, "b", "x")
    harness.deliver(follower, takes)
    assert (names(), follower.next_retry) == ({"a": "x"}, harness.clock.now + 1.0)
    harness.deliver(follower, lets_go)
    assert follower.next_retry == harness.clock.now
    follower.retry_due()
    assert names() == {"a": "y", "b": "x"}
    assert (follower.next_retry, harness.window.unfinished, harness.parked(follower.subscriber.name)) == (None, 0, [])


def test_two_aggregates_swap_a_value_in_one_batch(harness: Harness, follower: Follower) -> None:
    harness.deliver(follower, [*named(harness, "a", "x"), *named(harness, "b", "y")])
    harness.deliver(follower, [*named(harness, "a", "free", "y", after=1), *named(harness, "b", "x", after=1)])
    for _ in range(4):
        follower.retry_due()
    assert names() == {"a": "y", "b": "x"}
    assert harness.parked(follower.subscriber.name) == []


def test_one_whose_value_another_lets_go_of_late_waits_longer_than_for_other_failures(
    harness: Harness, follower: Follower
) -> None:
    harness.deliver(follower, named(harness, "a", "x"))
    harness.deliver(follower, named(harness, "b", "x"))
    wait(harness, follower, PATIENCE - 5)
    assert (names(), harness.parked(follower.subscriber.name)) == ({"a": "x"}, [])
    CounterRow.objects.filter(pk="a").update(note="y")  # as another worker does
    wait(harness, follower, 5)
    assert names() == {"a": "y", "b": "x"}
    assert (follower.next_retry, harness.parked(follower.subscriber.name)) == (None, [])


def test_one_whose_value_nobody_lets_go_of_is_parked_in_the_end_and_others_go_on(
    harness: Harness, follower: Follower
) -> None:
    harness.deliver(follower, named(harness, "a", "x"))
    harness.deliver(follower, named(harness, "b", "x"))
    harness.deliver(follower, named(harness, "c", "z"))
    wait(harness, follower, PATIENCE + 10)
    (parked,) = harness.parked(follower.subscriber.name)
    assert (parked.aggregate_root_id, parked.version, parked.error_type) in [
        ("b", 1, "IntegrityError"),
        ("b", 1, "UniqueViolation"),
    ]
    assert 3 < parked.attempts < 25
    assert names() == {"a": "x", "c": "z"}
    assert (follower.next_retry, harness.window.unfinished) == (None, 0)


def test_other_violations_of_a_projection_do_not_wait_for_others(harness: Harness, follower: Follower) -> None:
    harness.deliver(follower, named(harness, "a", "much too long" * 10))
    wait(harness, follower, 10)
    assert [parked.attempts for parked in harness.parked(follower.subscriber.name)] == [3]


def wait(harness: Harness, follower: Follower, seconds: float) -> None:
    for _ in range(int(seconds)):
        harness.clock.now += 1.0
        follower.retry_due()


def test_workers_wait_for_others_that_long(harness: Harness, projection: Subscriber) -> None:
    follower = make_follower(projection, MemoryTransport(), harness.store)
    assert follower.policy.conflict_patience == CONFLICT_PATIENCE == PATIENCE
