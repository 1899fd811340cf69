"""Aggregates from stored streams."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from enode_django.domain.aggregate import AggregateRoot
from enode_django.domain.messages import DomainEvent, EventStamp
from enode_django.domain.metadata import Metadata
from enode_django.eventstore.base import EventStore, StreamRecord
from enode_django.exceptions import AggregateTypeMismatch, BrokenHistory, EnodeError, UnknownMessageType, shown
from enode_django.serialization.codec import decode_events, decode_metadata
from enode_django.serialization.registry import types


def events_of(record: StreamRecord) -> Sequence[DomainEvent]:
    """The stamped events of a stored stream; raises as `enode_django.serialization.codec.decode_events`."""
    return decode_events(record.events, stamp_of(record))


def stamp_of(record: StreamRecord) -> EventStamp:
    return EventStamp(record.aggregate_root_id, record.version or 0, record.created_at, _RecordOrigin(record))


class _RecordOrigin:
    """Metadata is decoded when somebody asks: a replay rarely does."""

    __slots__ = ("_record",)

    def __init__(self, record: StreamRecord) -> None:
        self._record = record

    @property
    def command_id(self) -> str:
        return self._record.command_id

    @property
    def metadata(self) -> Metadata:
        return decode_metadata(self._record.metadata)


def replay_record(aggregate: AggregateRoot | None, record: StreamRecord) -> AggregateRoot:
    """The aggregate after one more stream (None: the first one makes it).

    Raises `BrokenHistory` if the stream does not follow, `AggregateTypeMismatch` if it is that of another type, or
    what its events cannot be decoded or applied for.
    """
    try:
        return _replay(aggregate, record)
    except EnodeError:
        raise
    except Exception as error:  # constructors and appliers are application code
        raise BrokenHistory(
            f"version {record.version} of {record.aggregate_root_id!r} cannot be applied: {shown(error)}"
        ) from error


def _replay(aggregate: AggregateRoot | None, record: StreamRecord) -> AggregateRoot:
    stored_type = record.aggregate_root_type
    if aggregate is None:
        aggregate = types.class_of(AggregateRoot, stored_type)(record.aggregate_root_id)
    elif types.name_of(type(aggregate)) != stored_type and not _is_alias(stored_type, type(aggregate)):
        raise AggregateTypeMismatch(
            f"version {record.version} of {record.aggregate_root_id!r} is that of a {stored_type}"
        )
    aggregate.replay(events_of(record), record.version or 0)
    return aggregate


def _is_alias(type_name: str, cls: type[AggregateRoot]) -> bool:
    """Raises `UnknownMessageType` for a name that this process does not know: newer code may have renamed the class."""
    return types.class_of(AggregateRoot, type_name) is cls


PORTION = 10_000
"""Streams that are read at once: what a mailbox loads must not depend on how long histories are."""


class AggregateLoader:
    """Blocks on the store; raises its `StoreUnavailable`."""

    def __init__(self, store: EventStore) -> None:
        self.store = store

    def load(self, aggregate_root_id: str) -> AggregateRoot | None:
        """A fresh instance, or None if there are no streams; raises as `replay_record`."""
        return replay_records(self.store.load(aggregate_root_id))

    def try_to_load(self, aggregate_root_id: str) -> AggregateRoot | UnknownMessageType | None:
        """As `load`, but what this process does not know is returned: it will not know it the next time either, so
        whoever tries again what is retriable must not try that."""
        try:
            return self.load(aggregate_root_id)
        except UnknownMessageType as unknown:
            return unknown

    def sorted_by_size(self, aggregate_root_ids: Iterable[str]) -> tuple[list[list[str]], list[str]]:
        """Ids in portions that can be loaded in one query each, and ids whose history must be streamed."""
        heads = self.store.heads(aggregate_root_ids)
        portions: list[list[str]] = [[]]
        large = []
        total = 0
        for id in aggregate_root_ids:
            size = heads.get(id, 0)
            if size > PORTION:
                large.append(id)
                continue
            if total + size > PORTION:
                portions.append([])
                total = 0
            portions[-1].append(id)
            total += size
        return portions, large

    def streams_of(self, aggregate_root_ids: Iterable[str]) -> Mapping[str, Sequence[StreamRecord]]:
        """All streams of several aggregates in one query, to be replayed; an id without any is left out."""
        return self.store.load_many(aggregate_root_ids)


def replay_records(records: Iterable[StreamRecord]) -> AggregateRoot | None:
    """A fresh instance, or None if there are no streams; raises as `replay_record`."""
    aggregate = None
    for record in records:
        aggregate = replay_record(aggregate, record)
    return aggregate
