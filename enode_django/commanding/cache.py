"""The aggregates that one command mailbox holds in memory. One thread uses them, so there are no locks."""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import islice

from enode_django.commanding.decisions import Decision, Envelope
from enode_django.commanding.memory_size import weight_of
from enode_django.domain.aggregate import AggregateRoot
from enode_django.exceptions import EnodeError

WEIGHED_AFTER = 4 * 1024
"""Bytes of new events after which an aggregate is weighed again, if they are also at least its last weight: so weighing
costs little, however large aggregates are."""
LEAVE_TOGETHER = 64
"""One in this number of idle slots leaves when room is needed. Slots that left one by one would make the oldest one
expensive to find: a dictionary keeps the places of removed keys for a while."""


class Slot:
    """One aggregate (None if it does not exist) and its unfinished decisions, in order, by their envelopes.

    ``id`` is the aggregate's id. Code that keeps the id for long keeps this string, so that there is only one copy.
    ``epoch`` is that of the state in memory; it is raised when the state is thrown away. ``error`` is set if the stored
    history cannot be read; every command then fails with it.
    """

    __slots__ = ("aggregate", "epoch", "error", "grown", "id", "queue", "unfinished", "weight")

    def __init__(
        self, id: str, aggregate: AggregateRoot | None, epoch: int, queue: int, error: EnodeError | None = None
    ) -> None:
        self.id = aggregate.id if aggregate is not None and aggregate.id == id else id
        self.aggregate = aggregate
        self.epoch = epoch
        self.queue = queue
        self.error = error
        self.weight = 0
        """The bytes of memory that the aggregate took when it was weighed last."""
        self.grown = WEIGHED_AFTER if aggregate is not None else 0
        """Bytes of events since then."""
        # Most slots are idle, and an empty dictionary takes as much memory as a small aggregate.
        self.unfinished: dict[Envelope, Decision] | tuple[()] = ()

    @property
    def version(self) -> int:
        return self.aggregate.version if self.aggregate is not None else 0

    @property
    def decisions(self) -> list[Decision]:
        """The unfinished decisions."""
        return list(self.unfinished.values()) if self.unfinished else []


class AggregateCache:
    """A cache of up to ``limit`` slots, whose aggregates take up to ``max_bytes`` of memory. The least recently used
    slot leaves first; a slot with unfinished decisions is pinned. A new aggregate counts towards ``max_bytes`` once it
    has had `WEIGHED_AFTER` bytes of events.

    If there are many slots, several leave at a time. There may be more than ``limit`` slots, but never more than
    ``limit`` plus the unfinished commands. ``evicted`` is called with each slot that leaves to make room.
    """

    def __init__(self, limit: int, evicted: Callable[[Slot], None] | None = None, max_bytes: int = sys.maxsize) -> None:
        self.limit = limit
        self.weight = 0
        self._max_bytes = max_bytes
        self._evicted = evicted
        self.slots: dict[str, Slot] = {}
        self._idle: dict[str, None] = {}

    def __len__(self) -> int:
        return len(self.slots)

    def get(self, id: str) -> Slot | None:
        return self.slots.get(id)

    def put(self, slot: Slot) -> None:
        """Hold a slot; the caller pins it with a decision or calls `settle`."""
        self.drop(slot.id)
        self.slots[slot.id] = slot

    def pin(self, slot: Slot, entry: Decision) -> None:
        """Keep a slot until ``entry``, which has an envelope, is removed from its unfinished decisions."""
        assert entry.envelope is not None
        if entry.record is not None:
            slot.grown += len(entry.record.events)
        if slot.unfinished:
            slot.unfinished[entry.envelope] = entry
        else:
            self._idle.pop(slot.id, None)
            slot.unfinished = {entry.envelope: entry}

    def settle(self, slot: Slot) -> None:
        """Make a slot without unfinished decisions idle, or drop it if its aggregate does not exist. Slots may leave to
        make room."""
        slot.unfinished = ()
        if slot.aggregate is None:
            self.drop(slot.id)
            return
        if slot.grown >= WEIGHED_AFTER and slot.grown >= slot.weight:
            self._weigh(slot)
        self._idle[slot.id] = None
        while (len(self.slots) > self.limit or self.weight > self._max_bytes) and self._idle:
            self._let_the_oldest_leave()

    def _let_the_oldest_leave(self) -> None:
        for oldest in list(islice(self._idle, 1 + len(self._idle) // LEAVE_TOGETHER)):
            del self._idle[oldest]
            left = self.slots.pop(oldest)
            self.weight -= left.weight
            if self._evicted is not None:
                self._evicted(left)

    def drop(self, id: str) -> None:
        slot = self.slots.pop(id, None)
        self.weight -= slot.weight if slot is not None else 0
        self._idle.pop(id, None)

    def _weigh(self, slot: Slot) -> None:
        before, slot.weight, slot.grown = slot.weight, weight_of(slot.aggregate), 0
        self.weight += slot.weight - before
