"""Leases are renewed in time, whatever other calls wait for answers, and no owner relies on one that may be over."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterator, Mapping
from collections.abc import Set as AbstractSet

import pytest

from enode_django.equeue.clocks import boot_time
from enode_django.equeue.consumer.failing import FailureTopics
from enode_django.equeue.consumer.handling import Handling
from enode_django.equeue.consumer.queue_consumer import QueueConsumer
from enode_django.equeue.consumer.worklist import Task, Worklist
from enode_django.equeue.messages import Commit, Membership
from enode_django.equeue.retrying import Message, RetryPolicy
from enode_django.equeue.transports.memory import MemoryTransport
from tests.equeue.consuming import Handled, consuming, eventually, texts

LEASE = 10.0


class NeverAnswers(MemoryTransport):
    """Calls named in ``silent`` wait until ``answer`` is set. Renewals are counted by topic."""

    def __init__(self) -> None:
        super().__init__()
        self.silent: Collection[str] = ()
        self.waiting = threading.Event()
        self.answer = threading.Event()
        self.renewed: list[str] = []

    def _answer_late(self, call: str) -> None:
        if call in self.silent:
            self.waiting.set()
            assert self.answer.wait(60)

    def commit(self, group: str, topic: str, commits: Mapping[int, Commit]) -> AbstractSet[int]:
        self._answer_late("commit")
        return super().commit(group, topic, commits)

    def trim(self, topic: str) -> None:
        self._answer_late("trim")
        super().trim(topic)

    def join(self, group: str, topic: str, member: str, session: float) -> Membership:
        self._answer_late(f"join {topic}")
        return super().join(group, topic, member, session)

    def renew(self, group: str, topic: str, owner: str, epochs: Mapping[int, int], lease: float) -> AbstractSet[int]:
        self._answer_late(f"renew {topic}")
        lost = super().renew(group, topic, owner, epochs, lease)
        self.renewed.append(topic)
        return lost


@pytest.fixture
def transport() -> Iterator[NeverAnswers]:
    transport = NeverAnswers()
    for topic in ("orders", "others"):
        transport.create_topic(topic, 1)
    yield transport
    transport.answer.set()


@pytest.mark.parametrize("silent", ["commit", "join others", "renew others"])
def test_a_consumer_renews_its_leases_while_another_call_gets_no_answer(transport: NeverAnswers, silent: str) -> None:
    handled = Handled()
    with consuming(transport, handled, topics=["orders", "others"]):
        transport.send("orders", {0: texts("1")})
        transport.send("others", {0: texts("2")})
        eventually(lambda: sorted(handled.bodies) == ["1", "2"])
        transport.silent = (silent,)
        transport.send("orders", {0: texts("3")})
        assert transport.waiting.wait(60)
        renewed = transport.renewed.count("orders")
        eventually(lambda: transport.renewed.count("orders") >= renewed + 3)
        transport.answer.set()
        eventually(lambda: transport.committed("billing", "orders") == {0: 2})


# -- a machine that was suspended ---------------------------------------------------------------------------------


class Machine:
    """A machine whose lease clock goes on while it is suspended."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


def test_the_clock_of_leases_counts_the_time_for_which_a_machine_was_suspended() -> None:
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    before = time.clock_gettime(clock)
    now = boot_time()
    assert before <= now <= time.clock_gettime(clock)


def test_after_a_suspend_nothing_is_handled_before_the_lease_is_renewed(transport: NeverAnswers) -> None:
    machine = Machine()
    queues = QueueConsumer(transport, group="g", topic="orders", owner="me", lease=LEASE, clock=machine)
    queues.assign([0])
    ((window, *_),) = queues.acquire_missing()
    assert window.holds
    machine.now += 60.0
    assert not window.holds, "others may have taken the queue over"
    handled: list[Message] = []
    worklist = Worklist(linear=True, clock=time.time)
    failures = FailureTopics(transport, "g", RetryPolicy(), for_all=False, clock=time.time)
    handling = Handling(handled.append, worklist, {"orders": Finishes()}, failures)  # type: ignore[dict-item]
    window.add([0])
    worklist.post([Task(window, 0, Message("orders", 0, 0, b"1"))])
    thread = threading.Thread(target=handling.run)
    thread.start()
    try:
        eventually(lambda: not worklist._ready)
        assert handled == []
        queues.renew()
        eventually(lambda: handled)
        assert window.holds
    finally:
        handling.close()
        thread.join(60)
    assert window.unfinished == 0


class Finishes:
    """The part of a topic's consumer that `Handling` uses."""

    def finish(self, task: Task) -> None:
        task.window.finish(task.offset)


def test_a_lease_that_was_taken_over_meanwhile_is_lost(transport: NeverAnswers) -> None:
    machine = Machine()
    queues = QueueConsumer(transport, group="g", topic="orders", owner="me", lease=LEASE, clock=machine)
    queues.assign([0])
    ((window, *_),) = queues.acquire_missing()
    machine.now += 60.0
    transport.bury("g", "orders", "me")
    transport.acquire("g", "orders", 0, "other", LEASE)
    queues.renew()
    assert window.closed
    assert not window.holds
