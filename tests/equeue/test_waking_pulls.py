"""A thread that waits in a long pull learns at once that its queues have changed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing

import pytest

from enode_django.equeue.consumer import IDLE_PULL, LOOK_AGAIN, WORKING_PULL, QueueConsumer
from enode_django.equeue.messages import PulledBatch
from enode_django.equeue.transports.base import WakesPulls
from enode_django.equeue.transports.broker import BrokerTransport
from enode_django.equeue.transports.memory import MemoryTransport
from sample_project.embedded import Broker

TOPIC = "t"
SOON, NEVER = 20.0, 300.0


@pytest.fixture
def transport(private_broker: Broker) -> Iterator[BrokerTransport]:
    with closing(BrokerTransport(private_broker.url)) as transport:
        transport.create_topic(TOPIC, 2)
        yield transport


class Pulling:
    """Pulls in a thread of its own, for longer than the test may take."""

    def __init__(self, transport: BrokerTransport, before: Callable[[int], object] = lambda thread: None) -> None:
        self.found: Sequence[PulledBatch] | None = None
        self._transport, self._before = transport, before
        self.began = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()
        assert self.began.wait(SOON)

    def _run(self) -> None:
        self._before(threading.get_ident())
        self.began.set()
        self.found = self._transport.pull(TOPIC, {0: 0}, limit=1, wait=NEVER)

    def end(self) -> None:
        self.thread.join(SOON)
        assert not self.thread.is_alive()


def test_a_pull_that_is_woken_returns_nothing_and_the_next_one_works(transport: BrokerTransport) -> None:
    pulling = Pulling(transport)
    assert pulling.thread.ident is not None
    transport.wake(pulling.thread.ident)
    pulling.end()
    assert pulling.found == []
    transport.send(TOPIC, {0: [b"one"]})
    (batch,) = transport.pull(TOPIC, {0: 0}, limit=1, wait=SOON)
    assert batch.bodies == [b"one"]


def test_whoever_is_woken_before_it_pulls_does_not_wait(transport: BrokerTransport) -> None:
    pulling = Pulling(transport, before=transport.wake)
    pulling.end()
    assert pulling.found == []


def test_nobody_else_is_woken(transport: BrokerTransport) -> None:
    pulling = Pulling(transport)
    transport.wake(threading.get_ident())
    assert transport.pull(TOPIC, {1: 0}, limit=1, wait=NEVER) == []
    assert pulling.thread.is_alive()
    transport.send(TOPIC, {0: [b"one"]})
    pulling.end()
    assert pulling.found


def test_a_member_that_is_given_other_queues_or_leaves_is_woken(transport: BrokerTransport) -> None:
    consumer = QueueConsumer(transport, group="g", topic=TOPIC, owner="a", lease=NEVER)
    assert consumer.pull_wait == IDLE_PULL, "nothing is to be taken"
    consumer.join()
    assert consumer.pull_wait == LOOK_AGAIN, "it is to take queues"
    consumer.acquire_missing()
    assert consumer.pull_wait == IDLE_PULL
    woken, begins = threading.Semaphore(0), threading.Event()

    def pull() -> None:
        for _ in range(2):
            consumer.pull(1, 0)
            begins.set()
            consumer.pull(1, NEVER)
            woken.release()

    threading.Thread(target=pull, daemon=True).start()
    assert begins.wait(SOON)
    consumer.join()
    assert not woken.acquire(blocking=False), "nothing has changed"
    transport.join("g", TOPIC, "b", NEVER)
    consumer.join()
    assert woken.acquire(timeout=SOON)
    consumer.leave()
    assert woken.acquire(timeout=SOON)


def test_while_something_is_unfinished_pulls_are_shorter(transport: BrokerTransport) -> None:
    """A queue whose window is full is left out of the pull that is under way, and must not be for long."""
    consumer = QueueConsumer(transport, group="g", topic=TOPIC, owner="a", lease=NEVER)
    consumer.join()
    consumer.acquire_missing()
    transport.send(TOPIC, {0: [b"one", b"two"]})
    (pulled,) = consumer.pull(2, SOON)
    assert consumer.pull_wait == WORKING_PULL
    pulled.window.finish(pulled.offsets[0])
    assert consumer.pull_wait == WORKING_PULL
    pulled.window.finish(pulled.offsets[1])
    assert consumer.pull_wait == IDLE_PULL


def test_from_a_queue_that_wakes_nobody_pulls_are_short() -> None:
    transport = MemoryTransport()
    transport.create_topic(TOPIC, 1)
    consumer = QueueConsumer(transport, group="g", topic=TOPIC, owner="a", lease=NEVER)
    consumer.join()
    consumer.acquire_missing()
    assert not isinstance(transport, WakesPulls)
    assert consumer.pull_wait == LOOK_AGAIN
