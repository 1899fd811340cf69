"""A caller that waits for an answer gets its own, and is forgotten when it stops waiting."""

from __future__ import annotations

import asyncio
import math
import os
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from queue import Full
from types import SimpleNamespace
from typing import Any

import pytest

from enode_django.bus.command_bus import MOST_SENDS, SEND_TRIES, QueueCommandBus
from enode_django.bus.replies import Replies
from enode_django.bus.results import CommandResult, CommandStatus, encode_result
from enode_django.concurrency.threads import CallingThreads
from enode_django.equeue.producer import Producer
from enode_django.equeue.transports.memory import MemoryInbox, MemoryTransport
from enode_django.exceptions import CommandTimeout, QueueError, TransportUnavailable
from enode_django.serialization.codec import decode_command
from tests.races.counting import Add

SOON = 60.0


def answer(command_id: str, aggregate_root_id: str) -> bytes:
    return encode_result(
        CommandResult(status=CommandStatus.NOTHING_CHANGED, command_id=command_id, aggregate_root_id=aggregate_root_id)
    )


@pytest.fixture
def transport() -> Iterator[MemoryTransport]:
    return MemoryTransport()


def test_one_command_id_for_two_aggregates_is_two_answers(transport: MemoryTransport) -> None:
    replies = Replies(transport)
    one, other = replies.expect(("c", "one")), replies.expect(("c", "other"))
    transport.reply([(replies.address, answer("c", "other")), (replies.address, answer("c", "one"))])
    assert other.future.result(SOON).aggregate_root_id == "other"
    assert one.future.result(SOON).aggregate_root_id == "one"
    replies.close()


class BrokenOnce(MemoryTransport):
    """Its inbox refuses for good, once."""

    def open_inbox(self) -> MemoryInbox:
        inbox = super().open_inbox()
        working = inbox.receive

        def receive(wait: float) -> Sequence[bytes]:
            inbox.receive = working  # type: ignore[method-assign]
            raise QueueError("refused")

        inbox.receive = receive  # type: ignore[method-assign]
        return inbox


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_thread_that_died_is_started_again_for_who_asks_next() -> None:
    transport = BrokenOnce()
    replies = Replies(transport)
    address = replies.address
    assert replies._thread is not None
    replies._thread.join(SOON)
    wait = replies.expect(("c", "x"))
    assert replies.address == address
    transport.reply([(address, answer("c", "x"))])
    assert wait.future.result(SOON).command_id == "c"
    replies.close()


class Held(MemoryTransport):
    def __init__(self) -> None:
        super().__init__()
        self.reached, self.let_go = threading.Event(), threading.Event()

    def send(self, topic: str, bodies: Mapping[int, Sequence[bytes]], **options: Any) -> Mapping[int, int]:
        self.reached.set()
        self.let_go.wait(SOON)
        return super().send(topic, bodies, **options)


class InboxAway(MemoryTransport):
    def open_inbox(self) -> MemoryInbox:
        inbox = super().open_inbox()

        def receive(wait: float) -> Sequence[bytes]:
            raise TransportUnavailable("away")

        inbox.receive = receive  # type: ignore[method-assign]
        return inbox


def test_no_thread_asks_an_inbox_any_more_that_is_away_when_it_is_closed() -> None:
    replies = Replies(InboxAway())
    assert replies.address
    thread = replies._thread
    replies.close()
    assert thread is not None
    thread.join(SOON)
    assert not thread.is_alive()


class StandsStill(MemoryTransport):
    """Stores messages, but does not return from ``send``. With ``opens=False`` it does not open an inbox either."""

    def __init__(self, *, opens: bool = True) -> None:
        super().__init__()
        self._opens = opens
        self.stored, self.let_go = threading.Semaphore(0), threading.Event()

    def send(self, topic: str, bodies: Mapping[int, Sequence[bytes]], **options: Any) -> Mapping[int, int]:
        sent = super().send(topic, bodies, **options)
        self.stored.release()
        self.let_go.wait(SOON)
        return sent

    def open_inbox(self) -> MemoryInbox:
        if not self._opens:
            self.let_go.wait(SOON)
        return super().open_inbox()


