"""Pulls that are answered at once, and those that wait for messages."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from enode_django.equeue.broker.batches import StoredBatch
from enode_django.equeue.broker.calls import LATER, Background, Call, Later
from enode_django.equeue.broker.index_loader import IndexLoader
from enode_django.equeue.broker.reading import Allowance, ColdRead
from enode_django.equeue.broker.store import MessageStore
from enode_django.exceptions import EnodeError

GIVEN_BYTES = 8 * 1024 * 1024
"""The size of one answer. A single batch may be larger."""
LEAST_BYTES = 64 * 1024
READ_IN_LOOP = 512 * 1024
"""Bytes that one pull reads from files in memory while all others wait; a thread reads the rest."""
INDEXES_AT_ONCE = 32
"""Index segments that one pull loads into memory; the other queues have their turn with the next one."""
READERS = 2
"""Threads of the loop that read from the disk at once; the others are left to flushes and checkpoints."""

Found: TypeAlias = list[tuple[int, Sequence[StoredBatch], int]]
"""Per queue its number, its batches, and the version of the topic's route."""


@dataclass(slots=True, eq=False)
class _Pull:
    """A pull that could not be answered at once. While it waits for messages, each of its queues refers to it."""

    call: Call
    topic: str
    offsets: Mapping[int, int]
    limit: int
    is_late: bool
    """True after its timeout, or from the beginning without one: the answer is then what the disk read returns. If an
    index is being rebuilt, a pull without a timeout is answered after that: its client would take the queue for
    empty."""
    timer: asyncio.TimerHandle | None = None
    is_reading: bool = False


