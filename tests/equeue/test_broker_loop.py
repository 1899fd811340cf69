"""Threads delete files and write checkpoints and indexes, in small steps, so that the broker's event loop goes on."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from enode_django.equeue.broker import index as indexing
from enode_django.equeue.broker.calls import LATER, Call
from enode_django.equeue.broker.checkpoint import PendingCheckpoint
from enode_django.equeue.broker.checkpoints import LEAST_REST, Checkpoints
from enode_django.equeue.broker.deleter import LEAST_PAUSE, REMOVED_AT_ONCE, Deleter
from enode_django.equeue.broker.deletion import SURVEYED_AT_ONCE
from enode_django.equeue.broker.index import Entry
from enode_django.equeue.broker.index_loader import offsets_at
from enode_django.equeue.broker.pulling import Pulling
from enode_django.equeue.broker.retention import Retention
from enode_django.equeue.broker.state import BrokerState
from enode_django.equeue.broker.store import MessageStore
from enode_django.exceptions import EnodeError, StorageFailed
from tests.equeue.storing import chunks, messages, opened, route_of, send

DEADLINE = 60.0
BODY = b"x" * 900
DAY = 86_400.0


class Clock:
    def __init__(self) -> None:
        self.now = 1e9

    def __call__(self) -> float:
        return self.now


def everything(topic: str, queue: int) -> int:
    return 1 << 60


class Served:
    """The parts of a broker that run in its loop, without connections."""

    def __init__(self, directory: Path, retention: Retention, clock: Clock, *, size: int = 1 << 30) -> None:
        self.store = MessageStore(directory, chunk_size=4096, ring_batches=0, preload=0, clock=clock, monotonic=clock)
        self.state = BrokerState(self.store, patience=10.0)
        self.state.open()
        self.written = 0
        self.checkpoints = Checkpoints(self.store, self.state, interval=10.0, size=size, clock=clock)
        self.deleter = Deleter(
            self.store.deletion,
            retention,
            everything,
            checkpoint=self._checkpoint,
            space=self.store.space,
            clock=clock,
        )

    async def _checkpoint(self) -> None:
        self.written += 1
        await self.checkpoints.write()

    async def trim(self) -> None:
        done = asyncio.Event()
        self.deleter.trim(done.set)
        await asyncio.wait_for(done.wait(), DEADLINE)


def run(main: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        await asyncio.wait_for(main(), DEADLINE)

    asyncio.run(limited())


def test_clients_that_trim_where_nothing_is_due_cause_no_checkpoint(tmp_path: Path) -> None:
    async def main() -> None:
        clock = Clock()
        served = Served(tmp_path, Retention(max_age=3 * DAY), clock)
        for _ in range(5):
            for _ in range(20):
                send(served.store, 0, BODY)
            clock.now += LEAST_PAUSE
            await served.trim()
        assert served.written == 0
        served.store.abandon()

    run(main)


def test_a_deletion_asks_for_checkpoints_only_if_they_do_not_count_what_is_due(tmp_path: Path) -> None:
    async def main() -> None:
        clock = Clock()
        served = Served(tmp_path, Retention(max_age=3 * DAY), clock)
        for _ in range(40):
            send(served.store, 0, BODY)
        clock.now += 4 * DAY
        await asyncio.gather(served.trim(), served.trim(), served.deleter.delete())
        assert served.written == 2, "the newest and the one before have to count it"
        assert len(chunks(tmp_path)) == 2, "the newest one was closed after that"
        await served.deleter.delete()
        assert len(chunks(tmp_path)) == 1
        assert served.written == 2
        served.store.abandon()

    run(main)


def test_many_files_are_deleted_in_portions_and_others_have_their_turn_between_two_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        clock = Clock()
        served = Served(tmp_path, Retention(max_age=DAY), clock)
        for _ in range(4 * (2 * SURVEYED_AT_ONCE + 3)):
            send(served.store, 0, BODY)
        for _ in range(2):
            await served.checkpoints.write()
        clock.now += 2 * DAY
        loop, threads, turns = threading.get_ident(), set[int](), list[int]()
        removed: list[int] = []
        remove = served.store.deletion.remove

        def watched(detached: Any) -> None:
            threads.add(threading.get_ident())
            removed.append(len(detached))
            remove(detached)

        monkeypatch.setattr(served.store.deletion, "remove", watched)
        before = len(chunks(tmp_path))
        deleting = asyncio.create_task(served.deleter.delete())
        while not deleting.done():
            turns.append(served.store.bounds("orders", 0)[0])
            await asyncio.sleep(0)
        assert sum(removed) == before - 1
        assert max(removed) <= REMOVED_AT_ONCE
        assert loop not in threads
        assert max(later - earlier for earlier, later in pairwise(turns)) <= 4, "a file at a time"
        served.store.abandon()

    run(main)


def test_a_deletion_that_is_stopped_leaves_the_rest_to_the_next_start(tmp_path: Path) -> None:
    async def main() -> None:
        clock = Clock()
        served = Served(tmp_path, Retention(max_age=DAY), clock)
        for _ in range(4 * 100):
            send(served.store, 0, BODY)
        for _ in range(2):
            await served.checkpoints.write()
        clock.now += 2 * DAY
        deleting = asyncio.create_task(served.deleter.delete())
        while len(chunks(tmp_path)) > 90:
            await asyncio.sleep(0)
        await served.deleter.stop()
        assert deleting.done() or await asyncio.wait([deleting])
        left = len(chunks(tmp_path))
        assert 1 < left < 100
        assert messages(served.store, "orders", 0)[-1] == (399, BODY)
        served.store.abandon()

    run(main)


def test_a_stop_does_not_wait_until_an_index_is_made_anew_for_a_deletion(
    damaged: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        for path in damaged.glob("queues/orders/0/*.index"):
            path.write_bytes(b"damaged")
        served = Served(damaged, Retention(max_age=DAY), Clock())
        for _ in range(20):
            send(served.store, 1, BODY)
        with held_scan(served.store, monkeypatch) as may_go:
            deleting = asyncio.create_task(served.deleter.delete())
            while served.deleter._surveying is None:
                await asyncio.sleep(0.001)
            await served.deleter.stop()
            await deleting
            assert not may_go.is_set()
        assert served.store.bounds("orders", 1)[0] == 0
        served.store.abandon()

    run(main)


def test_one_checkpoint_is_written_at_a_time_and_fewer_where_one_holds_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        clock = Clock()
        served = Served(tmp_path, Retention(), clock, size=2_000)
        checkpoints = served.checkpoints
        begun: list[int] = []
        begin = served.state.begin_checkpoint

        def counted(**options: bool) -> PendingCheckpoint | None:
            begun.append(served.store.position)
            return begin(**options)

        monkeypatch.setattr(served.state, "begin_checkpoint", counted)
        for _ in range(3):
            send(served.store, 0, BODY)
        assert checkpoints.is_due, "the log has grown"
        await asyncio.gather(*[checkpoints.write() for _ in range(5)])
        assert len(begun) == 1
        assert not checkpoints.is_due
        served.state.sends.add("t", b"p" * 16, 1, dict.fromkeys(range(20_000), 1 << 50), clock())
        send(served.store, 0, BODY)
        await checkpoints.write()
        for _ in range(4):
            send(served.store, 0, BODY)
        assert served.store.since_checkpoint > 2_000
        assert not checkpoints.is_due, "the last one was larger than what has come since"
        clock.now += 9
        assert not checkpoints.is_due
        clock.now += 1
        assert checkpoints.is_due
        served.store.abandon()

    run(main)


def test_a_checkpoint_that_takes_long_is_followed_by_a_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        clock = Clock()
        served = Served(tmp_path, Retention(), clock)
        begin = served.state.begin_checkpoint

        def slowly(**options: bool) -> PendingCheckpoint | None:
            clock.now += 5
            return begin(**options)

        monkeypatch.setattr(served.state, "begin_checkpoint", slowly)
        send(served.store, 0, BODY)
        await served.checkpoints.write()
        send(served.store, 0, BODY)
        clock.now += 5 * LEAST_REST - 1
        assert not served.checkpoints.is_due
        clock.now += 1
        assert served.checkpoints.is_due
        served.store.abandon()

    run(main)


# -- indexes ----------------------------------------------------------------------------------------------------------


class Answers:
    """A session that keeps the answers to its calls."""

    has_room = True

    def __init__(self) -> None:
        self.came = asyncio.Queue[Any]()

    def answer(self, call: Call, value: Any) -> None:
        self.came.put_nowait(value)

    def fail(self, call: Call, error: EnodeError) -> None:
        self.came.put_nowait(error)


@pytest.fixture
def damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of a store with two queues of many index files each. The first file of queue 0 is damaged."""
    monkeypatch.setattr(indexing, "SEGMENT_ENTRIES", 4)
    store = MessageStore(tmp_path, chunk_size=1 << 20, preload=0, clock=lambda: 1_000.0, monotonic=lambda: 0.0)
    state = BrokerState(store, patience=10.0)
    state.open()
    for number in range(40):
        send(store, number % 2, b"%d" % number)
    store.close(state.plain())
    next(tmp_path.glob(f"queues/orders/0/{0:020}.index")).write_bytes(b"damaged")
    return tmp_path