@pytest.fixture
def standing_still() -> Iterator[StandsStill]:
    transport = StandsStill()
    yield transport
    transport.let_go.set()


def test_timeout_bounds_sending_too(standing_still: StandsStill) -> None:
    bus = QueueCommandBus(standing_still, Producer(standing_still, queues=1), "commands")
    with pytest.raises(CommandTimeout, match=r"is being sent, but the queue has not confirmed it within 0\.2 s"):
        bus.execute(Add("x"), 0.2)
    with pytest.raises(CommandTimeout, match="not confirmed"):
        asyncio.run(bus.aexecute(Add("x"), 0.2))
    assert not standing_still.let_go.is_set()
    assert bus._replies._expected == {}
    bus.close()


def test_timeout_bounds_the_opening_of_the_inbox_and_who_waits_for_it() -> None:
    transport = StandsStill(opens=False)
    bus = QueueCommandBus(transport, Producer(transport, queues=1), "commands")
    for _ in range(2):
        with pytest.raises(CommandTimeout, match="not confirmed"):
            bus.execute(Add("x"), 0.2)
    transport.let_go.set()
    bus.close()


def test_an_answer_counts_though_the_queue_has_not_confirmed_the_command(standing_still: StandsStill) -> None:
    bus = QueueCommandBus(standing_still, Producer(standing_still, queues=1), "commands")
    command = Add("x")
    with ThreadPoolExecutor(1) as callers:
        result = callers.submit(bus.execute, command, SOON)
        assert standing_still.stored.acquire(timeout=SOON)
        standing_still.reply([(bus._replies.address, answer(command.id, "x"))])
        assert result.result(SOON).status is CommandStatus.NOTHING_CHANGED
    assert not standing_still.let_go.is_set()
    bus.close()


def test_what_waits_for_other_sends_is_sent_though_nobody_waits_for_it_any_more(standing_still: StandsStill) -> None:
    bus = QueueCommandBus(standing_still, Producer(standing_still, queues=1), "commands")
    with ThreadPoolExecutor(MOST_SENDS) as callers:
        others = [callers.submit(bus.execute, Add("x"), SOON) for _ in range(MOST_SENDS)]
        for _ in others:
            assert standing_still.stored.acquire(timeout=SOON)
        with pytest.raises(CommandTimeout, match="not confirmed"):
            bus.execute(Add("late"), 0.2)
        standing_still.let_go.set()
        assert standing_still.stored.acquire(timeout=SOON)
        bodies = [body for batch in standing_still.pull("commands", {0: 0}, limit=1000) for body in batch.bodies]
        *sent, late = map(decode_command, bodies)
        assert (len(sent), late.aggregate_root_id) == (MOST_SENDS, "late")
        for wire in sent:
            standing_still.reply([(bus._replies.address, answer(wire.id, "x"))])
        assert {other.result(SOON).command_id for other in others} == {wire.id for wire in sent}
    bus.close()


