"""Turn events into projections, exactly once: the handlers' writes and the checkpoints commit together."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, ClassVar, NamedTuple

from django.db import connections, transaction
from psycopg import Cursor

from enode_django.concurrency.lookups import Lookups
from enode_django.databases import execute, let_hooks_fail_alone, pipelined
from enode_django.domain.handlers import HANDLER_ERRORS
from enode_django.eventing import checkpoints, failovers, parking
from enode_django.eventing.base_projections import BaseProjection, makes_row, models_of
from enode_django.eventing.code import known_rows_fingerprint
from enode_django.eventing.failover_guard import Heeded
from enode_django.eventing.failures import HandlerInterrupted, failure_of
from enode_django.eventing.in_flight import InFlight
from enode_django.eventing.pending import Failure, HandledEvents, PendingAggregate, Progress, fit_portion, next_streams
from enode_django.eventing.projections import ModelProjection, Projection
from enode_django.eventing.read_models.row_changes import RowChanges, changed_row
from enode_django.eventing.read_models.row_inserts import RowInserts
from enode_django.eventing.read_models.rows import RowTable
from enode_django.eventing.read_models.waiting_inserts import WaitingInserts, inserts_wait
from enode_django.eventing.subscribers import NOW, Subscriber, key_of
from enode_django.eventstore.base import EventStore, Shard, StreamRecord
from enode_django.eventstore.positions import BEGINNING
from enode_django.eventstore.sqlstates import is_transient
from enode_django.telemetry.tracing import FindsHandledEvents, current_tracing

FIRST_AT_ONCE = 100
"""The most streams of the first batch: nothing is known of their sizes."""


class Begun(NamedTuple):
    """The beginning of a batch. ``rows`` are the read models or checkpoints that it has locked; an `EffectProcessor`
    only reads its checkpoints. ``parked`` has the class name of the error by aggregate, ``known`` is by shard."""

    rows: Sequence[Any]
    parked: dict[str, str]
    known: Mapping[int, failovers.Known]


class Batch(NamedTuple):
    """The ``works`` of a batch that are not parked, and their next streams, up to ``portion`` of each. ``positions``
    has the versions that all works have reached, ``progress`` at first the parked ones."""

    works: Sequence[PendingAggregate]
    positions: Mapping[str, int]
    streams: Mapping[str, Sequence[StreamRecord]]
    portion: int
    progress: dict[str, Progress]

    def handled(self, work: PendingAggregate) -> Progress:
        """Return the progress of an aggregate after all its streams were handled."""
        id = work.aggregate_root_id
        streams = self.streams[id]
        version = (streams[-1].version or 0) if streams else self.positions[id]
        return reached(work, version, streams, self.portion)

    @property
    def moved(self) -> dict[str, int]:
        """The new versions of the aggregates that have moved on."""
        return {id: one.version for id, one in self.progress.items() if one.version > self.positions[id]}


class EventProcessor(ABC):
    """Takes a subscriber further, a batch of aggregates at a time. All methods block and are called by one thread;
    other threads and processes may be at work on the same aggregates.

    ``attempted`` is, per aggregate, the first stream that the last `apply` was to handle. ``at_once`` is the most
    streams to give it at a time: these are held by one transaction, and handled again when a worker dies. ``in_flight``
    is told before application code is called, and after the last of it.
    """

    at_once = 10_000
    bytes_at_once: ClassVar[int] = 32 * 1024 * 1024
    """About the most bytes of the events of one batch: a batch that catches up is read from the store."""

    def __init__(self, subscriber: Subscriber, store: EventStore) -> None:
        self.subscriber = subscriber
        self.alias = subscriber.database
        self.name, self.key = subscriber.name, key_of(subscriber)
        self.store = store
        self.attempted: dict[str, tuple[int | None, str]] = {}
        self.in_flight = InFlight()
        self._fitting = Lookups(first=FIRST_AT_ONCE, most=10_000, most_bytes=self.bytes_at_once)
        self.heeded: Heeded | None = None
        """The known generations and corrections of the store; None unless `heed` was called."""
        self._tracing = current_tracing()
        self._followed = self._new_followed()

    def heed(self) -> None:
        """Heed the generations and corrections of the store from now on: its events are those of the checkpoints."""
        self.heeded = Heeded(self.alias, self.key, self.store)

    def _new_followed(self) -> FindsHandledEvents:
        return self._tracing.following(self.name, HandledEvents(self.subscriber))

    @property
    def limit(self) -> int:
        """The most streams of the next batch: ``at_once``, or fewer if the events of the last one were large."""
        return min(self.at_once, self._fitting.count)

    def subscribe(self, shard: Shard) -> checkpoints.Subscription:
        """Return the subscription in that shard. A new one begins now, or with the first event."""
        known = checkpoints.subscription(self.alias, self.key, shard.number)
        while known is None:
            position = shard.position()
            start = position if self.subscriber.start == NOW else BEGINNING
            checkpoints.subscribe(
                self.alias, self.key, shard.number, start, position.generation, known_rows_fingerprint(self.subscriber)
            )
            known = checkpoints.subscription(self.alias, self.key, shard.number)
        return known

    @abstractmethod
    def apply(self, works: Sequence[PendingAggregate], portion: int, *, even_parked: bool) -> dict[str, Progress]:
        """Handle up to ``portion`` more versions of each aggregate. Return the progress of each.

        A handler's error becomes the failure of its aggregate, unless it is transient. Every other error is raised;
        then only what was saved before counts.
        """

    @abstractmethod
    def positions(self, ids: Sequence[str]) -> Mapping[str, int]:
        """Return the versions that these aggregates have reached."""

    @abstractmethod
    def skip_to(self, aggregate_root_id: str, version: int) -> None:
        """Mark the versions up to this one as handled."""

    def tidy(self) -> int:
        """Delete what is no longer needed. Return the number of rows. Called after a sweep, by one worker."""
        return 0

    # -- after a failover -----------------------------------------------------------------------------------------

    def claims(self, after: str, limit: int) -> Sequence[tuple[str, int]]:
        """Return the versions of the next ``limit`` aggregates with ids above ``after``, in the order of ids."""
        return failovers.claims(self.alias, self.key, after, limit)

    def claimed(self, ids: Sequence[str]) -> Mapping[str, int]:
        """Return the versions that these aggregates have reached, locked until the transaction ends."""
        return {}

    def take_back(self, kept: Mapping[str, int]) -> bool:
        """Undo the effects of the events after these versions, and return True. By default only set the checkpoints
        back, and return False. Call this after `claimed`, in the same transaction."""
        checkpoints.set_back(self.alias, self.key, kept)
        return False

    def parked(self, ids: Sequence[str], even_parked: bool) -> dict[str, str]:
        """Return the aggregates that are parked, with the class name of the error; none with ``even_parked``."""
        return {} if even_parked else parking.parked_among(self.alias, self.key, ids)

    def _begin(self, ids: Sequence[str], even_parked: bool, lock: Callable[[], Cursor[Any]]) -> Begun:
        """Execute ``lock``, and read what belongs to the locked aggregates, in one exchange with the server."""
        with pipelined(self.alias):
            locked = lock()
            parked = None if even_parked else parking.parked_cursor(self.alias, self.key, ids)
            known = self._known_cursor()
        return self._begun(locked, parked, known)

    def _begin_all(
        self,
        ids: Sequence[str],
        even_parked: bool,
        lock: Callable[[], Cursor[Any]],
        make: Callable[[Sequence[str]], object],
    ) -> tuple[Mapping[str, int], Begun]:
        """Begin as `_begin` does, with the checkpoints of all aggregates; ``make`` is called with the missing ones.
        Return the positions, and what the batch begins with."""
        begun = self._begin(ids, even_parked, lock)
        if len(begun.rows) < len(ids):
            locked = dict(begun.rows)
            make([id for id in ids if id not in locked])
            begun = self._begin(ids, even_parked, lock)
        return dict(begun.rows), begun

    def _known_cursor(self) -> Cursor[Any] | None:
        return None if self.heeded is None else failovers.known_cursor(self.alias, self.key)

    @staticmethod
    def _begun(locked: Cursor[Any], parked: Cursor[Any] | None, known: Cursor[Any] | None) -> Begun:
        return Begun(
            locked.fetchall(),
            {} if parked is None else parking.parked_in(parked),
            {} if known is None else failovers.known_in(known),
        )

    def _measure(self, streams: Collection[Sequence[StreamRecord]]) -> None:
        if count := sum(map(len, streams)):
            self._fitting.found(count, sum(len(record.events) for records in streams for record in records))

    def _next_batch(
        self, works: Sequence[PendingAggregate], positions: Mapping[str, int], begun: Begun, portion: int
    ) -> Batch:
        portion = fit_portion(works, positions, portion, self.limit)
        free = [work for work in works if work.aggregate_root_id not in begun.parked]
        if self.heeded is not None:
            self.heeded.heed(begun.known, free)
        check = None if self.heeded is None else self.heeded.check_read
        streams = next_streams(self.store, free, positions, portion, check)
        self._measure(streams.values())
        self.attempted = {id: (records[0].version, records[0].command_id) for id, records in streams.items() if records}
        self._followed = self._new_followed()
        progress = {id: Progress(positions[id], parked=error) for id, error in begun.parked.items()}
        return Batch(free, positions, streams, portion, progress)


_HIGHEST = 2**63 - 1


def reached(work: PendingAggregate, version: int, streams: Sequence[StreamRecord], portion: int) -> Progress:
    """Return the progress after all ``streams`` were handled. If they end early, the store does not have the later
    versions: ``work.until`` is lowered, so that nothing waits for these."""
    if len(streams) < min(portion, work.until - version + len(streams)):
        work.until = version
    return Progress(version)


class RowProcessor(EventProcessor):
    """Applies events to a `ModelProjection` in memory: one query loads and locks rows, another one stores them.

    A row's version is its checkpoint. Without a row, the checkpoint has the version and is locked instead, so that a
    late worker cannot bring a deleted row back.
    """

    subscriber: ModelProjection[Any]

    def __init__(self, subscriber: ModelProjection[Any], store: EventStore) -> None:
        super().__init__(subscriber, store)
        self._model = subscriber.model
        self._table: RowTable[Any] = RowTable(subscriber.model, self.alias)
        self._makes_row = makes_row(subscriber)

    def apply(self, works: Sequence[PendingAggregate], portion: int, *, even_parked: bool) -> dict[str, Progress]:
        ids = sorted(work.aggregate_root_id for work in works)
        with transaction.atomic(using=self.alias):
            begun = self._begin(ids, even_parked, partial(self._table.lock_cursor, ids))
            rows = self._table.rows_in(begun.rows)
            positions = {id: row.version for id, row in rows.items()}
            if len(rows) < len(ids):
                rows, positions = self._lock_missing(ids, rows)
                # What was read before all locks were there may be old.
                begun = self._begin(ids, even_parked, partial(self._table.lock_cursor, ()))
            batch = self._next_batch(works, positions, begun, portion)
            changes = RowChanges(self._table, rows, positions)
            for work in batch.works:
                batch.progress[work.aggregate_root_id] = self._fold(work, batch, changes)
            self.in_flight.end()
            changes.write(self.alias, self.key)
            let_hooks_fail_alone(self.alias, self.in_flight.around(works[0]))
        return batch.progress

    def _lock(self, ids: Sequence[str]) -> tuple[dict[str, Any], dict[str, int]]:
        return self._lock_missing(ids, self._table.load_locked(ids))

    def _lock_missing(self, ids: Sequence[str], rows: dict[str, Any]) -> tuple[dict[str, Any], dict[str, int]]:
        """Lock the checkpoints of the aggregates that have no row. Return all rows and positions."""
        positions: dict[str, int] = {}
        missing = [id for id in ids if id not in rows]
        if missing:
            positions = checkpoints.lock(self.alias, self.key, missing)
            # Rows may have been made while we waited for the locks. An aggregate with a row has no checkpoint.
            made = self._table.load_locked(missing)
            checkpoints.forget(self.alias, self.key, list(made))
            rows = {**rows, **made}
        positions.update({id: row.version for id, row in rows.items()})
        return rows, positions

    def _fold(self, work: PendingAggregate, batch: Batch, changes: RowChanges) -> Progress:
        id = work.aggregate_root_id
        row, version, streams = changes.rows.get(id), batch.positions[id], batch.streams[id]
        self.in_flight.begin(work, version + 1)
        for record in streams:
            self.in_flight.step()
            try:
                events = self._followed.of(record)
                row = changed_row(self._model, id, row, events, self._table.normalise, self._makes_row)
            except HANDLER_ERRORS as error:  # handlers are application code
                # The row in memory may be half changed. The streams before this one are handled at the next try, alone.
                return Progress(batch.positions[id], failure_of(record, error))
            version = record.version or 0
            if row is not None:
                row.version = version
        if streams:
            changes.note(id, row, version)
        return batch.handled(work)

    def positions(self, ids: Sequence[str]) -> Mapping[str, int]:
        return {**checkpoints.read(self.alias, self.key, ids), **self._table.versions(ids)}

    def claims(self, after: str, limit: int) -> Sequence[tuple[str, int]]:
        return sorted([*self._table.claims(after, limit), *super().claims(after, limit)])[:limit]

    def claimed(self, ids: Sequence[str]) -> Mapping[str, int]:
        return self._lock(ids)[1]

    def take_back(self, kept: Mapping[str, int]) -> bool:
        self._table.delete(dict.fromkeys(kept, _HIGHEST))
        checkpoints.forget(self.alias, self.key, list(kept))
        return True

    def skip_to(self, aggregate_root_id: str, version: int) -> None:
        with transaction.atomic(using=self.alias):
            rows, positions = self._lock([aggregate_root_id])
            if positions[aggregate_root_id] >= version:
                return
            row = rows.get(aggregate_root_id)
            if row is not None:
                row.version = version
            changes = RowChanges(self._table, rows, positions)
            changes.note(aggregate_root_id, row, version)
            changes.write(self.alias, self.key)


class CheckpointProcessor(EventProcessor):
    """Keeps the version of each aggregate in a checkpoint, which moves in the transaction of the rows."""

    def __init__(self, subscriber: BaseProjection, store: EventStore) -> None:
        super().__init__(subscriber, store)
        quote = connections[self.alias].ops.quote_name
        tables = ", ".join(sorted(quote(model._meta.db_table) for model in models_of(subscriber)))
        self._lock_tables = f"LOCK TABLE {tables} IN ROW EXCLUSIVE MODE"

    def positions(self, ids: Sequence[str]) -> Mapping[str, int]:
        return checkpoints.read(self.alias, self.key, ids)

    def claimed(self, ids: Sequence[str]) -> Mapping[str, int]:
        self._keep_tables()
        return checkpoints.lock(self.alias, self.key, ids)

    def skip_to(self, aggregate_root_id: str, version: int) -> None:
        with transaction.atomic(using=self.alias):
            self._keep_tables()
            checkpoints.save(self.alias, self.key, {aggregate_root_id: version})

    def _lock(self, ids: Sequence[str], even_parked: bool) -> tuple[Mapping[str, int], Begun]:
        """Lock the tables and the checkpoints, of which missing ones are made. Return the positions, and what the batch
        begins with."""
        make = partial(checkpoints.make, self.alias, self.key)
        return self._begin_all(ids, even_parked, partial(self._lock_cursor, ids), make)

    def _lock_cursor(self, ids: Sequence[str]) -> Cursor[Any]:
        self._keep_tables()
        return checkpoints.lock_cursor(self.alias, self.key, ids)

    def _keep_tables(self) -> None:
        """Lock the tables before checkpoints are read. A rebuild cannot replace them until the transaction ends."""
        execute(self.alias, self._lock_tables, ())


LEAST_AT_ONCE = 1_000
SECONDS_AT_ONCE = 0.5


class TransactionProcessor(CheckpointProcessor):
    """Applies events to a `Projection`: checkpoints are locked, ORM code runs, checkpoints move, in one transaction.

    Handlers run without savepoints first, which cost more than most handlers, and rows that they insert are sent
    together. When a handler raises, or an insert fails, everything is rolled back and run again with a savepoint for
    each aggregate, so that only the part of the failing one is lost. A single stream is not run again, unless an insert
    fails late.

    ``at_once`` follows the pace of the handlers: as many streams as they handle in `SECONDS_AT_ONCE`, between
    `LEAST_AT_ONCE` and ``most_at_once``. A larger transaction moves fewer checkpoints; a long one holds its locks long.
    """

    subscriber: Projection
    at_once = LEAST_AT_ONCE
    most_at_once = 10_000

    def __init__(self, subscriber: Projection, store: EventStore) -> None:
        super().__init__(subscriber, store)
        self._inserts = RowInserts(self.alias)

    def apply(self, works: Sequence[PendingAggregate], portion: int, *, even_parked: bool) -> dict[str, Progress]:
        if len(works) > 1 or len(works[0].streams) == 1:
            try:
                return self._apply(works, portion, even_parked, isolated=False)
            except _HandlerFailed as failed:
                if failed.progress is not None:
                    return failed.progress
        self.in_flight.end()
        return self._apply(works, portion, even_parked, isolated=True)

    def _apply(
        self, works: Sequence[PendingAggregate], portion: int, even_parked: bool, *, isolated: bool
    ) -> dict[str, Progress]:
        ids = sorted(work.aggregate_root_id for work in works)
        begun_at = time.monotonic()
        with transaction.atomic(using=self.alias):
            positions, begun = self._lock(ids, even_parked)
            batch = self._next_batch(works, positions, begun, portion)
            progress, streams = batch.progress, batch.streams
            with nullcontext() if isolated else self._inserts_wait():
                for work in batch.works:
                    id = work.aggregate_root_id
                    self.in_flight.begin(work, positions[id] + 1)
                    failure = self._call(streams[id], isolated)
                    progress[id] = batch.handled(work) if failure is None else Progress(positions[id], failure)
                    if failure is not None and not isolated:
                        raise _HandlerFailed(progress if len(works) == len(streams[id]) == 1 else None)
                self.in_flight.end()
            checkpoints.save(self.alias, self.key, batch.moved)
            let_hooks_fail_alone(self.alias, self.in_flight.around(works[0]))
        self._adapt(sum(map(len, streams.values())), time.monotonic() - begun_at)
        return progress

    def _adapt(self, handled: int, seconds: float) -> None:
        """Set ``at_once`` by the pace of a batch. A small one counts only if it was slow."""
        if handled * 2 >= self.at_once or (handled and seconds > SECONDS_AT_ONCE):
            at_this_pace = SECONDS_AT_ONCE * handled / max(seconds, 0.001)
            self.at_once = min(self.most_at_once, max(LEAST_AT_ONCE, round(at_this_pace)))

    @contextmanager
    def _inserts_wait(self) -> Iterator[None]:
        waiting: WaitingInserts | None = None
        try:
            with inserts_wait(self._inserts) as waiting:
                yield
        except Exception as error:  # from a handler, or from a delayed insert
            if isinstance(error, HandlerInterrupted) or is_transient(error):
                raise
            if isinstance(error, _HandlerFailed) and waiting is not None and waiting.failed is None:
                raise
            raise _HandlerFailed(None) from error

    def _call(self, streams: Sequence[StreamRecord], isolated: bool) -> Failure | None:
        record: StreamRecord | None = None
        try:
            with transaction.atomic(using=self.alias) if isolated else nullcontext():
                for record in streams:
                    self.in_flight.step()
                    for event, handlers in self._followed.of(record):
                        for handler in handlers:
                            handler(event)
                    # A handler may have swallowed an error after which its writes would be rolled back silently.
                    connections[self.alias].validate_no_broken_transaction()
        except HANDLER_ERRORS as error:  # handlers are application code
            if record is None:
                raise
            return failure_of(record, error)
        return None

    def take_back(self, kept: Mapping[str, int]) -> bool:
        """If all models have the ``aggregate_field``, delete the rows; else only set the checkpoints back."""
        field = self.subscriber.aggregate_field
        models = [model for model in reversed(self.subscriber.models) if _has_field(model, field)]
        if len(models) < len(self.subscriber.models):
            return super().take_back(kept)
        for model in models:
            model._base_manager.using(self.alias).filter(**{f"{field}__in": list(kept)}).delete()
        checkpoints.forget(self.alias, self.key, list(kept))
        return True


def _has_field(model: type[Any], name: str) -> bool:
    return any(field.name == name for field in model._meta.concrete_fields)


class _HandlerFailed(Exception):
    """Raised to roll the batch back. ``progress`` is that of the batch; None if it has to be run again in parts to find
    what has failed: it had several streams, or a delayed insert has failed."""

    def __init__(self, progress: dict[str, Progress] | None) -> None:
        super().__init__()
        self.progress = progress
