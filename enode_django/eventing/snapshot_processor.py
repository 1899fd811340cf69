"""Makes the snapshots that the snapshot subscriber finds due."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from enode_django.eventing.event_processors import EventProcessor
from enode_django.eventing.pending import Failure, PendingAggregate, Progress
from enode_django.eventing.subscribers import Subscriber
from enode_django.eventstore.base import EventStore
from enode_django.eventstore.sqlstates import is_transient
from enode_django.exceptions import UnknownMessageType
from enode_django.repository.snapshot_making import SnapshotMaker
from enode_django.repository.store import Snapshot, SnapshotStore

logger = logging.getLogger("enode_django.subscribers")

AT_ONCE = 50
"""Snapshots that are saved together."""


class SnapshotProcessor(EventProcessor):
    """Makes snapshots, without a transaction: a snapshot that is made twice, or late, does no harm."""

    def __init__(self, subscriber: Subscriber, store: EventStore, snapshots: SnapshotStore) -> None:
        super().__init__(subscriber, store)
        self._snapshots = snapshots
        self._maker = SnapshotMaker(store, snapshots)

    def apply(self, works: Sequence[PendingAggregate], portion: int, *, even_parked: bool) -> dict[str, Progress]:
        """Apply all versions of an aggregate at once. After `AT_ONCE` snapshots the other aggregates wait."""
        ids = [work.aggregate_root_id for work in works]
        parked = self.parked(ids, even_parked)
        reached = self._maker.reached(ids)
        made: list[Snapshot] = []
        progress = {}
        for work in works:
            id = work.aggregate_root_id
            if id in parked:
                progress[id] = Progress(reached[id], parked=parked[id])
            elif len(made) < AT_ONCE:
                progress[id] = self._take_further(work, reached[id], made)
            else:
                progress[id] = Progress(reached[id])
        self.in_flight.end()
        self._snapshots.save(made)
        return progress

    def _take_further(self, work: PendingAggregate, reached: int, made: list[Snapshot]) -> Progress:
        self.in_flight.begin(work, reached + 1)
        try:
            if self._maker.is_due(work.aggregate_root_type, reached, work.until):
                snapshot = self._maker.make(work.aggregate_root_id, work.until)
                if snapshot is not None:
                    made.append(snapshot)
        except UnknownMessageType as error:  # a process that knows the type makes one when more events come
            logger.debug("no snapshot is made of %s: %s", work.aggregate_root_id, error)
        except Exception as error:  # policies and appliers are application code
            if is_transient(error):
                raise
            # The version does not depend on how many come meanwhile, so it counts as the same failure at each try.
            return Progress(reached, Failure(reached + 1, "", error, datetime.now(UTC)))
        return Progress(max(reached, work.until))

    def positions(self, ids: Sequence[str]) -> Mapping[str, int]:
        return self._maker.reached(ids)

    def skip_to(self, aggregate_root_id: str, version: int) -> None:
        """Do nothing: a snapshot is tried again as long as it is due."""
