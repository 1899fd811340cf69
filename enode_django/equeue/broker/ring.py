"""The newest batches in memory, so that who reads close to the end of a queue needs no file."""

from __future__ import annotations

from collections import deque

from enode_django.equeue.broker.batches import StoredBatch

RING_BATCHES = 100_000
RING_BYTES = 64 * 1024 * 1024


class Ring:
    """Holds at most ``batches`` batches of together at most ``size`` bytes; the oldest make room for new ones.

    Found by the position in the log, so what is found is what the index means.
    """

    def __init__(self, batches: int, size: int) -> None:
        self._batches = batches
        self._size = size
        self._held = 0
        self._order: deque[int] = deque()
        self._found: dict[int, StoredBatch] = {}

    def __len__(self) -> int:
        return len(self._found)

    @property
    def held_bytes(self) -> int:
        return self._held

    def add(self, position: int, batch: StoredBatch) -> None:
        """Positions ascend from call to call. One that is larger than the ring is not kept."""
        size = len(batch.body)
        if size > self._size or not self._batches:
            return
        self._order.append(position)
        self._found[position] = batch
        self._held += size
        while len(self._order) > self._batches or self._held > self._size:
            self._held -= len(self._found.pop(self._order.popleft()).body)

    def get(self, position: int) -> StoredBatch | None:
        return self._found.get(position)
