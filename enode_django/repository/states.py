"""The port for shared states, and the driver in memory: a cache behind the caches of all workers.

A shared state is a `Snapshot` whose ``created_at`` is that of the stream which made its version. It is only ever a
start: a load compares it with the store, and reads later streams there.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from enode_django.repository.store import Snapshot

__all__ = ["MemoryStates", "SharedStates"]


class SharedStates(Protocol):
    """A cache of states. A saved state may be gone at any time, and a deleted one may still be there. All methods may
    be called from any thread, block for a moment at most, and raise nothing: a state that cannot be read counts as
    missing."""

    def load(self, aggregate_root_ids: Iterable[str]) -> Mapping[str, Snapshot]:
        """Return the states by aggregate root id. An id without a state is left out."""

    def save(self, states: Sequence[Snapshot]) -> None:
        """Save states. Each replaces any state of its aggregate."""

    def delete(self, aggregate_root_id: str) -> None: ...

    def discard(self, state: Snapshot) -> None:
        """Delete any state of its aggregate, because this one is unusable."""

    def close(self) -> None: ...


class MemoryStates:
    """Shared states in memory. Each method is atomic.

    For example::

        states = MemoryStates()
        states.save([Snapshot("ada", "bank.BankAccount", 7, "fingerprint", b"state", datetime.now(UTC))])
        assert states.load(["ada", "bob"])["ada"].version == 7
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.states: dict[str, Snapshot] = {}

    def load(self, aggregate_root_ids: Iterable[str]) -> Mapping[str, Snapshot]:
        with self._lock:
            return {id: self.states[id] for id in aggregate_root_ids if id in self.states}

    def save(self, states: Sequence[Snapshot]) -> None:
        with self._lock:
            self.states.update((state.aggregate_root_id, state) for state in states)

    def delete(self, aggregate_root_id: str) -> None:
        with self._lock:
            self.states.pop(aggregate_root_id, None)

    def discard(self, state: Snapshot) -> None:
        self.delete(state.aggregate_root_id)

    def close(self) -> None:
        """Do nothing: nothing is open."""
