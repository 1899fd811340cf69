"""The rehearsal of a deployment: this process's code replays aggregates of the real store, and its states are compared
with the snapshots of the code before. Changes nothing."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from enode_django.domain.aggregate import AggregateRoot
from enode_django.eventstore.base import EventStore
from enode_django.eventstore.sqlstates import is_transient
from enode_django.exceptions import EnodeError, UnusableSnapshot, shown
from enode_django.history import tables
from enode_django.history.differences import Change
from enode_django.history.states import MOST_REPLAYED, changes_of, fields_of, named
from enode_django.repository.loading import replay_record
from enode_django.repository.state import read_snapshot
from enode_django.repository.store import Snapshot, SnapshotStore
from enode_django.serialization.plain import pack, unpack


class Rehearsed(NamedTuple):
    """One aggregate. ``problem`` says why this code cannot replay it; it is empty if it can. ``version`` is that of its
    snapshot (None: there is none to compare), and ``changes`` turn the snapshot into what this code makes of the same
    events."""

    aggregate_root_type: str
    aggregate_root_id: str
    problem: str = ""
    version: int | None = None
    changes: Sequence[Change] = ()


def rehearse(
    store: EventStore, snapshots: SnapshotStore | None, count: int, type_names: Collection[str] = ()
) -> Iterator[Rehearsed]:
    """Replay up to ``count`` random aggregates of the event store's tables from their first event, of these types
    (none: all). Snapshots are compared, whatever code has made them. Each replay ends after `states.MOST_REPLAYED`
    streams. Blocks. Raises `StoreUnavailable`, and errors of the database.

    An aggregate is found by one of its events, so old and new events are rehearsed alike, and aggregates with many
    events more often.
    """
    aliases = tables.aliases()
    for number, alias in enumerate(aliases):
        share = count * (number + 1) // len(aliases) - count * number // len(aliases)
        for id, name in tables.random_aggregates(alias, share, type_names):
            snapshot = snapshots.load([id]).get(id) if snapshots is not None else None
            yield _rehearsed(store, id, name, snapshot)


def _rehearsed(store: EventStore, id: str, name: str, snapshot: Snapshot | None) -> Rehearsed:
    aggregate: AggregateRoot | None = None
    version, changes = None, list[Change]()
    try:
        for record in store.load(id, until=MOST_REPLAYED):
            aggregate = replay_record(aggregate, record)
            if snapshot is not None and snapshot.version == record.version:
                kept = _kept(snapshot, record.command_id)
                if kept is not None:
                    version, changes = snapshot.version, _changes(kept, aggregate)
    except EnodeError as error:
        if is_transient(error):
            raise
        return Rehearsed(name, id, str(error) or shown(error))  # a refusal may have no text
    return Rehearsed(name, id, "", version, changes)


def _kept(snapshot: Snapshot, command_id: str) -> Mapping[str, Any] | None:
    """Return the fields of a snapshot; None if it is damaged, or of another history than the store's."""
    try:
        read = read_snapshot(AggregateRoot, snapshot)
    except UnusableSnapshot:
        return None
    return named(read.plain) if read.command_id == command_id else None


def _changes(kept: Mapping[str, Any], aggregate: AggregateRoot) -> list[Change]:
    return changes_of(type(aggregate), kept, unpack(pack(dict(fields_of(aggregate)))))