@contextmanager
def held_scan(store: MessageStore, monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Let every scan of the log wait until the event is set, or the scan is given up."""
    may_go = threading.Event()
    find = store.queues._find

    def waiting(topic: str, queue: int, first: int, last: int, is_over: Callable[[], bool]) -> Iterable[Entry]:
        while not may_go.wait(0.01):
            if is_over():
                return ()
        return find(topic, queue, first, last, is_over)

    monkeypatch.setattr(store.queues, "_find", waiting)
    try:
        yield may_go
    finally:
        may_go.set()


def offsets(answer: list[Any]) -> dict[int, int]:
    return {queue: batches[0][0] for queue, batches, _ in answer}


def test_others_are_served_while_a_damaged_index_is_made_anew(damaged: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        store, _ = opened(damaged, chunk_size=1 << 20)
        pulling, answers = Pulling(store, route_of), Answers()
        with held_scan(store, monkeypatch) as may_go:
            first = pulling.pull(Call(answers, 1), "orders", {0: 0, 1: 0}, 1, DEADLINE)
            assert first is not None
            assert offsets(await answers.came.get()) == {1: 0}, "the other queue's index is whole"
            pulling.pull(Call(answers, 2), "orders", {0: 0}, 1, DEADLINE)
            found = pulling.pull(Call(answers, 3), "orders", {0: 10}, 1, 0.0)
            later = found if isinstance(found, list) else await answers.came.get()
            assert offsets(later) == {0: 10}, "what the whole part of its index tells of"
            assert store.bounds("orders", 0) == (0, 20)
            assert answers.came.empty()
            may_go.set()
            assert offsets(await answers.came.get()) == {0: 0}
        pulling.indexes.close()
        store.abandon()

    run(main)


def test_a_pull_that_does_not_wait_for_messages_waits_for_a_damaged_index(
    damaged: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who reads a queue to its end, as for dead letters, must not take it for empty."""

    async def main() -> None:
        store, _ = opened(damaged, chunk_size=1 << 20)
        pulling, answers = Pulling(store, route_of), Answers()
        with held_scan(store, monkeypatch) as may_go:
            assert pulling.pull(Call(answers, 1), "orders", {0: 0}, 1, 0.0) is LATER
            while not store.queues.being_made:
                await asyncio.sleep(0.001)
            assert pulling.pull(Call(answers, 2), "orders", {0: 0}, 1, 0.0) is LATER
            may_go.set()
            for _ in range(2):
                assert offsets(await answers.came.get()) == {0: 0}
        pulling.indexes.close()
        store.abandon()

    run(main)


def test_offsets_at_a_time_are_found_without_a_file_being_read_in_the_loop(damaged: Path) -> None:
    async def main() -> None:
        store, _ = opened(damaged, chunk_size=1 << 20)
        pulling = Pulling(store, route_of)
        assert await offsets_at(store, pulling.indexes, "orders", range(3), 0.0) == {0: 0, 1: 0, 2: 0}
        pulling.indexes.close()
        store.abandon()

    run(main)


def test_an_index_that_is_being_made_anew_is_given_up_when_the_broker_stops(
    damaged: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        store, _ = opened(damaged, chunk_size=1 << 20)
        pulling, answers = Pulling(store, route_of), Answers()
        with held_scan(store, monkeypatch) as may_go:
            pulling.pull(Call(answers, 1), "orders", {0: 0}, 1, DEADLINE)
            while not pulling.indexes._making:
                await asyncio.sleep(0.001)
            (making,) = pulling.indexes._making.values()
            pulling.indexes.close()
            await asyncio.wait([making])
            assert not may_go.is_set()
        assert answers.came.empty()
        with pytest.raises(StorageFailed):
            await offsets_at(store, pulling.indexes, "orders", [0], 0.0)
        store.abandon()

    run(main)
