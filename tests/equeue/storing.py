"""Helpers of the tests of the broker's storage."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from enode_django.equeue.broker.batches import NewBatch, StoredBatch
from enode_django.equeue.broker.deleter import Deleter
from enode_django.equeue.broker.index import NotInMemory
from enode_django.equeue.broker.reading import ColdRead
from enode_django.equeue.broker.recovery import Sent
from enode_django.equeue.broker.retention import Consumed, Retention
from enode_django.equeue.broker.segments import UnreadTime
from enode_django.equeue.broker.store import MessageStore, Opened
from enode_django.equeue.records import decode_records, encode_records

Messages = list[tuple[int, bytes]]


@dataclass
class Heard:
    """The states, control records and sends that a store restored when it was opened, and their order."""

    states: list[bytes] = field(default_factory=list)
    controls: list[bytes] = field(default_factory=list)
    sends: list[Sent] = field(default_factory=list)
    order: list[str] = field(default_factory=list)
    opened: Opened | None = None

    def restore(self, state: bytes) -> None:
        self.states.append(state)
        self.order.append("restore")

    def replay(self, record: bytes, position: int) -> None:
        self.controls.append(record)
        self.order.append("replay")

    def sent(self, sent: Sent) -> None:
        self.sends.append(sent)
        self.order.append("sent")


def route_of(topic: str) -> int:
    """Return the version of a topic's route, as a broker's state does."""
    return 1


def opened(directory: Path, **options: Any) -> tuple[MessageStore, Heard]:
    """Open a store, by default without a ring, so that every read uses index and files."""
    heard = Heard()
    store = MessageStore(directory, **{"chunk_size": 4096, "ring_batches": 0, **options})
    heard.opened = store.open(restore=heard.restore, replay=heard.replay, sent=heard.sent)
    return store, heard


def batch(queue: int, *records: bytes) -> NewBatch:
    return NewBatch(queue, len(records), encode_records(records))


def send(store: MessageStore, queue: int, *records: bytes, topic: str = "orders") -> int:
    return store.append(topic, [batch(queue, *records)])[queue]


def read_batches(
    store: MessageStore, topic: str, queue: int, offset: int, limit: int, max_bytes: int
) -> list[StoredBatch]:
    """Return whole batches from an offset on, until they reach ``limit`` messages or ``max_bytes``; at least one. Pull
    again for what an answer leaves to the next one."""
    found: list[StoredBatch] = []
    size, at = 0, offset
    while at - offset < limit and size < max_bytes:
        some = _pull(store, topic, queue, at, limit - (at - offset), max_bytes - size)
        for batch in some:
            size += len(batch.body)
            if found and size > max_bytes:
                return found
            found.append(batch)
            at = batch.first_offset + len(decode_records(batch.body))
        if not some:
            break
    return found


def _pull(store: MessageStore, topic: str, queue: int, offset: int, limit: int, max_bytes: int) -> list[StoredBatch]:
    """Take the steps of a pull, with those of its threads, until there are batches or none is left."""
    while True:
        pulled = store.reader.read_held(topic, queue, offset, limit, max_bytes)
        if not isinstance(pulled, ColdRead):
            return pulled
        if pulled.segment is not None:
            pulled.segment.run()
            store.queues.take(pulled.segment)
        elif batches := store.reader.finish(pulled, pulled.load()):
            return batches


def time_at(store: MessageStore, topic: str, queue: int, offset: int) -> float:
    """Return when the batch at an offset was stored, in seconds since 1970."""
    at = store.queues.time_at(topic, queue, offset)
    milliseconds = at.read() if isinstance(at, UnreadTime) else at
    assert milliseconds is not None
    return milliseconds / 1000


def offset_at(store: MessageStore, topic: str, queue: int, at: float) -> int:
    while True:
        try:
            return store.offset_at(topic, queue, at)
        except NotInMemory as missing:
            missing.load.run()
            store.queues.take(missing.load)


def delete_due(store: MessageStore, retention: Retention, consumed: Consumed) -> int:
    """Delete the files that are due and that the last two checkpoints cover. Return their number."""
    return _deleted(store, Deleter.delete, retention, consumed)


def make_room(store: MessageStore, retention: Retention, consumed: Consumed) -> int:
    return _deleted(store, Deleter.make_room, retention, consumed)


def _deleted(
    store: MessageStore, work: Callable[[Deleter], Awaitable[None]], retention: Retention, consumed: Consumed
) -> int:
    async def no_checkpoint() -> None:
        pass

    async def run() -> None:
        await work(Deleter(store.deletion, retention, consumed, checkpoint=no_checkpoint, space=store.space))

    before = set(chunks(store.directory))
    asyncio.run(run())
    return len(before - set(chunks(store.directory)))


def messages(store: MessageStore, topic: str, queue: int, *, at: int = 0, ask: int = 7) -> Messages:
    """Return the messages of a queue from an offset on, with their offsets. Read ``ask`` at a time, as consumers do."""
    found: Messages = []
    while True:
        batches = read_batches(store, topic, queue, at, ask, 1000)
        if not batches:
            return found
        for each in batches:
            records = decode_records(each.body)
            found += [pair for pair in enumerate(records, each.first_offset) if pair[0] >= at]
        at = found[-1][0] + 1


def bodies(found: Messages) -> list[bytes]:
    return [body for _, body in found]


def flip(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 0xFF
    path.write_bytes(data)


def chunks(directory: Path) -> Sequence[Path]:
    return sorted((directory / "messages").glob("*.chunk"))


def empty_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let all reads from memory fail, as if the kernel had cached no file."""

    def refused(descriptor: int, buffers: Any, offset: int, flags: int = 0) -> int:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "preadv", refused)


def need_kernel_that_tells(directory: Path) -> None:
    """Skip the test if the file system cannot tell what it has in memory, such as the tmpfs of some kernels."""
    descriptor = os.open(directory, os.O_TMPFILE | os.O_RDWR)
    try:
        os.preadv(descriptor, [bytearray(1)], 0, os.RWF_NOWAIT)
    except OSError as error:
        pytest.skip(f"the file system of {directory} cannot tell what is in memory: {error}")
    finally:
        os.close(descriptor)
