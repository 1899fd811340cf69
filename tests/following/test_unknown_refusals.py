"""Refusals of a class that this process does not know are handled when code that knows them arrives, and only these."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import count

import pytest

from enode_django import AggregateRoot, CommandCrashed, ProcessManager, applies, starts
from enode_django.eventing.registry import subscribers
from enode_django.eventing.subscribers import Subscriber
from enode_django.eventing.unparking import retry_parked
from enode_django.eventstore.base import StreamRecord
from enode_django.ids import new_id
from enode_django.models import HandledRefusal, Subscription
from enode_django.serialization.codec import REFUSAL
from enode_django.serialization.plain import pack
from tests.following.domain import Added, Behaviour, Kindness, Noted, TooMuch
from tests.following.harness import Harness, stream_of
from tests.following.processes import Order, Placed, Sale, Sales, Ship
from tests.following.test_sweeping import Sweep

_numbers = count()


@pytest.fixture
def subscriber() -> Subscriber:
    return subscribers.instance(Kindness)


@pytest.fixture
def number() -> int:
    """A number for the type names of this test: a declared class stays known until the process ends."""
    return next(_numbers)


def refused(harness: Harness, id: str, number: int, kind: str) -> StreamRecord:
    refusal = REFUSAL + pack((f"latest.Refusal{number}", 1, "no", {"amount": 7}))
    record = StreamRecord(id, None, new_id(), kind, "latest.Do", datetime.now(UTC), refusal, b"")
    harness.store.append([record])
    return record


def deploy(number: int) -> None:
    """Declare the refusal, and a type of aggregate whose events nobody handles."""

    class Refusal(TooMuch):
        type_name = f"latest.Refusal{number}"

    class Aggregate(AggregateRoot):
        type_name = f"latest.Aggregate{number}"

        @applies
        def _noted(self, event: Noted) -> None: ...


def handled(behaviour: Behaviour) -> list[str]:
    return [id.partition("/")[0] for id in behaviour.calls]


def noted() -> list[str]:
    return [name for subscription in Subscription.objects.all() for name in subscription.passed_over]


@pytest.mark.parametrize("kind", ["", "latest.Aggregate{}"], ids=["of no aggregate", "of an unknown aggregate"])
def test_a_refusal_that_nobody_knows_is_handled_when_the_code_arrives(
    harness: Harness, behaviour: Behaviour, subscriber: Subscriber, number: int, kind: str
) -> None:
    """An old worker may be the one that pulls it, and the one that sweeps."""
    old = Sweep(harness, subscriber)
    kind = kind.format(number)
    harness.deliver(old.subscription, [refused(harness, "x", number, kind)])
    refused(harness, "y", number, kind)
    old.run()
    harness.refused("c", TooMuch("no", amount=1))
    harness.clock.now += 30.0
    old.run()
    assert len(harness.sent) == 1
    assert harness.parked(subscriber.name) == []
    assert not harness.window.unfinished
    deploy(number)
    Sweep(harness, subscriber).run()
    assert sorted(command.aggregate_root_id for command in harness.sent) == ["guest-c", "guest-x", "guest-y"]
    assert noted() == []


def test_a_refusal_that_the_new_code_does_not_handle_is_forgotten(
    harness: Harness, subscriber: Subscriber, number: int
) -> None:
    refused(harness, "x", number, "")
    Sweep(harness, subscriber).run()
    assert noted() == [f"refusal latest.Refusal{number}"]

    from tests.following.domain import Unrelated

    class Refusal(Unrelated):
        type_name = f"latest.Refusal{number}"

    Sweep(harness, subscriber).run()
    assert harness.sent == []
    assert noted() == []


def test_the_way_back_to_an_unknown_type_repeats_no_refusal_that_was_handled_and_forgotten(
    harness: Harness, behaviour: Behaviour, subscriber: Subscriber, number: int
) -> None:
    """A release that was rolled back, and comes again after days: handled refusals are remembered for one day."""
    old = Sweep(harness, subscriber)
    refused(harness, "x", number, f"latest.Aggregate{number}")
    harness.store.append([stream_of("c", 1, [Added(amount=1)])])
    harness.refused("c", TooMuch("no", amount=1))
    old.run()
    assert len(behaviour.calls) == 1
    HandledRefusal.objects.all().delete()
    deploy(number)
    Sweep(harness, subscriber).run()
    assert len(behaviour.calls) == 2
    assert [command.aggregate_root_id for command in harness.sent] == ["guest-c", "guest-x"]


class SalesOfOldCode(ProcessManager):
    """`Sales`, as it was before it handled crashes."""

    name = "processes.sales"
    abstract = True  # it runs only in tests that name it
    start = "beginning"
    state = Sale

    @starts
    def placed(self, sale: Sale, event: Placed) -> None: ...


@pytest.mark.parametrize("kind", ["", "processes.Order", "latest.Unknown"])
def test_the_crash_of_its_command_waits_for_the_code_that_has_sent_it(harness: Harness, kind: str) -> None:
    """Nobody else is told of it, and it is no dead letter."""
    crash, another = (
        CommandCrashed.of(Ship("parcel-o1", paid=1), KeyError("truck"), sender=sender)
        for sender in ("processes.sales", "another")
    )
    old = harness.subscription(subscribers.instance(SalesOfOldCode), attempts=1)
    harness.deliver(old, [stream_of("o1", 1, [Placed(price=9)], Order), harness.refused("x", another, kind=kind)])
    assert harness.parked("processes.sales") == []
    harness.deliver(old, [harness.refused("parcel-o1", crash, kind=kind)])
    (parked,) = harness.parked("processes.sales")
    assert (parked.aggregate_root_id, parked.error_type) == ("parcel-o1", "UnknownMessageType")
    assert "processes.sales does not handle the crash of processes.Ship" in parked.error
    new = harness.subscription(subscribers.instance(Sales))
    assert retry_parked(new, "parcel-o1") is None
    assert [command.aggregate_root_id for command in harness.sent] == ["clerk"]


def test_a_sweep_of_old_code_leaves_the_crash_of_its_command_to_new_code(harness: Harness) -> None:
    old = Sweep(harness, subscribers.instance(SalesOfOldCode))
    crash = CommandCrashed.of(Ship("parcel-o1", paid=1), KeyError("truck"), sender="processes.sales")
    harness.store.append([stream_of("o1", 1, [Placed(price=9)], Order)])
    harness.refused("parcel-o1", crash, kind="")
    old.run()
    assert [one.aggregate_root_id for one in harness.parked("processes.sales")] == ["parcel-o1"]
    retry_parked(harness.subscription(subscribers.instance(Sales)), "parcel-o1")
    assert [command.aggregate_root_id for command in harness.sent] == ["clerk"]


def test_a_forged_refusal_without_fields_ends_nothing(harness: Harness, subscriber: Subscriber) -> None:
    forged = REFUSAL + pack(("following.Unrelated", 1, "no", ["sender"]))
    record = StreamRecord("x", None, new_id(), "following.Counter", "latest.Do", datetime.now(UTC), forged, b"")
    harness.deliver(harness.subscription(subscriber), [record])
    assert not harness.window.unfinished
    assert harness.parked(subscriber.name) == []
