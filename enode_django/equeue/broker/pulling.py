"""Pulls, and those that wait for a message."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable, Mapping
from typing import Any

from enode_django.equeue.broker.calls import LATER, Call, Later
from enode_django.equeue.broker.store import MessageStore

GIVEN_BYTES = 8 * 1024 * 1024
"""Of one answer, as far as whole batches allow."""
LEAST_BYTES = 64 * 1024


class _Waiting:
    """A pull that nothing could be given to. It is found by each of its queues."""

    __slots__ = ("call", "limit", "offsets", "timer", "topic")

    def __init__(self, call: Call, topic: str, offsets: Mapping[int, int], limit: int) -> None:
        self.call = call
        self.topic = topic
        self.offsets = offsets
        self.limit = limit
        self.timer: asyncio.TimerHandle | None = None


class Pulling:
    """`wake_safe` is called after each flush: a store may show only what is safe on the disk."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._unsafe: set[tuple[str, int]] = set()
        self._waiting: dict[tuple[str, int], set[_Waiting]] = {}

    def pull(self, call: Call, topic: str, offsets: Mapping[int, int], limit: int, wait: float) -> list[Any] | Later:
        """Per queue its number and its batches, each as first offset and body. The queues have been checked."""
        found = self._read(topic, offsets, limit)
        if found or not wait or not offsets:
            return found
        waiting = _Waiting(call, topic, offsets, limit)
        for queue in offsets:
            self._waiting.setdefault((topic, queue), set()).add(waiting)
        waiting.timer = asyncio.get_running_loop().call_later(wait, call.answer, [])
        call.on_end = lambda: self._forget(waiting)
        return LATER

    def wake(self, topic: str, queues: Iterable[int]) -> None:
        """Answer who waits for messages in these queues: some have come."""
        for queue in queues:
            if self._store.shows_safe:
                self._unsafe.add((topic, queue))
            for waiting in list(self._waiting.get((topic, queue), ())):
                found = self._read(topic, waiting.offsets, waiting.limit)
                if found:
                    waiting.call.answer(found)

    def wake_safe(self) -> None:
        """Answer who waits for what is safe since the last flush."""
        unsafe, self._unsafe = self._unsafe, set()
        for topic, queue in unsafe:
            self.wake(topic, (queue,))
        if self._store.flushed == self._store.position:
            self._unsafe.clear()

    def answer_all(self) -> None:
        """Give those that wait nothing, at once."""
        for waiting in self._those():
            waiting.call.answer([])

    def __len__(self) -> int:
        """How many pulls wait."""
        return len(self._those())

    def _those(self) -> set[_Waiting]:
        return {each for those in self._waiting.values() for each in those}

    def _read(self, topic: str, offsets: Mapping[int, int], limit: int) -> list[Any]:
        """Every queue gets its share of the answer's size. What does not fit behind others waits for an answer in which
        chance puts its queue first."""
        if not offsets:
            return []
        share = max(GIVEN_BYTES // len(offsets), LEAST_BYTES)
        found: list[Any] = []
        left = GIVEN_BYTES
        for queue in _from_anywhere(list(offsets)):
            batches = self._store.read(topic, queue, offsets[queue], limit, min(share, left))
            size = sum(len(batch.body) for batch in batches)
            if batches and (not found or size <= left):
                left -= size
                found.append((queue, [(batch.first_offset, batch.body) for batch in batches]))
                if left <= 0:
                    break
        return found

    def _forget(self, waiting: _Waiting) -> None:
        if waiting.timer is not None:
            waiting.timer.cancel()
        for queue in waiting.offsets:
            those = self._waiting.get((waiting.topic, queue))
            if those is not None:
                those.discard(waiting)
                if not those:
                    del self._waiting[waiting.topic, queue]


def _from_anywhere(queues: list[int]) -> list[int]:
    first = random.randrange(len(queues))
    return queues[first:] + queues[:first]
