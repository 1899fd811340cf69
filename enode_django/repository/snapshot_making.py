"""Making snapshots of what is stored, when they are due."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial

from enode_django.domain.aggregate import AggregateRoot
from enode_django.eventstore.base import EventStore, StreamRecord
from enode_django.eventstore.fetched import COMMAND_ID, Fetched, Row
from enode_django.eventstore.sqlstates import is_transient
from enode_django.exceptions import InvalidState, UnusableSnapshot
from enode_django.repository import policy
from enode_django.repository.fingerprint import fingerprint_of
from enode_django.repository.loading import AggregateLoader, History, fetched_parts
from enode_django.repository.state import snapshot_of
from enode_django.repository.store import Snapshot, SnapshotStore, SnapshotVersion
from enode_django.serialization.registry import types

Outcome = Snapshot | Exception | None
"""A snapshot to be kept, or the error; None if there are no streams, or a snapshot cannot hold the class's state."""
logger = logging.getLogger("enode_django.snapshots")


class SnapshotMaker:
    """Makes snapshots. All methods block on the databases, and raise `StoreUnavailable`. A class whose state does not
    fit into a snapshot is named in the log, and left out from then on."""

    def __init__(self, store: EventStore, snapshots: SnapshotStore) -> None:
        self._snapshots = snapshots
        self._loader = AggregateLoader(store, snapshots)
        self._unsuitable: set[type[AggregateRoot]] = set()

    def reached(self, ids: Sequence[str]) -> dict[str, int]:
        """Return the versions of the snapshots of all ids; 0 for an id without a snapshot that this process can use."""
        found = self._snapshots.versions(ids)
        return {id: _usable_version(found[id]) if id in found else 0 for id in ids}

    def is_due(self, aggregate_root_type: str, reached: int, version: int) -> bool:
        """Return True if a snapshot is due. Raises `UnknownMessageType`, and what the policy of the class raises."""
        cls = types.class_of(AggregateRoot, aggregate_root_type)
        return cls not in self._unsuitable and policy.is_due(cls, reached, version)

    def make(self, aggregate_root_id: str, until: int | None = None) -> Snapshot | None:
        """Make a snapshot of the newest version up to ``until``, without saving it. Return None if there are no
        streams, or no snapshot can be made for this class. Raises `InvalidState`, and as `replay_record` does."""
        history = self._loader.history_of(aggregate_root_id, until=until)
        try:
            return self._made_of(history)
        except UnusableSnapshot as error:
            whole = self._loader.history_of(aggregate_root_id, until=until, begin=history.next_begin)
            made = self._made_of(whole)
            self._loader.reject(history, error)
            return made

    def make_many(self, heads: Mapping[str, int]) -> Iterator[tuple[str, Outcome]]:
        """Make snapshots as `make` does, for several aggregates at their newest versions, ``heads``, in few queries.
        Yield each id with its outcome. The memory used does not depend on how long histories are."""
        portions, large = self._loader.sorted_by_size(heads, heads=heads)
        for portion in portions:
            for id, history in self._loader.histories_of(portion).items():
                yield id, outcome_of(partial(self.make_from, history))
        for id in large:
            yield id, outcome_of(partial(self.make, id))

    def make_from(self, history: History) -> Snapshot | None:
        """Make a snapshot as `make` does, of a history that was read already. If the history's own snapshot is
        unusable, load the aggregate from the store."""
        try:
            return self._made_of(history)
        except UnusableSnapshot:
            return self.make(history.aggregate_root_id)

    def _made_of(self, history: History) -> Snapshot | None:
        records = _Passing(history.records)
        aggregate = history._replace(records=records).rebuild()
        if aggregate is None or records.last is None or type(aggregate) in self._unsuitable:
            return None
        return self._snapshot_of(aggregate, records.last[COMMAND_ID])

    def _snapshot_of(self, aggregate: AggregateRoot, command_id: str) -> Snapshot | None:
        try:
            return snapshot_of(aggregate, command_id)
        except InvalidState as error:
            if not error.concerns_class:
                raise
            self._unsuitable.add(type(aggregate))
            logger.error("no snapshots are made: %s", error)
            return None


class _Passing:
    """Passes records on, undecoded if they are available so, and knows the last of them. Reading that again might give
    another one: after a failover the store may have another history."""

    def __init__(self, records: Iterable[StreamRecord]) -> None:
        self._records = records
        self.last: Row | None = None

    def __iter__(self) -> Iterator[StreamRecord]:
        for record in self._records:
            self.last = record
            yield record

    def parts(self) -> Iterator[Fetched]:
        for part in fetched_parts(self._records):
            self.last = part.rows[-1]
            yield part


def outcome_of(make: Callable[[], Snapshot | None]) -> Outcome:
    """Return what the call returns or raises. A transient error is raised again."""
    try:
        return make()
    except Exception as error:  # policies and appliers are application code
        if is_transient(error):
            raise
        return error


def _usable_version(found: SnapshotVersion) -> int:
    cls = types.find(AggregateRoot, found.aggregate_root_type)
    return found.version if cls is not None and found.fingerprint == fingerprint_of(cls) else 0
