"""Aggregates from stored streams, and from snapshots and shared states, which are made of stored streams."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from enum import Enum
from itertools import islice
from typing import NamedTuple

from enode_django.concurrency.lookups import Lookups
from enode_django.domain.aggregate import AggregateRoot, replay_stream
from enode_django.domain.messages import DomainEvent, EventStamp
from enode_django.domain.metadata import Metadata
from enode_django.domain.origin import Origin
from enode_django.eventstore.base import EventStore, StreamRecord
from enode_django.eventstore.fetched import (
    AGGREGATE_ROOT_ID,
    AGGREGATE_ROOT_TYPE,
    COMMAND_ID,
    CREATED_AT,
    EVENTS,
    METADATA,
    VERSION,
    Fetched,
    FetchedInParts,
    Row,
    TimeOf,
    decoded,
    itself,
)
from enode_django.exceptions import (
    AggregateTypeMismatch,
    BrokenHistory,
    EnodeError,
    StoreError,
    UnknownMessageType,
    UnusableSnapshot,
    shown,
)
from enode_django.repository.reading import SnapshotReader, StateReader
from enode_django.repository.state import ReadSnapshot
from enode_django.repository.states import SharedStates
from enode_django.repository.store import SnapshotStore
from enode_django.serialization.codec import EventDecoder, decode_events, decode_metadata, stored_events
from enode_django.serialization.registry import types


def events_of(record: StreamRecord) -> Sequence[DomainEvent]:
    """Return the stamped events of a stored stream (none for a refusal). Raises `UnknownMessageType` (also for a newer
    schema version) and `MalformedMessage`.

    For example::

        execute_command(OpenAccount("ada", owner="Ada"))
        (record,) = make_store().load("ada")
        assert events_of(record) == [AccountOpened(owner="Ada")]
    """
    return decode_events(record.events, StoredStamp(record))


class StoredStamp(EventStamp):
    """A stamp that reads a row, by default a record, when an attribute is needed: a replay rarely needs one."""

    __slots__ = ("_row", "_time_of")

    def __init__(self, row: Row, time_of: TimeOf = itself) -> None:
        self._row = row
        self._time_of = time_of

    @property
    def aggregate_root_id(self) -> str:  # type: ignore[override]
        root_id: str = self._row[AGGREGATE_ROOT_ID]
        return root_id

    @property
    def version(self) -> int:  # type: ignore[override]
        return self._row[VERSION] or 0

    @property
    def timestamp(self) -> datetime:  # type: ignore[override]
        return self._time_of(self._row[CREATED_AT])

    @property
    def origin(self) -> Origin:  # type: ignore[override]
        return _RowOrigin(self._row)


class _RowOrigin:
    """The origin of a row's events. Metadata is decoded when needed: a replay rarely needs it."""

    __slots__ = ("_row",)

    def __init__(self, row: Row) -> None:
        self._row = row

    @property
    def command_id(self) -> str:
        command_id: str = self._row[COMMAND_ID]
        return command_id

    @property
    def metadata(self) -> Metadata:
        return decode_metadata(self._row[METADATA])


def replay_record(aggregate: AggregateRoot | None, record: StreamRecord) -> AggregateRoot:
    """Return the aggregate after one more stream (None: the first one makes it).

    Raises `BrokenHistory` if the stream does not follow, `AggregateTypeMismatch` if it is that of another type, and the
    errors of decoding and applying its events.
    """
    try:
        return _replay(aggregate, record)
    except EnodeError:
        raise
    except Exception as error:  # constructors and appliers are application code
        raise _not_applicable(record, error) from error


def _not_applicable(record: StreamRecord, error: Exception) -> BrokenHistory:
    return BrokenHistory(f"version {record.version} of {record.aggregate_root_id!r} cannot be applied: {shown(error)}")


