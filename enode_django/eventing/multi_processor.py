"""Apply events of many aggregates to the rows of a `MultiProjection`, exactly once."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any, ClassVar, NamedTuple

from django.db import transaction

from enode_django.concurrency.lookups import Lookups
from enode_django.databases import let_hooks_fail_alone
from enode_django.domain.handlers import HANDLER_ERRORS
from enode_django.eventing import checkpoints
from enode_django.eventing.base_projections import makes_row
from enode_django.eventing.event_processors import FIRST_AT_ONCE, Batch, CheckpointProcessor
from enode_django.eventing.failures import failure_of
from enode_django.eventing.multi_projections import MultiProjection, key_fields, key_of_event
from enode_django.eventing.pending import Failure, PendingAggregate, Progress
from enode_django.eventing.read_models.keyed_changes import KeyedChanges, KeyedEvent, keyed_events
from enode_django.eventing.read_models.keyed_rows import KeyedRowTable
from enode_django.eventing.read_models.row_keys import Key
from enode_django.eventstore.base import EventStore, StreamRecord


class Share(NamedTuple):
    """The streams of one aggregate in a batch, those after ``version``, each with its events."""

    work: PendingAggregate
    version: int
    streams: Sequence[tuple[StreamRecord, Sequence[KeyedEvent]]]

    @property
    def keys(self) -> set[Key]:
        return {one.key for _, events in self.streams for one in events}


class MultiProcessor(CheckpointProcessor):
    """Applies events to a `MultiProjection` in memory: one query loads and locks the rows of all keys of a batch, and
    others store them, with the checkpoints of the aggregates.

    The keys are locked in one order, and after the batch was read and decoded, so that workers that meet in a key wait
    for each other as briefly as possible. A handler that fails may have changed rows that other aggregates have
    changed, too. Then the rows are loaded again, and each aggregate is handled with copies of its rows to go back to.
    """

    subscriber: MultiProjection[Any]
    at_once = 5_000
    rows_at_once: ClassVar[int] = 50_000
    """About the most rows that one batch locks: an event may change up to `MOST_KEYS`."""

    def __init__(self, subscriber: MultiProjection[Any], store: EventStore) -> None:
        super().__init__(subscriber, store)
        fields = key_fields(type(subscriber))
        self._table: KeyedRowTable[Any] = KeyedRowTable(subscriber.model, self.alias, fields, self.key)
        self._key_of = key_of_event(type(subscriber))
        self._makes_row = makes_row(subscriber)
        self._fitting_rows = Lookups(first=FIRST_AT_ONCE, most=self.at_once, most_bytes=self.rows_at_once)

    @property
    def limit(self) -> int:
        """The most streams of the next batch, as of any processor, or fewer if those of the last one had many rows."""
        return min(super().limit, self._fitting_rows.count)

    def apply(self, works: Sequence[PendingAggregate], portion: int, *, even_parked: bool) -> dict[str, Progress]:
        ids = sorted(work.aggregate_root_id for work in works)
        with transaction.atomic(using=self.alias):
            positions, begun = self._lock(ids, even_parked)
            batch = self._next_batch(works, positions, begun, portion)
            failures: dict[str, Failure] = {}
            self._fold(list(self._decode(batch, failures)), failures)
            self.in_flight.end()
            for work in batch.works:
                id = work.aggregate_root_id
                failure = failures.get(id)
                batch.progress[id] = Progress(positions[id], failure) if failure else batch.handled(work)
            checkpoints.save(self.alias, self.key, batch.moved)
            let_hooks_fail_alone(self.alias, self.in_flight.around(works[0]))
        return batch.progress

    def _decode(self, batch: Batch, failures: dict[str, Failure]) -> Iterator[Share]:
        """Yield the shares of the aggregates; note the failures of those whose events or keys cannot be made."""
        for work in batch.works:
            id = work.aggregate_root_id
            version = batch.positions[id]
            decoded: list[tuple[StreamRecord, Sequence[KeyedEvent]]] = []
            self.in_flight.begin(work, version + 1)
            for record in batch.streams[id]:
                self.in_flight.step()
                try:
                    decoded.append((record, list(keyed_events(self._followed.of(record), self._key_of, self._table))))
                except HANDLER_ERRORS as error:  # upcasters and keys are application code
                    failures[id] = failure_of(record, error)
                    break
            else:
                yield Share(work, version, decoded)

    def _fold(self, shares: Sequence[Share], failures: dict[str, Failure]) -> None:
        """Let the handlers change the rows, and write them; without those of aggregates whose handlers fail, which are
        noted."""
        self.in_flight.end()
        keys = set().union(*(share.keys for share in shares))
        if streams := sum(len(share.streams) for share in shares):
            self._fitting_rows.found(streams, len(keys))
        changes = self._locked(keys)
        failed = next(filter(None, (self._call(share, changes) for share in shares)), None)
        if failed is not None and len(shares) == 1:
            failures[shares[0].work.aggregate_root_id] = failed
            return
        if failed is not None:
            self.in_flight.end()
            changes = self._locked(keys)
            for share in shares:
                go_back = changes.kept(share.keys)
                failure = self._call(share, changes)
                if failure is not None:
                    failures[share.work.aggregate_root_id] = failure
                    go_back()
        self.in_flight.end()
        changes.write(self._table)

    def _locked(self, keys: Collection[Key]) -> KeyedChanges:
        rows = self._table.lock(keys) if keys else {}
        return KeyedChanges(rows, self._table, self._makes_row)

    def _call(self, share: Share, changes: KeyedChanges) -> Failure | None:
        self.in_flight.begin(share.work, share.version + 1)
        for record, events in share.streams:
            self.in_flight.step()
            try:
                for one in events:
                    changes.handle(one)
            except HANDLER_ERRORS as error:  # handlers are application code
                return failure_of(record, error)
        return None
