"""The port for snapshots, and the driver in memory: the newest one of each aggregate is kept.

A snapshot is derived from durable streams and may be lost or deleted at any time.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple, Protocol

__all__ = ["MemorySnapshotStore", "Snapshot", "SnapshotStore", "SnapshotVersion"]


class Snapshot(NamedTuple):
    """One row. ``fingerprint`` names the code that made the state; ``payload`` is opaque to a store."""

    aggregate_root_id: str
    aggregate_root_type: str
    version: int
    fingerprint: str
    payload: bytes
    created_at: datetime

    def gives_way_to(self, other: Snapshot) -> bool:
        """Return True if ``other`` replaces this one: it is newer, or made by other code."""
        return self.version < other.version or self.fingerprint != other.fingerprint


class SnapshotVersion(NamedTuple):
    """A `Snapshot` without its id, payload and time."""

    aggregate_root_type: str
    version: int
    fingerprint: str


class SnapshotStore(Protocol):
    """Stores snapshots. All methods block, may be called from any thread, and raise `StoreUnavailable` (retriable)."""

    def load(self, aggregate_root_ids: Iterable[str]) -> Mapping[str, Snapshot]:
        """Return the snapshots by aggregate root id. An id without a snapshot is left out."""

    def versions(self, aggregate_root_ids: Iterable[str]) -> Mapping[str, SnapshotVersion]:
        """Return the snapshots as `load` does, without the payloads."""

    def save(self, snapshots: Sequence[Snapshot]) -> int:
        """Save these, at most one per aggregate, unless one as new and of the same code is stored.

        Return how many were saved.
        """

    def discard(self, snapshot: Snapshot) -> bool:
        """Delete this very snapshot. Return False if another is in its place."""

    def discard_from(self, aggregate_root_id: str, version: int) -> bool:
        """Delete the aggregate's snapshot if it is of this version or a later one. Return False if there is none."""

    def sample(self, count: int, aggregate_root_types: Sequence[str] = ()) -> Sequence[Snapshot]:
        """Return up to ``count`` snapshots at random, of these types (none: all). Reads through all of them."""


class MemorySnapshotStore:
    """Snapshots in memory. All methods may be called from any thread; each is atomic.

    For example::

        snapshots = MemorySnapshotStore()
        snapshots.save([Snapshot("ada", "bank.BankAccount", 7, "fingerprint", b"state", datetime.now(UTC))])
        assert snapshots.versions(["ada"])["ada"].version == 7
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._snapshots: dict[str, Snapshot] = {}

    def load(self, aggregate_root_ids: Iterable[str]) -> Mapping[str, Snapshot]:
        with self._lock:
            return {id: self._snapshots[id] for id in aggregate_root_ids if id in self._snapshots}

    def versions(self, aggregate_root_ids: Iterable[str]) -> Mapping[str, SnapshotVersion]:
        loaded = self.load(aggregate_root_ids)
        return {id: SnapshotVersion(*one[1:4]) for id, one in loaded.items()}

    def save(self, snapshots: Sequence[Snapshot]) -> int:
        kept = 0
        with self._lock:
            for snapshot in snapshots:
                known = self._snapshots.get(snapshot.aggregate_root_id)
                if known is None or known.gives_way_to(snapshot):
                    self._snapshots[snapshot.aggregate_root_id] = snapshot
                    kept += 1
        return kept

    def discard(self, snapshot: Snapshot) -> bool:
        with self._lock:
            if self._snapshots.get(snapshot.aggregate_root_id) != snapshot:
                return False
            del self._snapshots[snapshot.aggregate_root_id]
            return True

    def discard_from(self, aggregate_root_id: str, version: int) -> bool:
        with self._lock:
            known = self._snapshots.get(aggregate_root_id)
            if known is None or known.version < version:
                return False
            del self._snapshots[aggregate_root_id]
            return True

    def sample(self, count: int, aggregate_root_types: Sequence[str] = ()) -> Sequence[Snapshot]:
        with self._lock:
            of_types = [
                one
                for one in self._snapshots.values()
                if not aggregate_root_types or one.aggregate_root_type in aggregate_root_types
            ]
        return random.sample(of_types, min(count, len(of_types)))
