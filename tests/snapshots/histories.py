"""Stored histories, and snapshots of them."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

from enode_django.domain.aggregate import AggregateRoot
from enode_django.eventstore.base import EventStore, StreamRecord
from enode_django.ids import new_id
from enode_django.repository.loading import AggregateLoader
from enode_django.repository.state import snapshot_of
from enode_django.repository.store import Snapshot
from enode_django.serialization.codec import encode_stream
from enode_django.serialization.registry import types
from tests.snapshots.domain import Put, Shelf


def streams(
    id: str, versions: Iterable[int], cls: type[AggregateRoot] = Shelf, *, fails_at: int = 0
) -> list[StreamRecord]:
    """Return a stream for each version n, with one event of the amount n."""
    return [
        StreamRecord(
            id,
            version,
            new_id(),
            types.name_of(cls),
            "snapshots.Do",
            datetime.now(UTC),
            encode_stream([Put(amount=version, fails=version == fails_at)]),
            b"",
        )
        for version in versions
    ]


def store_history(
    store: EventStore, id: str, until: int, cls: type[AggregateRoot] = Shelf, *, after: int = 0, fails_at: int = 0
) -> list[StreamRecord]:
    records = streams(id, range(after + 1, until + 1), cls, fails_at=fails_at)
    store.append(records)
    return records


def snapshot_at(store: EventStore, id: str, version: int) -> Snapshot:
    """Return a snapshot of the stored aggregate at this version, made by the current code."""
    aggregate = AggregateLoader(store).load(id, until=version)
    assert aggregate is not None
    assert aggregate.version == version
    (last,) = store.load(id, after=version - 1, until=version)
    return snapshot_of(aggregate, last.command_id)


def total(*versions: int) -> int:
    """Return the total of a shelf with these versions, from the first to the last given."""
    return sum(range(versions[0], versions[-1] + 1))
