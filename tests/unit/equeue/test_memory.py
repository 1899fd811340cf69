from __future__ import annotations

import threading

import pytest

from enode_django.equeue.messages import Commit
from enode_django.equeue.transport import PRODUCER_SECONDS
from enode_django.equeue.transports.memory import MemoryTransport
from enode_django.exceptions import QueueHeld


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def transport(clock: Clock) -> MemoryTransport:
    transport = MemoryTransport(clock=clock)
    transport.create_topic("topic", 2)
    return transport


def test_lease_ends_to_the_moment(transport: MemoryTransport, clock: Clock) -> None:
    transport.acquire("group", "topic", 0, "one", 10)
    clock.now += 9.5
    with pytest.raises(QueueHeld) as held:
        transport.acquire("group", "topic", 0, "two", 10)
    assert held.value.seconds == 0.5
    clock.now += 0.5
    assert transport.acquire("group", "topic", 0, "two", 10) == (2, 0, 0, "one", {})


def test_renewal_counts_from_now(transport: MemoryTransport, clock: Clock) -> None:
    epoch = transport.acquire("group", "topic", 0, "one", 10).epoch
    clock.now += 5
    transport.renew("group", "topic", "one", {0: epoch}, 10)
    clock.now += 9
    with pytest.raises(QueueHeld):
        transport.acquire("group", "topic", 0, "two", 10)


def test_owner_of_a_lease_that_ran_out_is_not_its_own_predecessor(transport: MemoryTransport, clock: Clock) -> None:
    transport.acquire("group", "topic", 0, "one", 10)
    clock.now += 60
    assert transport.acquire("group", "topic", 0, "one", 10).previous_owner is None


def test_trim_deletes_all_that_is_committed(transport: MemoryTransport) -> None:
    transport.send("topic", {0: [b"a", b"b"]})
    epoch = transport.acquire("group", "topic", 0, "one", 10).epoch
    transport.commit("group", "topic", {0: Commit(epoch, 9)})  # more than there is
    transport.trim("topic")
    transport.send("topic", {0: [b"c"]})
    (batch,) = transport.pull("topic", {0: 0}, limit=10, wait=0)
    assert (list(batch.offsets), list(batch.bodies)) == ([2], [b"c"])


def test_producer_that_is_silent_is_forgotten(transport: MemoryTransport, clock: Clock) -> None:
    transport.announce("topic", "silent")
    clock.now += PRODUCER_SECONDS - 1
    transport.announce("topic", "busy")
    assert transport.producers("topic") == {"busy": 0, "silent": PRODUCER_SECONDS - 1}
    clock.now += 1
    assert transport.producers("topic") == {"busy": 1}


def test_closing_an_inbox_wakes_who_waits_for_it(transport: MemoryTransport) -> None:
    inbox = transport.open_inbox()
    received: list[bytes] = [b"not yet"]
    waiting = threading.Thread(target=lambda: received.__setitem__(slice(None), inbox.receive(60)))
    waiting.start()
    inbox.close()
    waiting.join(60)
    assert received == []
