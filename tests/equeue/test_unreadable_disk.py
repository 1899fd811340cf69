"""An unreadable sector costs only the batches in it: the process goes on, and a broker can start."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from enode_django.equeue.broker.calls import Call, Later
from enode_django.equeue.broker.pulling import READ_IN_LOOP, Pulling
from enode_django.equeue.broker.store import MessageStore
from enode_django.equeue.records import decode_records
from enode_django.exceptions import EnodeError, StorageFailed
from tests.equeue.brokers import RunningBroker
from tests.equeue.storing import (
    batch,
    bodies,
    chunks,
    empty_memory,
    flip,
    messages,
    need_kernel_that_tells,
    opened,
    route_of,
    send,
)
from tests.equeue.unreadable_disk import UnreadableDisk

BODY = b"x" * 5_000
CHUNK = 1 << 20


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> UnreadableDisk:
    return UnreadableDisk(monkeypatch)


def filled(directory: Path, count: int = 10, **options: Any) -> MessageStore:
    store, _ = opened(directory, chunk_size=CHUNK, **options)
    for number in range(count):
        send(store, 0, b"message %d " % number + BODY)
    store.flush()
    return store


def place_of(directory: Path, number: int) -> tuple[Path, int]:
    (path,) = chunks(directory)
    return path, path.read_bytes().find(b"message %d " % number)


def numbers(store: MessageStore) -> list[int]:
    return [int(body.split()[1]) for body in bodies(messages(store, "orders", 0))]


def test_an_unreadable_sector_costs_one_batch_which_is_reported(
    tmp_path: Path, disk: UnreadableDisk, caplog: pytest.LogCaptureFixture
) -> None:
    store = filled(tmp_path)
    disk.lose(*place_of(tmp_path, 4))
    for _ in range(2):
        assert numbers(store) == [0, 1, 2, 3, 5, 6, 7, 8, 9]
    assert len(store.reader.damaged) == 1
    assert caplog.text.count("it cannot be read (Input/output error); it is passed over") == 1
    assert send(store, 0, b"next") == 10
    store.abandon()


@pytest.mark.parametrize("lost", [0, 4, 9])
@pytest.mark.parametrize("beyond", [0, 3_000])
@pytest.mark.parametrize("flushed", [True, False])
def test_a_start_passes_over_an_unreadable_sector(
    tmp_path: Path, disk: UnreadableDisk, lost: int, beyond: int, flushed: bool
) -> None:
    """Nothing else is lost, wherever the sector is, whether or not the log says that the messages were flushed."""
    store = filled(tmp_path)
    if flushed:
        store.append_control(b"says that what is before it was flushed")
    store.abandon()
    path, place = place_of(tmp_path, lost)
    disk.lose(path, place + beyond)
    left = [number for number in range(10) if number != lost]
    end = 9 if lost == 9 and not (beyond and flushed) else 10  # a lost last message may count as torn off
    for _ in range(2):
        store, _ = opened(tmp_path, chunk_size=CHUNK)
        assert numbers(store) == left
        assert store.bounds("orders", 0)[1] == end
        assert bool(store.reader.damaged) is (lost < 9 or flushed)
        store.abandon()


def test_an_unreadable_header_at_the_very_end_does_not_keep_the_broker_from_starting(
    tmp_path: Path, disk: UnreadableDisk
) -> None:
    store, _ = opened(tmp_path, chunk_size=CHUNK)
    send(store, 0, BODY)
    position = store.position
    send(store, 0, BODY)
    store.abandon()
    disk.lose(chunks(tmp_path)[0], position + 20)
    store, _ = opened(tmp_path, chunk_size=CHUNK)
    assert bodies(messages(store, "orders", 0))[0] == BODY
    send(store, 0, b"next")
    store.abandon()


def test_a_file_that_was_cut_short_costs_what_was_behind_the_cut(tmp_path: Path) -> None:
    store = filled(tmp_path)
    path, place = place_of(tmp_path, 5)
    assert numbers(store) == list(range(10))
    os.truncate(path, place)
    assert numbers(store) == list(range(5))
    assert len(store.reader.damaged) == 5
    store.abandon()


def test_what_cannot_be_read_for_now_is_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = filled(tmp_path)

    def refused(*arguments: Any) -> Any:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as context:
        context.setattr(os, "preadv", refused)
        context.setattr(os, "pread", refused)
        with pytest.raises(StorageFailed, match="Too many open files"):
            numbers(store)
    assert numbers(store) == list(range(10))
    assert not store.reader.damaged
    store.abandon()


class Answer:
    """The answer to a pull, which may come later."""

    has_room = True

    def __init__(self) -> None:
        self.value: Any = None
        self._came = asyncio.Event()

    def answer(self, call: Call, value: Any) -> None:
        self.value = value
        self._came.set()

    def fail(self, call: Call, error: EnodeError) -> None:
        self.answer(call, error)

    async def of(self, pulling: Pulling, offsets: dict[int, int], wait: float = 0.0) -> list[tuple[int, list[bytes]]]:
        value: Any = pulling.pull(Call(self, 1), "orders", offsets, 100, wait)
        if isinstance(value, Later):
            await asyncio.wait_for(self._came.wait(), 60)
            value = self.value
        return sorted(
            (queue, [record for _, body in batches for record in decode_records(body)]) for queue, batches, _ in value
        )


def test_the_loop_reads_what_is_in_memory_and_threads_read_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need_kernel_that_tells(tmp_path)
    store, _ = opened(tmp_path, chunk_size=CHUNK, ring_batches=1)
    send(store, 0, b"cold" + BODY)
    store.append("orders", [batch(1, b"hot")])
    store.flush()

    async def scenario() -> None:
        pulling = Pulling(store, route_of)
        everything = [(0, [b"cold" + BODY]), (1, [b"hot"])]
        assert await Answer().of(pulling, {0: 0, 1: 0}) == everything
        assert store.reader.counts.file == 0, "it was written a moment ago"
        empty_memory(monkeypatch)
        assert store.reader.read_held("orders", 1, 0, 1, 1) != []
        assert await Answer().of(pulling, {0: 0, 1: 0}) == everything
        assert store.reader.counts.file == 1

    asyncio.run(scenario())
    store.abandon()


def test_a_thread_reads_what_is_too_much_for_the_loop_though_it_is_in_memory(tmp_path: Path) -> None:
    need_kernel_that_tells(tmp_path)
    store, _ = opened(tmp_path, chunk_size=8 * CHUNK, ring_batches=1)
    large = b"x" * (READ_IN_LOOP // 3)
    for number in range(6):
        send(store, 0, b"%d" % number + large)
    store.append("orders", [batch(0, b"hot")])
    store.flush()
    (path,) = chunks(tmp_path)
    flip(path, path.read_bytes().index(b"3xxx"))

    async def scenario() -> None:
        [(_, records)] = await Answer().of(Pulling(store, route_of), {0: 0}, 30.0)
        assert [record[:3] for record in records] == [b"0xx", b"1xx", b"2xx", b"4xx", b"5xx", b"hot"]
        assert (store.reader.counts.memory, store.reader.counts.file, store.reader.counts.ring) == (2, 4, 0)

    asyncio.run(scenario())
    assert len(store.reader.damaged) == 1
    store.abandon()


def test_a_pull_of_damaged_batches_alone_goes_on_behind_them_or_waits(tmp_path: Path) -> None:
    store = filled(tmp_path, 3)
    for number in (0, 1):
        flip(*place_of(tmp_path, number))

    async def scenario() -> None:
        pulling = Pulling(store, route_of)
        ((queue, records),) = await Answer().of(pulling, {0: 0})
        assert (queue, records) == (0, [b"message 2 " + BODY])
        waiting = asyncio.ensure_future(Answer().of(pulling, {0: 3}, wait=60.0))
        await asyncio.sleep(0)
        assert len(pulling) == 1
        send(store, 0, b"next")
        pulling.wake("orders", [0])
        assert await waiting == [(0, [b"next"])]

    asyncio.run(scenario())
    assert len(store.reader.damaged) == 2
    store.abandon()


def test_a_disk_that_stands_still_holds_up_who_reads_from_it_and_nobody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, _ = opened(tmp_path, chunk_size=CHUNK, ring_batches=1)
    send(store, 0, b"cold")
    send(store, 1, b"hot")
    empty_memory(monkeypatch)
    goes_on, pread = threading.Event(), os.pread

    def slow(descriptor: int, length: int, offset: int) -> bytes:
        assert goes_on.wait(60)
        return pread(descriptor, length, offset)

    monkeypatch.setattr(os, "pread", slow)

    async def scenario() -> None:
        pulling = Pulling(store, route_of)
        late = [asyncio.ensure_future(Answer().of(pulling, {0: 0})) for _ in range(10)]
        await asyncio.sleep(0)
        assert await Answer().of(pulling, {1: 0}) == [(1, [b"hot"])]
        assert await asyncio.get_running_loop().run_in_executor(None, store.flush) == store.position
        assert not any(pull.done() for pull in late)
        goes_on.set()
        assert await asyncio.gather(*late) == [[(0, [b"cold"])]] * 10

    asyncio.run(scenario())
    store.abandon()


def test_a_broker_whose_file_is_cut_short_serves_what_is_left(tmp_path: Path) -> None:
    with RunningBroker(tmp_path / "data", ring_batches=0) as broker:
        transport = broker.transport()
        transport.create_topic("orders", 1)
        for number in range(5):
            transport.send("orders", {0: [b"message %d " % number + BODY]})

        def pulled() -> list[bytes]:
            return [body for batch in transport.pull("orders", {0: 0}, limit=10, wait=0) for body in batch.bodies]

        everything = [b"message %d " % number + BODY for number in range(5)]
        assert pulled() == everything
        os.truncate(*place_of(broker.directory, 2))
        assert pulled() == everything[:2]
        assert transport.pull("orders", {0: 2}, limit=10, wait=0) == []
        assert transport.status()["damaged_batches"] == 3
        broker.kill()
        broker.start()
        assert pulled() == everything[:2]
        transport.close()