def _replay(aggregate: AggregateRoot | None, record: StreamRecord) -> AggregateRoot:
    stored_type = record.aggregate_root_type
    if aggregate is None:
        aggregate = types.class_of(AggregateRoot, stored_type)(record.aggregate_root_id)
    elif types.name_of(type(aggregate)) != stored_type and not _is_alias(stored_type, type(aggregate)):
        raise AggregateTypeMismatch(
            f"version {record.version} of {record.aggregate_root_id!r} is that of a {stored_type}"
        )
    replay_stream(aggregate, events_of(record), record.version or 0)
    return aggregate


def _is_alias(type_name: str, cls: type[AggregateRoot]) -> bool:
    """Return True if the name is an alias of the class. Raises `UnknownMessageType` for a name that this process does
    not know: newer code may have renamed the class."""
    return types.class_of(AggregateRoot, type_name) is cls


PORTION = 10_000
"""The most streams that are read at once: the memory of a mailbox must not depend on the length of histories."""
FIRST_PORTION = 256
"""Streams that are read first, before any sizes are known."""
PORTION_BYTES = 16 * 1024 * 1024
"""The most bytes of streams that are read at once, estimated from the streams read before."""
LONG = 1_000
"""A history with more streams is read by itself, in the order of the index, so it need not be sorted."""


class Begin(Enum):
    """The form that a load begins with. If the aggregate has none in this form, the load begins with the next form."""

    STATE = "a shared state"
    SNAPSHOT = "a snapshot, which counts as the store"
    NOTHING = "nothing, so with the first stream"

    @property
    def next(self) -> Begin:
        return Begin.SNAPSHOT if self is Begin.STATE else Begin.NOTHING


class History(NamedTuple):
    """The stored form of one aggregate: all streams, or a snapshot (or shared state) and the streams from its version
    on."""

    aggregate_root_id: str
    records: Iterable[StreamRecord]
    snapshot: ReadSnapshot | None = None

    @property
    def next_begin(self) -> Begin:
        """The form to begin with if the snapshot is unusable."""
        return Begin.SNAPSHOT if self.snapshot is not None and self.snapshot.is_shared else Begin.NOTHING

    def rebuild(self) -> AggregateRoot | None:
        """Return a fresh instance, or None if there are no streams. Raises as `replay_record` does.

        Raises `UnusableSnapshot` if the streams do not go on where the snapshot ends, or cannot be applied to it.
        """
        if self.snapshot is None:
            return replay_records(self.records)
        records = iter(self.records)
        _check_joins(self.snapshot, next(records, None))
        aggregate = self.snapshot.rebuild()
        try:
            return _replay_parts(aggregate, _in_parts(records))
        except (UnknownMessageType, StoreError):
            raise
        except EnodeError as error:
            raise UnusableSnapshot(f"what follows cannot be applied to it: {error}") from error


def _check_joins(snapshot: ReadSnapshot, last: StreamRecord | None) -> None:
    """Check the stream of the snapshot's own version, which is read again: a store that was restored from a dump may
    have less than the snapshot, or another history. For a shared state the time counts, too: it can outlive the store
    it was made from, in which the same command may then be handled again with another outcome."""
    if last is None:
        raise UnusableSnapshot("the store has no such version")
    if (last.version, last.command_id) != (snapshot.version, snapshot.command_id):
        raise UnusableSnapshot(f"the store has another history: version {last.version} by command {last.command_id!r}")
    if snapshot.is_shared and last.created_at != snapshot.stored.created_at:
        raise UnusableSnapshot(f"the store has another history: version {last.version} of {last.created_at}")


class Portion(NamedTuple):
    """Ids whose histories are read at once, and the snapshots that shorten them."""

    ids: list[str]
    snapshots: dict[str, ReadSnapshot]


