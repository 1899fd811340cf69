"""Snapshots in bulk: making those that are due, and comparing a sample with the streams."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import chain, islice
from typing import NamedTuple

from enode_django.concurrency.stopping import checked
from enode_django.domain.aggregate import AggregateRoot
from enode_django.domain.declarations import aliases_of
from enode_django.eventstore.base import EventStore, parts_of
from enode_django.eventstore.positions import BEGINNING, END
from enode_django.eventstore.sqlstates import is_transient
from enode_django.exceptions import UnusableSnapshot, shown
from enode_django.repository import policy
from enode_django.repository.loading import AggregateLoader
from enode_django.repository.reading import class_of
from enode_django.repository.snapshot_making import SnapshotMaker
from enode_django.repository.state import differences, read_snapshot
from enode_django.repository.store import Snapshot, SnapshotStore
from enode_django.serialization.registry import types

Classes = Collection[type[AggregateRoot]] | None
"""Classes of aggregates; None stands for all that have snapshots."""
ROWS_AT_ONCE = 10_000
AT_ONCE = 50
UNSUITABLE = "its class keeps state that no snapshot can hold; see the log"


class Due(NamedTuple):
    """An aggregate that was due. ``failure`` says why no snapshot could be made (empty: it was, or would be)."""

    aggregate_root_type: str
    aggregate_root_id: str
    failure: str = ""


def build(store: EventStore, snapshots: SnapshotStore, classes: Classes = None, *, dry_run: bool) -> Iterator[Due]:
    """Make the snapshots that are due, in this thread, and yield each aggregate when its snapshot is saved, or would
    be. Raises `StoreUnavailable`, and what ends the work that this is part of, see `stopping`.

    An aggregate may be yielded again: it is met in each part of the store that it has streams in.
    """
    maker = SnapshotMaker(store, snapshots)
    for part in checked(
        chain.from_iterable(parts_of(shard, BEGINNING, END, limit=ROWS_AT_ONCE) for shard in store.shards)
    ):
        wanted = {id: name for id, (name, _) in part.settled.heads.items() if is_wanted(name, classes)}
        due = _due(store, maker, wanted)
        while some := list(islice(due, AT_ONCE)):
            yield from [one for one, _ in some] if dry_run else _make(maker, snapshots, some)


def _due(store: EventStore, maker: SnapshotMaker, wanted: dict[str, str]) -> Iterator[tuple[Due, int]]:
    """Yield the aggregates whose snapshot is due, each with its newest version."""
    heads = store.heads(wanted)
    reached = maker.reached(list(heads))
    for id, head in heads.items():
        try:
            if maker.is_due(wanted[id], reached[id], head):
                yield Due(wanted[id], id), head
        except Exception as error:  # a policy may be a function
            yield Due(wanted[id], id, failure_text(error)), 0


def _make(maker: SnapshotMaker, snapshots: SnapshotStore, some: list[tuple[Due, int]]) -> Iterator[Due]:
    made: list[Snapshot] = []
    told: list[Due] = []
    for due, head in checked(some):
        try:
            snapshot = None if due.failure else maker.make(due.aggregate_root_id, head)
        except Exception as error:  # appliers are application code; the others are made all the same
            if is_transient(error):
                raise
            told.append(due._replace(failure=failure_text(error)))
            continue
        if snapshot is not None:
            made.append(snapshot)
        elif not due.failure:
            due = due._replace(failure=UNSUITABLE)
        told.append(due)
    snapshots.save(made)
    yield from told


class Compared(NamedTuple):
    """A snapshot compared with its streams. ``problem`` is empty if there is none; ``is_foreign``: other code made
    it."""

    snapshot: Snapshot
    problem: str = ""
    is_foreign: bool = False


def verify(store: EventStore, snapshots: SnapshotStore, count: int, classes: Classes = None) -> Iterator[Compared]:
    """Replay up to ``count`` random aggregates from their first event to the version of their snapshot. Changes
    nothing. Raises `StoreUnavailable`."""
    names = [name for cls in classes or () for name in (types.name_of(cls), *aliases_of(cls))]
    for stored in snapshots.sample(count, names):
        cls = class_of(stored)
        yield Compared(stored, is_foreign=True) if cls is None else Compared(stored, _problem(store, cls, stored))


def _problem(store: EventStore, cls: type[AggregateRoot], stored: Snapshot) -> str:
    id, version = stored.aggregate_root_id, stored.version
    try:
        read = read_snapshot(cls, stored)
        kept = read.rebuild()
    except UnusableSnapshot as error:
        return str(error)
    try:
        replayed = AggregateLoader(store).load(id, until=version)
        last = next(iter(store.load(id, after=version - 1, until=version)), None)
        if replayed is None or last is None or type(replayed) is not type(kept):
            return "the store has no such version"
        if last.command_id != read.command_id:
            return f"the store has another history: version {version} by command {last.command_id!r}"
        found = differences(kept, replayed)
    except Exception as error:  # appliers are application code, and so is comparing values
        if is_transient(error):
            raise
        return f"it cannot be replayed: {failure_text(error)}"
    return "; ".join(f"{name} is {shown(one)}, replayed {shown(other)}" for name, (one, other) in found.items())


def is_wanted(type_name: str, classes: Classes) -> bool:
    cls = types.find(AggregateRoot, type_name)
    return cls is not None and (policy.is_on(cls) if classes is None else cls in classes)


def failure_text(error: Exception) -> str:
    return f"{type(error).__name__}: {shown(error)}"
