"""Snapshots of what is stored: when they are due, and making them."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from enode_django.commanding.loading import AggregateLoader
from enode_django.domain.aggregate import AggregateRoot
from enode_django.eventstore.base import EventStore
from enode_django.exceptions import InvalidState, UnknownMessageType
from enode_django.serialization.registry import types
from enode_django.snapshots import policy
from enode_django.snapshots.fingerprint import fingerprint_of
from enode_django.snapshots.state import snapshot_of
from enode_django.snapshots.store import Snapshot, SnapshotStore, SnapshotVersion

logger = logging.getLogger("enode_django.snapshots")


class SnapshotMaker:
    """All methods block on the databases; they raise `StoreUnavailable`. A class whose state no snapshot can hold is
    named in the log, and left out from then on."""

    def __init__(self, store: EventStore, snapshots: SnapshotStore) -> None:
        self._store = store
        self._snapshots = snapshots
        self._loader = AggregateLoader(store, snapshots)
        self._unsuitable: set[type[AggregateRoot]] = set()

    def reached(self, ids: Sequence[str]) -> dict[str, int]:
        """Of all ids the versions of their snapshots, as far as this process can use them; else 0."""
        found = self._snapshots.versions(ids)
        return {id: _usable_version(found[id]) if id in found else 0 for id in ids}

    def is_due(self, aggregate_root_type: str, reached: int, version: int) -> bool:
        """Raises `UnknownMessageType`, and what the policy of the class raises."""
        cls = types.class_of(AggregateRoot, aggregate_root_type)
        return cls not in self._unsuitable and policy.is_due(cls, reached, version)

    def make(self, aggregate_root_id: str, until: int) -> Snapshot | None:
        """Of the newest version up to ``until``, not saved yet; None if there are no streams, or no snapshot can be
        made for this class. Raises `InvalidState`, and as `replay_record`."""
        aggregate = self._loader.load(aggregate_root_id, until=until)
        if aggregate is None or type(aggregate) in self._unsuitable:
            return None
        (last,) = self._store.load(aggregate_root_id, after=aggregate.version - 1, until=aggregate.version)
        try:
            return snapshot_of(aggregate, last.command_id)
        except InvalidState as error:
            if not error.concerns_class:
                raise
            self._unsuitable.add(type(aggregate))
            logger.error("no snapshots are made: %s", error)
            return None


def _usable_version(found: SnapshotVersion) -> int:
    try:
        cls = types.class_of(AggregateRoot, found.aggregate_root_type)
    except UnknownMessageType:
        return 0
    return found.version if found.fingerprint == fingerprint_of(cls) else 0
