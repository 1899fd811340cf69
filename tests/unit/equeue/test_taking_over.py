"""A queue that was taken over is always told of: its previous owner's sessions must be ended, its cache dropped."""

from __future__ import annotations

import pytest

from enode_django.equeue.consumer.queue_consumer import QueueConsumer
from enode_django.equeue.messages import Lease, Start
from enode_django.equeue.transports.memory import MemoryTransport
from enode_django.exceptions import TransportUnavailable


class FailsToAcquire(MemoryTransport):
    """Cannot be reached when this queue is acquired for the first time."""

    failing: int | None = None

    def acquire(
        self, group: str, topic: str, queue: int, owner: str, lease: float, *, start: Start | int = Start.FIRST
    ) -> Lease:
        if queue == self.failing:
            self.failing = None
            raise TransportUnavailable("gone for a moment")
        return super().acquire(group, topic, queue, owner, lease, start=start)


@pytest.fixture
def transport() -> FailsToAcquire:
    transport = FailsToAcquire()
    transport.create_topic("commands", 3)
    return transport


def consumer(transport: MemoryTransport, ticks: list[float]) -> QueueConsumer:
    return QueueConsumer(
        transport, group="g", topic="commands", owner="new", lease=10.0, clock=lambda: ticks.append(0.0) or len(ticks)
    )


def test_every_queue_taken_over_is_told_of_though_the_next_one_could_not_be_reached(transport: FailsToAcquire) -> None:
    for queue in range(3):
        transport.acquire("g", "commands", queue, "dead", 60.0)
    transport.failing = 1
    transport.bury("g", "commands", "dead")
    new = consumer(transport, [])
    new.assign(range(3))
    told = [(one.window.queue, one.previous_owner) for _ in range(2) for one in new.acquire_missing()]
    assert sorted(told) == [(0, "dead"), (1, "dead"), (2, "dead")]


def test_transport_that_lets_nothing_be_acquired_is_no_secret(transport: FailsToAcquire) -> None:
    transport.failing = 0
    new = consumer(transport, [])
    new.assign(range(3))
    with pytest.raises(TransportUnavailable):
        new.acquire_missing()


def test_drained_queues_are_given_back_though_no_other_can_be_acquired(transport: FailsToAcquire) -> None:
    old = consumer(transport, [])
    old.assign([0])
    old.acquire_missing()
    transport.failing = 1
    old.assign([1])
    assert old.acquire_missing() == []
    old.release_drained()
    assert transport.acquire("g", "commands", 0, "other", 60.0).previous_owner is None
