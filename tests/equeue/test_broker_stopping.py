"""A connection of a broker that stops."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from enode_django.equeue.arrivals import Arrivals
from enode_django.equeue.broker.accepting import Accepting
from enode_django.equeue.broker.answering import Answering
from enode_django.equeue.broker.backups import Backups
from enode_django.equeue.broker.checkpoint import PendingCheckpoint
from enode_django.equeue.broker.flusher import Action
from enode_django.equeue.broker.handlers import Handlers
from enode_django.equeue.broker.measuring import Measuring
from enode_django.equeue.broker.options import BrokerOptions
from enode_django.equeue.broker.pulling import Pulling
from enode_django.equeue.broker.server import Broker
from enode_django.equeue.broker.sessions import Session
from enode_django.equeue.broker.state import BrokerState
from enode_django.equeue.broker.store import MessageStore
from enode_django.equeue.frames import FrameDecoder, encode_frame
from enode_django.equeue.wire import HELLO, MAGIC, NONCE_BYTES, VERSION


class Wire(asyncio.Transport):
    """A transport that keeps the written bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.closed = False
        self._decoder = FrameDecoder()
        self.messages: list[Any] = []

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self.closed
        self._decoder.room()[: len(data)] = data
        self.messages += self._decoder.received(len(data))

    def close(self) -> None:
        self.closed = True


def ask(session: Session, *message: Any) -> None:
    data = b"".join(encode_frame(message))
    session.get_buffer(-1)[: len(data)] = data
    session.buffer_updated(len(data))


async def nothing() -> None:
    pass


def opened(store: MessageStore, waiting: list[Action]) -> tuple[BrokerState, Handlers]:
    state = BrokerState(store, patience=0.0)
    pulling = Pulling(store, state.route_version)
    state.open()
    accepting = Accepting(store, state, pulling, limit=1 << 20, patience=60.0, flush=lambda: None)
    handlers = Handlers(
        store,
        state,
        pulling,
        accepting,
        Answering(0, lambda: 0.0),
        when_safe=waiting.append,
        trim=lambda done: done(),
        backups=Backups(store, nothing),
        measuring=Measuring(store, state, set(), {}, dict),
    )
    return state, handlers


@pytest.mark.parametrize("name", ["commit", "release"])
def test_no_change_is_asked_of_the_coordinator_which_writes_nothing_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    store = MessageStore(tmp_path, chunk_size=1 << 20)
    monkeypatch.delattr(BrokerState, name)
    with pytest.raises(AttributeError, match=f"no attribute {name!r}"):
        opened(store, [])
    store.abandon()


def test_what_waits_for_the_disk_is_answered_and_nothing_else_is_begun(tmp_path: Path) -> None:
    async def scenario() -> None:
        store, waiting = MessageStore(tmp_path, chunk_size=1 << 20), list[Action]()
        state, handlers = opened(store, waiting)
        wire, session = Wire(), Session(handlers, (), 1, set(), most=1, arrivals=Arrivals(1))
        session.connection_made(wire)
        ask(session, 1, HELLO, [MAGIC, VERSION, bytes(NONCE_BYTES)])
        ask(session, 2, "create_topic", ["t", 1])
        session.end()
        assert not wire.closed
        ask(session, 3, "create_topic", ["u", 1])
        assert len(waiting) == 1
        waiting[0](None)
        assert wire.closed
        assert [message[:2] for message in wire.messages] == [[1, True], [2, True]]
        assert list(state.coordinator.topics) == ["t"]
        store.abandon()

    asyncio.run(scenario())


def test_connection_where_nothing_waits_is_closed_at_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        wire = Wire()
        handlers: Any = None  # no request is made
        session = Session(handlers, (), 1, set(), most=1, arrivals=Arrivals(1))
        session.connection_made(wire)
        session.end()
        assert wire.closed

    asyncio.run(scenario())


def test_a_broker_that_fails_without_clients_keeps_its_directory_while_a_checkpoint_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_end = threading.Event()
    write = PendingCheckpoint.write

    def write_later(pending: PendingCheckpoint) -> int:
        assert may_end.wait(60)
        return write(pending)

    async def scenario() -> None:
        options = BrokerOptions(directory=tmp_path / "data")
        broker = Broker(options, on_turn=lambda: None, on_stop=lambda: None, on_figures=None)
        broker._state.open()
        broker._build()
        monkeypatch.setattr(PendingCheckpoint, "write", write_later)
        writing = asyncio.create_task(broker._checkpoints.write())
        await asyncio.sleep(0)
        broker._fail(OSError("the disk is broken"))
        finishing = asyncio.create_task(broker._finish())
        await asyncio.wait([finishing], timeout=0.2)
        is_kept = not finishing.done()
        may_end.set()
        await writing
        assert await finishing == 1
        assert is_kept

    asyncio.run(scenario())