def test_no_more_wait_for_other_sends_than_may(standing_still: StandsStill, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("enode_django.bus.command_bus.MOST_SENDS", 1)
    monkeypatch.setattr("enode_django.bus.command_bus.MOST_WAITING", 2)
    bus = QueueCommandBus(standing_still, Producer(standing_still, queues=1), "commands")
    commands = [Add(id) for id in ("sent", "first", "second")]
    for command in commands:
        with pytest.raises(CommandTimeout):
            asyncio.run(bus.aexecute(command, 0.01))
        if command is commands[0]:
            assert standing_still.stored.acquire(timeout=SOON)
    for execute in (bus.execute, lambda *arguments: asyncio.run(bus.aexecute(*arguments))):
        with pytest.raises(TransportUnavailable, match="2 commands of this process wait to be sent"):
            execute(Add("late"), SOON)
    assert bus._replies._expected == {}
    standing_still.let_go.set()
    for _ in ("first", "second"):
        assert standing_still.stored.acquire(timeout=SOON)
    bodies = [body for batch in standing_still.pull("commands", {0: 0}, limit=10) for body in batch.bodies]
    assert [decode_command(body).id for body in bodies] == [command.id for command in commands]
    bus.close()


class Refuses(MemoryTransport):
    def send(self, topic: str, bodies: Mapping[int, Sequence[bytes]], **options: Any) -> Mapping[int, int]:
        raise QueueError("refused")


def test_a_send_that_fails_ends_the_wait() -> None:
    transport = Refuses()
    bus = QueueCommandBus(transport, Producer(transport, queues=1), "commands")
    with pytest.raises(QueueError, match="refused"):
        bus.execute(Add("x"), SOON)
    bus.close()


class Away(MemoryTransport):
    """Its queues cannot be reached."""

    tries = 0

    def send(self, *arguments: object, **options: object) -> Mapping[int, int]:
        self.tries += 1
        raise TransportUnavailable("away")


@pytest.mark.parametrize(("deadline", "tries"), [(math.inf, SEND_TRIES), (0.0, 1)])
def test_a_send_is_tried_again_and_not_after_the_deadline(deadline: float, tries: int) -> None:
    transport = Away()
    bus = QueueCommandBus(transport, Producer(transport, queues=1), "commands")
    with pytest.raises(TransportUnavailable, match="away"):
        bus._store(bus._producer, [("x", b"body")], deadline)
    assert transport.tries == tries
    bus.close()


def test_a_call_for_which_no_thread_can_be_started_takes_its_room_only_until_it_is_made() -> None:
    class NeverStarts(threading.Thread):
        def start(self) -> None:
            raise RuntimeError("can't start new thread")

    threads, let_go = CallingThreads("test", 1, 1), threading.Event()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "concurrent.futures.thread.threading", SimpleNamespace(**{**vars(threading), "Thread": NeverStarts})
        )
        with pytest.raises(RuntimeError, match="can't start new thread"):
            threads.start(os.getpid)
    assert threads.start(os.getpid).result(SOON) == os.getpid()
    held = [threads.start(partial(let_go.wait, SOON)) for _ in range(2)]
    with pytest.raises(Full):
        threads.start(os.getpid)
    let_go.set()
    assert [future.result(SOON) for future in held] == [True, True]
    threads.close()


def test_a_forked_child_sends_by_threads_of_its_own() -> None:
    threads = CallingThreads("test", 1, 1)
    assert threads.start(os.getpid).result(SOON) == os.getpid()
    child = os.fork()
    if child == 0:
        os._exit(0 if threads.start(os.getpid).result(SOON) == os.getpid() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    threads.close()


def test_a_child_that_is_forked_while_another_thread_begins_to_send_finds_no_lock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begins, let_go = threading.Event(), threading.Event()

    class Slow(ThreadPoolExecutor):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            if os.getpid() == parent:
                begins.set()
                let_go.wait(SOON)
            super().__init__(*arguments, **options)

    parent, threads = os.getpid(), CallingThreads("test", 1, 1)
    monkeypatch.setattr("enode_django.concurrency.threads.ThreadPoolExecutor", Slow)
    with ThreadPoolExecutor(1) as others:
        first = others.submit(lambda: threads.start(os.getpid).result(SOON))
        assert begins.wait(SOON)
        child = os.fork()
        if child == 0:
            signal.alarm(10)  # kills a child that waits for a lock
            os._exit(0 if threads.start(os.getpid).result(SOON) == os.getpid() else 1)
        ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        let_go.set()
        assert (ended, first.result(SOON)) == (0, parent)
    threads.close()


def test_execution_cancelled_while_it_is_sent_leaves_nobody_waiting() -> None:
    transport = Held()
    bus = QueueCommandBus(transport, Producer(transport, queues=1), "commands")

    async def cancelled() -> None:
        task = asyncio.ensure_future(bus.aexecute(Add("x"), 1.0))
        await asyncio.to_thread(transport.reached.wait, SOON)
        task.cancel()
        transport.let_go.set()
        await task

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(cancelled())
    assert bus._replies._expected == {}
    bus.close()
