"""Sends that wait for the disk."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from enode_django.equeue.broker.flusher import Flusher
from enode_django.equeue.broker.store import MessageStore
from enode_django.exceptions import StorageFailed
from tests.equeue.brokers import DEADLINE


class SlowStore(MessageStore):
    """A store whose flushes wait for ``go_on``, and fail if ``fails``."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, chunk_size=1 << 20)
        self.go_on = threading.Semaphore(0)
        self.flushes = 0
        self.fails = False

    def flush(self) -> int:
        assert self.go_on.acquire(timeout=DEADLINE)
        self.flushes += 1
        if self.fails:
            raise StorageFailed("the disk is broken")
        return super().flush()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SlowStore]:
    store = SlowStore(tmp_path)
    store.open(restore=lambda _: None, replay=lambda *_: None, sent=lambda _: None)
    yield store
    store.abandon()


def test_those_that_come_during_a_flush_share_the_next_one(store: SlowStore) -> None:
    async def scenario() -> None:
        safe: list[int] = []
        flusher = Flusher(store, on_flushed=lambda: None, on_failure=pytest.fail)
        for number in range(10):
            store.append_control(b"%d" % number)

            def note(error: BaseException | None, number: int = number, position: int = store.position) -> None:
                assert error is None
                assert store.flushed >= position
                safe.append(number)

            flusher.after(store.position, note)
            await asyncio.sleep(0)
        assert safe == []
        store.go_on.release(2)
        await asyncio.wait_for(flusher.finish(), DEADLINE)
        assert safe == list(range(10))
        assert store.flushes <= 2

    asyncio.run(scenario())


def test_disk_that_fails_is_told_to_all_who_wait(store: SlowStore) -> None:
    async def scenario() -> None:
        errors: list[BaseException | None] = []
        failures: list[BaseException] = []
        store.fails = True
        flusher = Flusher(store, on_flushed=lambda: pytest.fail("nothing is safe"), on_failure=failures.append)
        for _ in range(3):
            store.append_control(b"x")
            flusher.after(store.position, errors.append)
        store.go_on.release(2)
        await asyncio.wait_for(flusher.finish(), DEADLINE)
        assert len(failures) == 1
        assert errors == failures * 3

    asyncio.run(scenario())


def test_who_waits_is_called_though_a_checkpoint_has_made_all_safe_meanwhile(store: SlowStore) -> None:
    async def scenario() -> None:
        called: list[BaseException | None] = []
        flushed: list[None] = []
        flusher = Flusher(store, on_flushed=lambda: flushed.append(None), on_failure=pytest.fail)
        store.append_control(b"x")
        store.checkpoint(b"")
        assert not store.unflushed_bytes
        store.go_on.release(2)
        flusher.after(store.position, called.append)
        await asyncio.wait_for(flusher.finish(), DEADLINE)
        assert called == [None]
        flusher.begin()
        await asyncio.wait_for(flusher.finish(), DEADLINE)
        assert len(flushed) == 2

    asyncio.run(scenario())


def test_nothing_is_flushed_when_all_is_safe(store: SlowStore) -> None:
    async def scenario() -> None:
        flusher = Flusher(store, on_flushed=lambda: None, on_failure=pytest.fail)
        flusher.flush()
        await flusher.finish()
        assert store.flushes == 0

    asyncio.run(scenario())