class AggregateLoader:
    """Loads aggregates. Blocks on the store; raises its `StoreUnavailable`. An unusable snapshot or shared state counts
    as missing, and is deleted; a snapshot is not with ``only_reads``. Used by one thread."""

    def __init__(
        self,
        store: EventStore,
        snapshots: SnapshotStore | None = None,
        states: SharedStates | None = None,
        *,
        only_reads: bool = False,
    ) -> None:
        self.store = store
        self._snapshots = SnapshotReader(snapshots, only_reads=only_reads) if snapshots is not None else None
        self._states = StateReader(states) if states is not None else None
        self.without_states: Collection[str] = ()
        """Aggregates whose shared states are not used: they may be made of events that were corrected since."""
        self._lookups = Lookups(first=FIRST_PORTION, most=PORTION, most_bytes=PORTION_BYTES)

    def load(
        self, aggregate_root_id: str, *, until: int | None = None, begin: Begin = Begin.STATE
    ) -> AggregateRoot | None:
        """Return a fresh instance, or None if there are no streams. Raises as `replay_record` does.

        ``until`` is the version to stop at. The memory used does not depend on how long the history is.
        """
        history = self.history_of(aggregate_root_id, until=until, begin=begin)
        try:
            return history.rebuild()
        except UnusableSnapshot as error:
            aggregate = self.load(aggregate_root_id, until=until, begin=history.next_begin)
            self.reject(history, error)  # loading works without it
            return aggregate

    def history_of(self, aggregate_root_id: str, *, until: int | None = None, begin: Begin = Begin.STATE) -> History:
        """Return the history that `load` rebuilds. Its streams are read when it is."""
        if begin is Begin.STATE and aggregate_root_id in self.without_states:
            begin = Begin.SNAPSHOT
        if begin is Begin.NOTHING:
            return History(aggregate_root_id, self.store.load(aggregate_root_id, until=until))
        reader = self._states if begin is Begin.STATE else self._snapshots
        snapshot = reader.find([aggregate_root_id]).get(aggregate_root_id) if reader is not None else None
        if snapshot is None or (until is not None and snapshot.version > until):
            return self.history_of(aggregate_root_id, until=until, begin=begin.next)
        streams = self.store.load(aggregate_root_id, after=snapshot.version - 1, until=until)
        return History(aggregate_root_id, streams, snapshot)

    def try_to_load(
        self, aggregate_root_id: str, *, begin: Begin = Begin.STATE
    ) -> AggregateRoot | UnknownMessageType | None:
        """Load as `load` does, but return the error for an unknown type instead of raising it. This process will not
        know the type at the next try either, so a caller that retries retriable errors must not retry this one."""
        try:
            return self.load(aggregate_root_id, begin=begin)
        except UnknownMessageType as unknown:
            return unknown

    def sorted_by_size(
        self, aggregate_root_ids: Iterable[str], *, begin: Begin = Begin.STATE, heads: Mapping[str, int] | None = None
    ) -> tuple[list[Portion], list[str]]:
        """Return the portions that can be loaded at once each, and the ids whose histories must be streamed. ``heads``
        are their newest versions, if the caller has just read them."""
        ids = list(aggregate_root_ids)
        heads = self.store.heads(ids) if heads is None else {id: heads[id] for id in ids}
        snapshots = self._find_for(heads, begin)
        portions = [Portion([], {})]
        alone: list[Portion] = []
        large: list[str] = []
        sizes = {id: heads.get(id, 0) - (snapshots[id].version - 1 if id in snapshots else 0) for id in ids}
        total, most = 0, self._most(sizes, heads)
        for id, size in sizes.items():
            snapshot = snapshots.get(id)
            known = {id: snapshot} if snapshot is not None else {}
            if size > most:
                large.append(id)
            elif size > LONG:
                alone.append(Portion([id], known))
            else:
                if total + size > most:
                    portions.append(Portion([], {}))
                    total = 0
                portions[-1].ids.append(id)
                portions[-1].snapshots.update(known)
                total += max(size, 1)
        return [portion for portion in portions + alone if portion.ids], large

    def _most(self, sizes: Mapping[str, int], heads: Mapping[str, int]) -> int:
        """Return how many streams to read at once. If they are too few for a history, measure some of it first."""
        some = next((id for id, size in sizes.items() if self._lookups.count < size <= PORTION), None)
        if some is not None:
            newest = {some: (max(0, heads[some] - _MEASURED), _NO_END)}
            self._measure(self.store.load_ranges(newest, limit=_MEASURED))
        return min(PORTION, self._lookups.count)

    def _find_for(self, heads: Mapping[str, int], begin: Begin) -> Mapping[str, ReadSnapshot]:
        found: dict[str, ReadSnapshot] = {}
        if self._states is not None and begin is Begin.STATE:
            found.update(self._states.find(id for id in heads if id not in self.without_states))
        if self._snapshots is not None and begin is not Begin.NOTHING:
            found.update(self._snapshots.find_for({id: head for id, head in heads.items() if id not in found}))
        return found

    def histories_of(self, portion: Portion) -> Mapping[str, History]:
        """Return the histories of the portion's ids, read in one query. An id without streams has an empty history."""
        if portion.snapshots:
            ranges = dict.fromkeys(portion.ids, (0, _NO_END))
            ranges.update({id: (snapshot.version - 1, _NO_END) for id, snapshot in portion.snapshots.items()})
            streams = self.store.load_ranges(ranges, limit=_ALL)
        else:
            streams = self.store.load_many(portion.ids)
        self._measure(streams)
        return {id: History(id, streams.get(id, ()), portion.snapshots.get(id)) for id in portion.ids}

    def _measure(self, streams: Mapping[str, Sequence[StreamRecord]]) -> None:
        """Measure some streams of each history. If a history comes undecoded, each look costs as much as decoding."""
        looked_at = [record for records in streams.values() for record in records[-_MEASURED:]]
        if looked_at:
            self._lookups.found(len(looked_at), sum(len(record.events) for record in looked_at))

    def reject(self, history: History, error: UnusableSnapshot) -> None:
        """Reject the snapshot because of ``error``, which `History.rebuild` raised. Call this when the aggregate was
        loaded from the ``next_begin``."""
        snapshot = history.snapshot
        reader = self._states if snapshot is not None and snapshot.is_shared else self._snapshots
        if reader is not None and snapshot is not None:
            reader.reject(snapshot.stored, error)


