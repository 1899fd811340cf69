"""Who waits for an answer gets their own, and is forgotten when they stop waiting."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest

from enode_django.commanding.bus import QueueCommandBus
from enode_django.commanding.replies import Replies
from enode_django.commanding.results import CommandResult, CommandStatus, encode_result
from enode_django.equeue.producer import Producer
from enode_django.equeue.transports.memory import MemoryInbox, MemoryTransport
from enode_django.exceptions import QueueError
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


def test_execution_cancelled_while_it_is_sent_leaves_nobody_waiting() -> None:
    transport = Held()
    bus = QueueCommandBus(transport, Producer(transport, queues=1), "commands")

    async def cancelled() -> None:
        task = asyncio.ensure_future(bus.aexecute(Add(aggregate_root_id="x"), 1.0))
        await asyncio.to_thread(transport.reached.wait, SOON)
        task.cancel()
        transport.let_go.set()
        await task

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(cancelled())
    assert bus._replies._expected == {}
    bus.close()
