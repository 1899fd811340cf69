"""A thread that waits in a long pull is woken at once when its queues have changed, or when it has to stop."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import pytest

from enode_django.equeue.consumer.broadcasting import BroadcastQueues, OffsetsFile
from enode_django.equeue.consumer.queue_consumer import LOOK_AGAIN, WORKING_PULL, QueueConsumer
from enode_django.equeue.messages import PulledBatch
from enode_django.equeue.redis import wakes as redis_wakes
from enode_django.equeue.redis.wakes import Wakes
from enode_django.equeue.subscribing import Consumer, Limits, Mode
from enode_django.equeue.transport import AT_ONCE, LONG_POLL, Transport, WakesPulls
from enode_django.equeue.transports.memory import MemoryTransport
from tests.equeue.consuming import Handled, eventually, texts

TOPIC = "orders"
SOON, NEVER = 60.0, 300.0


class Waking(Transport, WakesPulls, Protocol):
    """The type of all transports of this package."""


class Pulling:
    """Pulls in another thread, for longer than the test may take."""

    def __init__(self, transport: Waking, before: Callable[[int], object] = lambda thread: None) -> None:
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


def test_a_pull_that_is_woken_returns_nothing_and_the_next_one_works(orders: Waking) -> None:
    pulling = Pulling(orders)
    assert pulling.thread.ident is not None
    orders.wake(pulling.thread.ident)
    pulling.end()
    assert not pulling.found
    orders.send(TOPIC, {0: [b"one"]})
    (batch,) = orders.pull(TOPIC, {0: 0}, limit=1, wait=SOON)
    assert batch.bodies == [b"one"]


def test_whoever_is_woken_before_it_pulls_does_not_wait(orders: Waking) -> None:
    pulling = Pulling(orders, before=orders.wake)
    pulling.end()
    assert not pulling.found


class NotesWaits(MemoryTransport):
    def __init__(self) -> None:
        super().__init__()
        self.waits: list[float] = []

    def pull(self, topic: str, offsets: Mapping[int, int], *, limit: int, wait: float = LONG_POLL) -> Any:
        self.waits.append(wait)
        return super().pull(topic, offsets, limit=limit, wait=wait)


def test_a_consumer_that_may_not_wait_waits_for_no_index_of_the_broker_either(tmp_path: Path) -> None:
    """A pull of 0 s is answered after a damaged index is rebuilt, and cannot be woken."""
    transport = NotesWaits()
    transport.create_topic(TOPIC, 1)
    sharing = QueueConsumer(transport, group="g", topic=TOPIC, owner="me", lease=60)
    sharing.assign([0])
    sharing.acquire_missing()
    for wait in (0.0, SOON):
        sharing.wake()
        sharing.pull(1, wait)
    assert transport.waits == [AT_ONCE, AT_ONCE]


def test_a_pull_that_may_not_wait_leaves_the_wake_to_the_next_one(orders: Waking) -> None:
    def before(thread: int) -> None:
        orders.wake(thread)
        orders.pull(TOPIC, {0: 0}, limit=1, wait=0)

    Pulling(orders, before=before).end()


def test_nobody_else_is_woken(orders: Waking) -> None:
    pulling = Pulling(orders)
    orders.wake(threading.get_ident())
    assert not orders.pull(TOPIC, {1: 0}, limit=1, wait=NEVER)
    assert pulling.thread.is_alive()
    orders.send(TOPIC, {0: [b"one"]})
    pulling.end()
    assert pulling.found


def test_what_has_come_is_delivered_whoever_wakes(orders: Waking) -> None:
    orders.send(TOPIC, {0: texts(*range(300))})
    received: list[bytes] = []
    ends = threading.Event()

    def pull() -> None:
        while len(received) < 300:
            for batch in orders.pull(TOPIC, {0: len(received)}, limit=1, wait=NEVER):
                received.extend(batch.bodies)
        ends.set()

    thread = threading.Thread(target=pull, daemon=True)
    thread.start()
    assert thread.ident is not None
    for _ in range(200):  # bounded, since on a slow machine no pull might end between two calls
        orders.wake(thread.ident)
        if ends.wait(0.001):
            break
    assert ends.wait(SOON)
    assert received == texts(*range(300))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="it is about forks")
def test_threads_that_are_the_first_ones_of_a_forked_child_know_of_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    wakes = Wakes()
    wakes.wake(0)  # from now on it belongs to this process
    child = os.fork()
    if not child:
        status = 1
        try:
            _wait_while_another_thread_begins(wakes, monkeypatch)
            status = 0
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


def _wait_while_another_thread_begins(wakes: Wakes, monkeypatch: pytest.MonkeyPatch) -> None:
    begins, go_on = threading.Event(), threading.Event()
    make_lock, other = threading.Lock, threading.Thread(target=lambda: wakes.wake(0), daemon=True)

    def make_lock_late() -> threading.Lock:
        if threading.current_thread() is other:
            begins.set()
            assert go_on.wait(SOON)
        return make_lock()

    monkeypatch.setattr(redis_wakes.threading, "Lock", make_lock_late)
    other.start()
    assert begins.wait(SOON)
    with wakes.waiting() as wakeup:
        go_on.set()
        other.join(SOON)
        wakes.wake(threading.get_ident())
        assert wakeup.is_woken


@pytest.mark.skipif(not hasattr(os, "fork"), reason="it is about forks")
def test_a_forked_child_waits_and_wakes_for_itself(redis_queue: Waking) -> None:
    redis_queue.create_topic(TOPIC, 2)
    Pulling(redis_queue, before=redis_queue.wake).end()  # the pipe exists from now on
    child = os.fork()
    if not child:
        status = 1
        try:
            redis_queue.wake(threading.get_ident())
            status = len(redis_queue.pull(TOPIC, {0: 0}, limit=1, wait=NEVER))
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


# -- members of a group -----------------------------------------------------------------------------------------------


def test_a_member_that_is_given_other_queues_or_loses_one_or_leaves_is_woken(orders: Waking) -> None:
    consumer = QueueConsumer(orders, group="g", topic=TOPIC, owner="a", lease=NEVER)
    assert consumer.pull_wait == LONG_POLL == 15.0, "nothing is to be taken"
    consumer.join()
    assert consumer.pull_wait == LOOK_AGAIN, "it is to take queues"
    consumer.acquire_missing()
    assert consumer.pull_wait == LONG_POLL
    woken, begins = threading.Semaphore(0), threading.Event()

    def pull() -> None:
        for _ in range(3):
            consumer.pull(1, 0)
            begins.set()
            consumer.pull(1, NEVER)
            woken.release()

    threading.Thread(target=pull, daemon=True).start()
    assert begins.wait(SOON)
    consumer.join()
    assert not woken.acquire(blocking=False), "nothing has changed"
    orders.join("g", TOPIC, "b", NEVER)
    consumer.join()
    assert woken.acquire(timeout=SOON)
    orders.set_offset("g", TOPIC, 0, 0)
    consumer.renew()
    assert woken.acquire(timeout=SOON)
    consumer.leave()
    assert woken.acquire(timeout=SOON)


def test_while_something_is_unfinished_pulls_are_shorter(memory: MemoryTransport) -> None:
    """A running pull leaves out queues whose windows were full when it began, so it must not take long."""
    consumer = QueueConsumer(memory, group="g", topic=TOPIC, owner="a", lease=NEVER)
    consumer.join()
    consumer.acquire_missing()
    memory.send(TOPIC, {0: [b"one", b"two"]})
    (pulled,) = consumer.pull(2, SOON)
    assert consumer.pull_wait == WORKING_PULL
    pulled.window.finish(pulled.offsets[0])
    assert consumer.pull_wait == WORKING_PULL
    pulled.window.finish(pulled.offsets[1])
    assert consumer.pull_wait == LONG_POLL


def test_whoever_has_no_queue_rests_until_it_is_given_one(memory: MemoryTransport) -> None:
    consumer = QueueConsumer(memory, group="g", topic=TOPIC, owner="z", lease=NEVER)
    for member in "ab":
        memory.join("g", TOPIC, member, NEVER)
    consumer.join()
    pulls: list[int] = []

    def pull() -> None:
        while not consumer.owned:
            pulls.append(len(consumer.acquire_missing()))
            consumer.pull(1, NEVER)

    memory.send(TOPIC, {0: [b"a"], 1: [b"b"]})
    thread = threading.Thread(target=pull, daemon=True)
    thread.start()
    memory.leave("g", TOPIC, "a")
    consumer.join()
    thread.join(SOON)
    assert not thread.is_alive()
    assert len(pulls) <= 2, "it was woken once"


def test_the_long_poll_can_be_chosen(memory: MemoryTransport) -> None:
    consumer = QueueConsumer(memory, group="g", topic=TOPIC, owner="a", lease=NEVER, long_poll=3.0)
    assert consumer.pull_wait == 3.0


class Unwakeable(MemoryTransport):
    """A driver of another package, which may have no `wake`."""

    wake: Any = None


def test_from_a_queue_that_wakes_nobody_pulls_are_short() -> None:
    transport = Unwakeable()
    transport.create_topic(TOPIC, 1)
    consumer = QueueConsumer(transport, group="g", topic=TOPIC, owner="a", lease=NEVER)
    consumer.join()
    consumer.acquire_missing()
    assert not isinstance(transport, WakesPulls)
    assert consumer.pull_wait == LOOK_AGAIN


# -- consumers --------------------------------------------------------------------------------------------------------

PATIENT = Limits(pull_wait=NEVER, commit_interval=0.05, lease=4.0)


def test_a_consumer_pulls_for_fifteen_seconds_by_default() -> None:
    assert Limits().pull_wait == 15.0


@pytest.mark.parametrize("mode", Mode)
def test_stop_waits_for_no_pull(orders: Waking, tmp_path: Path, mode: Mode) -> None:
    handled = Handled()
    consumer = _patient(orders, handled, mode=mode, directory=tmp_path)
    consumer.start()
    orders.send(TOPIC, {0: texts("a")})
    eventually(lambda: handled.bodies == ["a"])
    assert consumer.stop(SOON)


def test_stop_waits_a_moment_for_a_pull_that_nobody_can_end() -> None:
    transport, handled = Unwakeable(), Handled()
    transport.create_topic(TOPIC, 1)
    consumer = _patient(transport, handled)
    consumer.start()
    transport.send(TOPIC, {0: texts("a")})
    eventually(lambda: handled.bodies == ["a"])
    assert consumer.stop(SOON)


@pytest.mark.parametrize("mode", Mode)
def test_stop_right_after_the_start_waits_for_no_pull(orders: Waking, tmp_path: Path, mode: Mode) -> None:
    for number in range(3):
        consumer = _patient(orders, Handled(), mode=mode, directory=tmp_path / str(number))
        consumer.start()
        assert consumer.stop(SOON)


def test_two_consumers_that_pull_for_long_share_the_queues_soon(orders: Waking) -> None:
    first, second = Handled(), Handled()
    one, other = (_patient(orders, handled) for handled in (first, second))
    one.start()
    try:
        orders.send(TOPIC, {0: texts("a"), 1: texts("b")})
        eventually(lambda: sorted(first.bodies) == ["a", "b"], SOON)
        other.start()
        owned = lambda: {c.owner for c in orders.groups(TOPIC)["billing"].claims.values() if c.seconds > 0}  # noqa: E731
        eventually(lambda: owned() == {one.name, other.name}, SOON)
        orders.send(TOPIC, {0: texts("c"), 1: texts("d")})
        eventually(lambda: len(first.bodies) + len(second.bodies) == 4, SOON)
        assert len(second.bodies) == 1
    finally:
        one.stop(60)
        other.stop(60)


def test_whoever_broadcasts_is_woken_for_a_queue_that_is_new(orders: Waking, tmp_path: Path) -> None:
    file = OffsetsFile(tmp_path, "billing", TOPIC)
    queues = BroadcastQueues(orders, topic=TOPIC, file=file, start=lambda queue: 0)
    queues.join()
    assert queues.pull_wait == LOOK_AGAIN, "it is to take queues"
    queues.acquire_missing()
    assert queues.pull_wait == LONG_POLL
    orders.add_queues(TOPIC, 3, unordered=True)
    orders.send(TOPIC, {2: texts("in the new one")})
    began, found = threading.Event(), []

    def pull() -> None:
        began.set()
        while not found:
            queues.acquire_missing()
            found.extend(queues.pull(1, NEVER))

    thread = threading.Thread(target=pull, daemon=True)
    thread.start()
    assert began.wait(SOON)
    queues.join()
    thread.join(SOON)
    assert [one.bodies for one in found] == [texts("in the new one")]
    queues.leave()
    queues.release_drained()


def _patient(transport: Transport, handled: Handled, **options: Any) -> Consumer:
    return Consumer(transport, group="billing", topics=[TOPIC], handle=handled, limits=PATIENT, **options)
