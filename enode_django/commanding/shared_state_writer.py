"""Decide which aggregates of a command mailbox go to the shared states, and when.

Only durable states go there. A state is durable if the aggregate has no unfinished commands, and the event mailbox has
found the stream of its version to be stored. States are encoded in the mailbox's thread, because only this thread may
use an aggregate, and for short times, so that commands do not wait long.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from datetime import datetime

from enode_django.commanding.cache import Slot
from enode_django.commanding.decisions import STREAM, Decision
from enode_django.domain.aggregate import AggregateRoot
from enode_django.exceptions import InvalidState
from enode_django.repository import policy
from enode_django.repository.state import snapshot_of
from enode_django.repository.states import SharedStates
from enode_django.repository.store import Snapshot

logger = logging.getLogger("enode_django.snapshots")

AT_ONCE = 0.001
"""Seconds of work at a time, for which commands may have to wait."""
MOST_EVICTED = 10_000
"""The most aggregates that have left the cache and wait to be encoded. Further ones are left out."""

Mark = tuple[int | None, str, datetime]
"""Version, command id and time of a stored stream, without its events, which may be large."""


class SharedStateWriter:
    """Encodes durable states for the shared states. All methods are called by the command mailbox's thread; none
    blocks.

    It works in rounds, ``interval`` seconds apart. A round takes the aggregates that have changed before it begins, so
    an aggregate is encoded at most once per round, however many commands change it.
    """

    def __init__(
        self,
        states: SharedStates,
        *,
        interval: float,
        clock: Callable[[], float] = time.monotonic,
        work_clock: Callable[[], float] = time.thread_time,
    ) -> None:
        self._states = states
        self._interval = interval
        self._clock = clock
        self._work_clock = work_clock
        self._next_round = clock() + interval
        self._changed: dict[str, Mark] = {}
        self._due: dict[str, Mark] = {}
        self._evicted: dict[str, tuple[AggregateRoot, Mark, int]] = {}
        self._unsuitable: set[type[AggregateRoot]] = set()
        self._told: set[type[AggregateRoot]] = set()

    # -- what happens to aggregates -------------------------------------------------------------------------------

    def note(self, slot: Slot, entry: Decision) -> None:
        """Note that this decision of the slot is durable."""
        record = entry.record
        if record is not None and entry.kind is STREAM:
            self._changed[slot.id] = (record.version, record.command_id, record.created_at)

    def evict(self, slot: Slot) -> None:
        """Take over the aggregate of an idle slot that has left the cache; nothing else touches it from now on."""
        due = self._due.pop(slot.id, None)
        mark = self._changed.pop(slot.id, due)
        if mark is not None and slot.aggregate is not None and len(self._evicted) < MOST_EVICTED:
            self._evicted[slot.id] = (slot.aggregate, mark, slot.queue)

    def forget(self, aggregate_root_id: str) -> None:
        """Forget everything noted of the aggregate."""
        for noted in (self._changed, self._due, self._evicted):
            noted.pop(aggregate_root_id, None)

    def forget_evicted(self, queue: int) -> None:
        """Forget the aggregates of this queue that have left the cache."""
        for id in [id for id, (_, _, of_queue) in self._evicted.items() if of_queue == queue]:
            del self._evicted[id]

    def delete(self, aggregate_root_id: str) -> None:
        """Forget the aggregate, and have its shared state deleted."""
        self.forget(aggregate_root_id)
        self._states.delete(aggregate_root_id)

    # -- encoding -------------------------------------------------------------------------------------------------

    @property
    def pause(self) -> float | None:
        """Seconds until `work` has something to do; None if nothing is noted."""
        if self._due or self._evicted:
            return 0.0
        return max(0.0, self._next_round - self._clock()) if self._changed else None

    def work(self, slots: Mapping[str, Slot], seconds: float = AT_ONCE) -> None:
        """Encode some of the due states, for about ``seconds`` of work. ``slots`` are those of the cache."""
        if not self._due and self._changed and self._clock() >= self._next_round:
            self._due, self._changed = self._changed, {}
            self._next_round = self._clock() + self._interval
        if not (self._due or self._evicted):
            return
        end = self._work_clock() + seconds
        encoded: list[Snapshot] = []
        for _ in range(len(self._due) + len(self._evicted)):
            state = self._encode_next(slots)
            if state is not None:
                encoded.append(state)
            if self._work_clock() >= end:
                break
        self._states.save(encoded)

    def flush(self, slots: Mapping[str, Slot], seconds: float) -> None:
        """Encode the remaining states, for up to ``seconds``."""
        end = self._clock() + seconds
        self._due.update(self._changed)
        self._changed = {}
        while (self._due or self._evicted) and self._clock() < end:
            self.work(slots)

    def _encode_next(self, slots: Mapping[str, Slot]) -> Snapshot | None:
        if self._evicted:
            _, (aggregate, mark, _) = self._evicted.popitem()
            return self._encode(aggregate, mark)
        id, mark = self._due.popitem()
        slot = slots.get(id)
        if slot is None or slot.aggregate is None:
            return None
        if slot.unfinished:
            self._changed.setdefault(id, mark)  # encoded once it has no unfinished commands
            return None
        return self._encode(slot.aggregate, mark)

    def _encode(self, aggregate: AggregateRoot, mark: Mark) -> Snapshot | None:
        """Return None for a state that is not known to be durable, or that cannot be kept."""
        cls = type(aggregate)
        version, command_id, made_at = mark
        if aggregate.version != version or cls in self._unsuitable or not policy.is_on(cls):
            return None
        try:
            return snapshot_of(aggregate, command_id)._replace(created_at=made_at)
        except Exception as error:  # comparing values is application code, too
            self._leave_out(cls, error)
            return None

    def _leave_out(self, cls: type[AggregateRoot], error: Exception) -> None:
        if isinstance(error, InvalidState) and error.concerns_class:
            self._unsuitable.add(cls)
        if cls not in self._told:
            self._told.add(cls)
            logger.error("the state of a %s cannot be shared: %s: %s", cls.__qualname__, type(error).__name__, error)
