"""Snapshots and shared states for loading aggregates: the usable ones are found, the others rejected."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Protocol

from enode_django.domain.aggregate import AggregateRoot
from enode_django.exceptions import EnodeError, StoreUnavailable, UnusableSnapshot
from enode_django.repository import policy
from enode_django.repository.fingerprint import fingerprint_of
from enode_django.repository.state import ReadSnapshot, read_snapshot
from enode_django.repository.store import Snapshot
from enode_django.serialization.registry import types

logger = logging.getLogger("enode_django.snapshots")

_told: set[tuple[str, str]] = set()
_MOST_TOLD = 10_000


class KeepsSnapshots(Protocol):
    """The part of `SnapshotStore` and `SharedStates` that a reader needs."""

    def load(self, aggregate_root_ids: Iterable[str]) -> Mapping[str, Snapshot]: ...

    def discard(self, snapshot: Snapshot, /) -> object: ...


class SnapshotReader:
    """Reads snapshots. Blocks on where they are kept. A faulty one is logged once, and never raised.

    With ``only_reads`` an unusable snapshot is not deleted: reading a state changes nothing.
    """

    _kind = "snapshot"

    def __init__(self, store: KeepsSnapshots, *, only_reads: bool = False) -> None:
        self.store = store
        self._only_reads = only_reads

    def find_for(self, heads: Mapping[str, int]) -> Mapping[str, ReadSnapshot]:
        """Find snapshots as `find` does, of aggregates at these versions. Those too young to have one are not looked
        up."""
        lowest = policy.lowest()
        return self.find([id for id, head in heads.items() if lowest is not None and head >= lowest])

    def find(self, aggregate_root_ids: Iterable[str]) -> Mapping[str, ReadSnapshot]:
        """Return the sound snapshots that this process's code has made, by one query. Raises `StoreUnavailable`."""
        found = {}
        for id, stored in self._load(aggregate_root_ids).items():
            try:
                cls = class_of(stored)
                if cls is not None:
                    found[id] = self._read(cls, stored)
            except UnusableSnapshot as error:
                self.reject(stored, error)
        return found

    def _read(self, cls: type[AggregateRoot], stored: Snapshot) -> ReadSnapshot:
        return read_snapshot(cls, stored)

    def _load(self, aggregate_root_ids: Iterable[str]) -> Mapping[str, Snapshot]:
        ids = list(aggregate_root_ids)
        if not ids or policy.lowest() is None:
            return {}
        try:
            return self.store.load(ids)
        except StoreUnavailable:
            raise
        except Exception as error:  # for example, its table is not migrated yet: loading works without snapshots
            _tell((self._kind, type(error).__name__), "%ss cannot be read, loading goes on without: %s",
                  self._kind, error)  # fmt: skip
            return {}

    def reject(self, stored: Snapshot, error: UnusableSnapshot) -> None:
        """Log the error once, and delete the snapshot, so that another is made, unless this reader ``only_reads``."""
        id, version, fate = stored.aggregate_root_id, stored.version, "not used" if self._only_reads else "discarded"
        key = (f"{fate} {self._kind} of {id}", str(version))
        _tell(key, "the %s of %r at version %d is %s: %s", self._kind, id, version, fate, error)
        if self._only_reads:
            return
        try:
            self.store.discard(stored)
        except Exception as failed:
            logger.warning("the %s of %r could not be deleted: %s", self._kind, id, failed)


class StateReader(SnapshotReader):
    """A `SnapshotReader` for shared states."""

    _kind = "shared state"

    def _read(self, cls: type[AggregateRoot], stored: Snapshot) -> ReadSnapshot:
        return read_snapshot(cls, stored)._replace(is_shared=True)


def class_of(stored: Snapshot) -> type[AggregateRoot] | None:
    """Return the class whose state it is, or None if this process cannot or must not use it. A snapshot made by other
    code, which may be newer, is left alone."""
    try:
        cls = types.class_of(AggregateRoot, stored.aggregate_root_type)
        if not policy.is_on(cls):
            return None
        fingerprint = fingerprint_of(cls)
    except EnodeError:
        return None
    if fingerprint == stored.fingerprint:
        return cls
    name = stored.aggregate_root_type
    _tell((name, stored.fingerprint), "snapshots of %s that other code has made are not used; here it is %s", name,
          fingerprint, level=logging.INFO)  # fmt: skip
    return None


def _tell(key: tuple[str, str], message: str, *values: object, level: int = logging.ERROR) -> None:
    if key in _told:
        return
    if len(_told) >= _MOST_TOLD:
        _told.clear()
    _told.add(key)
    logger.log(level, message, *values)