_MEASURED = 20
"""The streams of each history that are measured, the newest ones."""
_NO_END = 2**63 - 1
_ALL = 2**31 - 1


def replay_records(records: Iterable[StreamRecord]) -> AggregateRoot | None:
    """Return a fresh instance, or None if there are no streams.

    Raises `BrokenHistory` if the streams do not begin with version 1, leave one out or cannot be applied;
    `AggregateTypeMismatch` if they are of different types; `UnknownMessageType` and `MalformedMessage`.

    For example::

        execute_command(OpenAccount("ada", owner="Ada"))
        account = replay_records(make_store().load("ada"))
        assert (account.owner, account.version) == ("Ada", 1)
    """
    return _replay_parts(None, fetched_parts(records))


READ_AHEAD = 20
"""Streams that are held in memory at once, of a history that is not fetched in parts."""


def fetched_parts(records: Iterable[StreamRecord]) -> Iterator[Fetched]:
    """Return the records in parts, undecoded if they are available so."""
    return records.parts() if isinstance(records, FetchedInParts) else _in_parts(records)


def _in_parts(records: Iterable[StreamRecord]) -> Iterator[Fetched]:
    records = iter(records)
    while part := list(islice(records, READ_AHEAD)):
        yield Fetched(part, itself)


def _replay_parts(aggregate: AggregateRoot | None, parts: Iterable[Fetched]) -> AggregateRoot | None:
    """Return the aggregate after these streams. Raises as `replay_record` does. A history may be long, so what all
    streams have in common is looked up once, and rows are not made records."""
    stored_type, restore = None, EventDecoder().restore
    for rows, time_of in parts:
        for row in rows:
            if aggregate is None or row[AGGREGATE_ROOT_TYPE] != stored_type:
                aggregate = replay_record(aggregate, decoded(row, time_of))
                stored_type = row[AGGREGATE_ROOT_TYPE]
                continue
            try:
                replay_stream(
                    aggregate, restore(stored_events(row[EVENTS]), StoredStamp(row, time_of)), row[VERSION] or 0
                )
            except EnodeError:
                raise
            except Exception as error:  # fields, upcasters and appliers are application code
                raise _not_applicable(decoded(row, time_of), error) from error
    return aggregate