class Pulling:
    """Answers pulls. Called by the event loop, which does not wait for the disk: threads read what is not in memory.
    Call `wake_safe` after each flush, since a store may show only what is safe on the disk."""

    def __init__(self, store: MessageStore, route_of: Callable[[str], int]) -> None:
        """``route_of`` returns the version of a topic's route."""
        self._store = store
        self._route_of = route_of
        self._unsafe: set[tuple[str, int]] = set()
        self._waiting: dict[tuple[str, int], set[_Pull]] = {}
        self._readers = asyncio.Semaphore(READERS)
        self._background = Background()
        self.indexes = IndexLoader(store.queues, self.wake)

    def pull(self, call: Call, topic: str, offsets: Mapping[int, int], limit: int, wait: float) -> Found | Later:
        """Return what is found, or `LATER`. The queues must exist."""
        found, cold, is_hindered = self._read(topic, offsets, limit)
        if not cold and (found or not offsets or not (wait or is_hindered)):
            return found
        pull = _Pull(call, topic, offsets, limit, is_late=not wait)
        for queue in offsets:
            self._waiting.setdefault((topic, queue), set()).add(pull)
        if wait:
            pull.timer = asyncio.get_running_loop().call_later(wait, self._end, pull)
        call.on_end = lambda: self._forget(pull)
        call.on_room = lambda: self._look_again(pull)
        if cold:
            self._begin(pull, found, cold)
        return LATER

    def wake(self, topic: str, queues: Iterable[int]) -> None:
        """Answer pulls that wait for messages in these queues, which have new ones."""
        for queue in queues:
            if self._store.shows_safe:
                self._unsafe.add((topic, queue))
            for pull in list(self._waiting.get((topic, queue), ())):
                self._look_again(pull)

    def wake_safe(self) -> None:
        """Answer pulls that wait for messages that the last flush has made safe."""
        is_all_safe = self._store.flushed == self._store.position  # before: a checkpoint's thread may flush meanwhile
        unsafe, self._unsafe = self._unsafe, set()
        for topic, queue in unsafe:
            self.wake(topic, (queue,))
        if is_all_safe:
            self._unsafe.clear()

    def answer_all(self) -> None:
        """Answer all waiting pulls at once, without messages."""
        for pull in self._pulls():
            pull.call.answer([])

    def refuse(self, topic: str, error: EnodeError) -> None:
        """Fail all pulls that wait for messages of a topic."""
        for pull in self._pulls():
            if pull.topic == topic:
                pull.call.fail(error)

    def __len__(self) -> int:
        """Return how many pulls wait."""
        return len(self._pulls())

    def _pulls(self) -> set[_Pull]:
        return {pull for pulls in self._waiting.values() for pull in pulls}

    def _look_again(self, pull: _Pull) -> None:
        if not pull.is_reading and pull.call.has_room:
            self._look(pull)

    def _look(self, pull: _Pull) -> None:
        """Answer the pull if there are messages; read those first that only the disk has."""
        found, cold, is_hindered = self._read(pull.topic, pull.offsets, pull.limit)
        if cold:
            self._begin(pull, found, cold)
        elif found or (pull.is_late and not is_hindered):
            pull.call.answer(found)

    def _end(self, pull: _Pull) -> None:
        pull.is_late = True
        if not pull.is_reading:
            pull.call.answer([])

    def _begin(self, pull: _Pull, found: Found, cold: Sequence[ColdRead]) -> None:
        pull.is_reading = True
        self._background.start(self._from_disk(pull, found, cold))

    async def _from_disk(self, pull: _Pull, found: Found, cold: Sequence[ColdRead]) -> None:
        """Answer with the batches found in memory and those that a thread reads. If all are damaged, look again."""
        try:
            await self.indexes.load([read.segment for read in cold if read.segment is not None])
            async with self._readers:
                if pull.call.is_over or not self._may_read(pull):
                    return
                loaded = await asyncio.to_thread(lambda: [read.load() for read in cold])
            route = self._route_of(pull.topic)
            for read, data in zip(cold, loaded, strict=True):
                batches = self._store.reader.finish(read, data)
                if batches:
                    found.append((read.queue, batches, route))
        except EnodeError as error:
            pull.call.fail(error)
            return
        except Exception:
            pull.call.fail_by_defect("pull")
            return
        pull.is_reading = False
        if found:
            pull.call.answer(found)
        elif not pull.call.is_over:
            self._look(pull)

    def _may_read(self, pull: _Pull) -> bool:
        """Return True if the client takes what is read. Otherwise the pull waits for that, or ends if it is late."""
        if pull.call.has_room:
            return True
        pull.is_reading = False
        if pull.is_late:
            pull.call.answer([])
        return False

    def _read(self, topic: str, offsets: Mapping[int, int], limit: int) -> tuple[Found, list[ColdRead], bool]:
        """Return the batches in memory, the reads with which a thread completes the answer, and whether there may be
        more that an index names which is being rebuilt.

        Every queue gets a share of the answer's size. A queue whose share does not fit waits for another answer: each
        one begins at a random queue.
        """
        found: Found = []
        cold: list[ColdRead] = []
        indexes: list[ColdRead] = []
        is_hindered = False
        if not offsets:
            return found, cold, False
        route = self._route_of(topic)
        share = max(GIVEN_BYTES // len(offsets), LEAST_BYTES)
        left = GIVEN_BYTES
        allowance = Allowance(READ_IN_LOOP)
        for queue in _from_anywhere(list(offsets)):
            batches = self._store.reader.read_held(topic, queue, offsets[queue], limit, min(share, left), allowance)
            if isinstance(batches, ColdRead) and batches.segment is not None:
                if batches.segment.segment in self._store.queues.being_made:
                    is_hindered = True
                else:
                    indexes.append(batches)
                continue
            size = batches.size if isinstance(batches, ColdRead) else sum(len(batch.body) for batch in batches)
            if not size or ((found or cold) and size > left):
                continue
            left -= size
            if isinstance(batches, ColdRead):
                cold.append(batches)
            else:
                found.append((queue, batches, route))
            if left <= 0:
                break
        return found, cold + indexes[:INDEXES_AT_ONCE], is_hindered

    def _forget(self, pull: _Pull) -> None:
        if pull.timer is not None:
            pull.timer.cancel()
        for queue in pull.offsets:
            pulls = self._waiting.get((pull.topic, queue))
            if pulls is not None:
                pulls.discard(pull)
                if not pulls:
                    del self._waiting[pull.topic, queue]


def _from_anywhere(queues: list[int]) -> list[int]:
    first = random.randrange(len(queues))  # noqa: S311 - any queue may be the first
    return queues[first:] + queues[:first]
