"""A key for the whole process manager, handlers that join events, one handler for refusals and crashes, and a process
that keeps the event which began it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations

import pytest

from enode_django import CommandCrashed, DomainEvent
from enode_django.eventing.event_subscription import EventSubscription
from enode_django.eventing.state_types import plain_state
from enode_django.eventstore.base import StreamRecord
from enode_django.models import ProcessState
from enode_django.testing import given
from tests.following.domain import Behaviour
from tests.following.harness import Harness, stream_of
from tests.following.processes import (
    Deliver,
    Deliveries,
    Finished,
    NotPaid,
    Order,
    Paid,
    Parcels,
    Payment,
    Placed,
    Remind,
)

PARTS: dict[str, Sequence[DomainEvent]] = {
    "o1": [Placed(price=9), Finished()],
    "p1": [Paid(order="o1", amount=4), Paid(order="o1", amount=5)],
}


def parts(harness: Harness) -> dict[str, list[StreamRecord]]:
    """Return the stored streams of an order and of its payment."""
    kinds = {"o1": Order, "p1": Payment}
    found = {
        id: [stream_of(id, version, [event], kinds[id]) for version, event in enumerate(events, 1)]
        for id, events in PARTS.items()
    }
    for records in found.values():
        harness.store.append(records)
    return found


def subscription(harness: Harness, attempts: int = 3) -> EventSubscription:
    return harness.subscription(Deliveries(), attempts=attempts)


def delivered(harness: Harness) -> list[tuple[str, object]]:
    return [(one.aggregate_root_id, one.price) for one in harness.sent if isinstance(one, Deliver)]


def state() -> dict[str, object]:
    return plain_state(bytes(ProcessState.objects.get(subscriber="processes.deliveries", key="o1").state))


@pytest.mark.parametrize("order", sorted(set(permutations(["o1", "o1", "p1", "p1"]))))
def test_events_are_joined_once_in_whatever_order_they_come(harness: Harness, order: Sequence[str]) -> None:
    going, left = subscription(harness), parts(harness)
    for id in order:
        harness.deliver(going, [left[id].pop(0)])
    assert delivered(harness) == [("parcel-o1", 9)]
    assert state() == {"order": "o1", "price": 9, "@joined": state()["@joined"]}
    assert set(state()["@joined"]) == {"processes.Paid", "processes.Finished"}  # type: ignore[call-overload]


def test_events_of_one_batch_are_joined_and_redelivered_ones_are_not(harness: Harness) -> None:
    records = [one for some in parts(harness).values() for one in some]
    for _ in range(2):
        harness.deliver(subscription(harness), records)
    assert delivered(harness) == [("parcel-o1", 9)]


def test_a_handler_that_fails_at_the_last_event_is_called_with_it_again(harness: Harness, behaviour: Behaviour) -> None:
    going, streams = subscription(harness, attempts=2), parts(harness)
    harness.deliver(going, streams["o1"])
    behaviour.failing["p1"] = 1
    harness.deliver(going, streams["p1"][:1])
    assert (delivered(harness), state()["@joined"]) == ([], ["processes.Finished"])
    harness.clock.now += 100
    going.retry_due()
    assert delivered(harness) == [("parcel-o1", 9)]


def test_a_refusal_and_a_crash_come_to_one_handler_by_the_field_that_has_the_key(harness: Harness) -> None:
    going, streams = subscription(harness), parts(harness)
    harness.deliver(going, streams["o1"][:1])
    harness.deliver(going, [harness.refused("p9", NotPaid("no", order=None), kind="processes.Payment")])
    assert ProcessState.objects.count() == 1, "a refusal without an order concerns none"
    crash = CommandCrashed.of(Deliver("parcel", order="o1", price=9), KeyError("car"), sender="processes.deliveries")
    harness.deliver(going, [harness.refused("parcel", crash, kind="processes.Order")])
    assert [(type(one), one.aggregate_root_id) for one in harness.sent] == [(Remind, "o1")]
    assert ProcessState.objects.get().ended_at is not None


def test_a_refusal_alone_comes_there_too(harness: Harness) -> None:
    going, streams = subscription(harness), parts(harness)
    harness.deliver(going, streams["o1"][:1])
    harness.deliver(going, [harness.refused("p9", NotPaid("no", order="o1"), kind="processes.Payment")])
    assert [one.why for one in harness.sent if isinstance(one, Remind)] == ["NotPaid"]


@pytest.mark.parametrize("order", sorted(set(permutations(["o1", "o1", "p1"]))))
def test_a_process_keeps_the_event_that_began_it(harness: Harness, order: Sequence[str]) -> None:
    streams = parts(harness)
    going, began = harness.subscription(Parcels()), streams["o1"][0]
    for id in order:
        harness.deliver(going, [streams[id].pop(0)])
    sent = [one for one in harness.sent if isinstance(one, Deliver)]
    assert [(one.aggregate_root_id, one.order, one.price) for one in sent] == [("parcel-o1", began.command_id, 9)]
    assert [one.why for one in harness.sent if isinstance(one, Remind)] == ["placed for 9"]
    harness.deliver(going, [harness.refused("p9", NotPaid("no", order="o1"), kind="processes.Payment")])
    assert [one.why for one in harness.sent if isinstance(one, Remind)] == ["placed for 9", "not paid"]
    assert ProcessState.objects.get().ended_at is not None


def test_the_kit_shows_the_event_that_a_process_keeps() -> None:
    scenario = given(Parcels, "o1", Placed(price=9)).when(Finished())
    scenario.then_nothing().then_state(Placed(price=9))
    scenario.when(Paid(order="o1", amount=9), of="p1").then(
        Deliver("parcel-o1", order=scenario.state.command_id, price=9)
    )
