"""The newest batches in memory, so that reads close to the end of a queue need no file."""

from __future__ import annotations

from collections import OrderedDict

from enode_django.equeue.broker.batches import StoredBatch

RING_BATCHES = 100_000
RING_BYTES = 64 * 1024 * 1024


class Ring:
    """A cache of at most ``batches`` batches, with at most ``size`` bytes together; the oldest make room for new ones.

    Its keys are positions in the log, so a batch that is found is the one that the index names.
    """

    def __init__(self, batches: int, size: int) -> None:
        self._batches = batches
        self._size = size
        self.held_bytes = 0
        self._found: OrderedDict[int, StoredBatch] = OrderedDict()

    def __len__(self) -> int:
        return len(self._found)

    def add(self, position: int, batch: StoredBatch) -> None:
        """Add a batch. Positions ascend from call to call. A batch that is larger than the ring is not kept."""
        size = len(batch.body)
        if size > self._size or not self._batches:
            return
        self._found[position] = batch
        self.held_bytes += size
        while len(self._found) > self._batches or self.held_bytes > self._size:
            _, oldest = self._found.popitem(last=False)
            self.held_bytes -= len(oldest.body)

    def get(self, position: int) -> StoredBatch | None:
        return self._found.get(position)
