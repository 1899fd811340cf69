"""Load index files into memory while the broker serves, and find offsets by time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence

from enode_django.equeue.broker.index import NotInMemory
from enode_django.equeue.broker.queues import Queues
from enode_django.equeue.broker.segments import SegmentLoad
from enode_django.equeue.broker.store import MessageStore
from enode_django.exceptions import QueueError, StorageFailed

logger = logging.getLogger(__name__)


class IndexLoader:
    """Loads index files. Lives in the event loop; threads read the files. Damaged ones are rebuilt one at a time, and
    only reads of such a file wait for that.

    ``on_made`` is called with the topic and the queue after each attempt to rebuild an index, also after a failure.
    """

    def __init__(self, queues: Queues, on_made: Callable[[str, Sequence[int]], None]) -> None:
        self._queues = queues
        self._on_made = on_made
        self._one_at_a_time = asyncio.Lock()
        self._is_closed = False
        self._making: dict[SegmentLoad, asyncio.Task[None]] = {}

    async def load(self, loads: Sequence[SegmentLoad]) -> None:
        """Wait until the files were read. Damaged ones start to be rebuilt in the background."""
        if loads:
            await asyncio.to_thread(lambda: [load.read_file() for load in loads])
        for load in loads:
            if load.words is not None:
                self._queues.take(load)
            elif load.segment not in self._queues.being_made:
                self._queues.being_made.add(load.segment)
                self._making[load] = asyncio.create_task(self._make(load))

    async def load_anyway(self, load: SegmentLoad) -> None:
        """Wait until the words are in memory, rebuilt if need be. Raises `StorageFailed` if that failed."""
        await self.load([load])
        for each, task in list(self._making.items()):
            if each.segment is load.segment:
                await asyncio.wait([task])
                if each.words is None:
                    raise StorageFailed(f"the index {load.file.path} is damaged, and could not be made anew; try again")

    def close(self) -> None:
        """Give up all rebuilding."""
        self._is_closed = True
        for load in self._making:
            load.give_up()

    async def _make(self, load: SegmentLoad) -> None:
        file = load.file
        try:
            async with self._one_at_a_time:
                if not self._is_closed:
                    await asyncio.to_thread(load.run)
            self._queues.take(load)
        except QueueError as error:
            logger.error("the index %s could not be made anew: %s", file.path, error)
        except Exception:  # nobody reads the result of this task
            logger.exception("the index %s could not be made anew", file.path)
        finally:
            self._queues.being_made.discard(load.segment)
            del self._making[load]
        self._on_made(file.topic, [file.queue])


async def offsets_at(
    store: MessageStore, indexes: IndexLoader, topic: str, queues: Iterable[int], at: float
) -> dict[int, int]:
    """Return the offset of each queue at a time in seconds since 1970. The event loop waits for no index file."""
    return {queue: await _offset_at(store, indexes, topic, queue, at) for queue in queues}


async def _offset_at(store: MessageStore, indexes: IndexLoader, topic: str, queue: int, at: float) -> int:
    while True:
        try:
            return store.offset_at(topic, queue, at)
        except NotInMemory as missing:
            await indexes.load_anyway(missing.load)
