"""Snapshots of many aggregates at once."""

from __future__ import annotations

import pytest

from enode_django.eventstore.base import EventStore, StreamRecord
from enode_django.eventstore.memory import MemoryEventStore
from enode_django.eventstore.postgres import PostgresEventStore
from enode_django.exceptions import BrokenHistory, StoreUnavailable
from enode_django.models import EventStream
from enode_django.repository import loading
from enode_django.repository.loading import AggregateLoader, History
from enode_django.repository.postgres import PostgresSnapshotStore
from enode_django.repository.reading import SnapshotReader
from enode_django.repository.snapshot_making import SnapshotMaker
from enode_django.repository.store import MemorySnapshotStore, Snapshot
from tests.snapshots.domain import Put, Shelf, Undeclared
from tests.snapshots.histories import snapshot_at, store_history, streams, total


@pytest.fixture
def store() -> MemoryEventStore:
    return MemoryEventStore()


@pytest.fixture
def snapshots() -> MemorySnapshotStore:
    return MemorySnapshotStore()


@pytest.fixture
def maker(store: MemoryEventStore, snapshots: MemorySnapshotStore) -> SnapshotMaker:
    return SnapshotMaker(store, snapshots)


def without_time(snapshot: object) -> object:
    return snapshot[:5] if isinstance(snapshot, Snapshot) else snapshot


def test_they_are_those_that_are_made_one_by_one(
    store: MemoryEventStore, maker: SnapshotMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Short, long and very long histories."""
    monkeypatch.setattr(loading, "LONG", 20)
    monkeypatch.setattr(loading, "PORTION", 50)
    lengths = {"a": 10, "b": 15, "c": 30, "d": 45, "e": 70, "f": 12}
    for id, length in lengths.items():
        store_history(store, id, length)
    made = dict(maker.make_many(lengths))
    assert made.keys() == lengths.keys()
    for id, length in lengths.items():
        assert without_time(made[id]) == without_time(maker.make(id))
        assert without_time(made[id]) == without_time(snapshot_at(store, id, length))


def test_they_begin_with_what_is_kept(
    store: MemoryEventStore, snapshots: MemorySnapshotStore, maker: SnapshotMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    store_history(store, "a", 40)
    snapshots.save([snapshot_at(store, "a", 30)])
    read: list[StreamRecord] = []
    load_ranges = store.load_ranges

    def watched(ranges: dict[str, tuple[int, int]], *, limit: int) -> object:
        found = load_ranges(ranges, limit=limit)
        read.extend(found["a"])
        return found

    monkeypatch.setattr(store, "load_ranges", watched)
    made = dict(maker.make_many(store.heads(["a"])))
    assert [record.version for record in read] == list(range(30, 41))
    assert without_time(made["a"]) == without_time(snapshot_at(store, "a", 40))


def test_one_that_cannot_be_used_is_replaced(
    store: MemoryEventStore, snapshots: MemorySnapshotStore, maker: SnapshotMaker
) -> None:
    other = MemoryEventStore()
    store_history(store, "a", 20)
    store_history(other, "a", 20)
    snapshots.save([snapshot_at(other, "a", 10)])
    made = dict(maker.make_many(store.heads(["a"])))
    assert without_time(made["a"]) == without_time(snapshot_at(store, "a", 20))
    assert snapshots.load(["a"]) == {}, "discarded"


def test_what_fails_is_told_and_the_others_are_made(store: MemoryEventStore, maker: SnapshotMaker) -> None:
    store_history(store, "bad", 12, fails_at=5)
    store_history(store, "good", 12)
    store_history(store, "odd", 12, Undeclared)
    made = dict(maker.make_many({"bad": 12, "good": 12, "odd": 12, "none": 0}))
    assert isinstance(made["bad"], BrokenHistory)
    assert isinstance(made["good"], Snapshot)
    assert (made["odd"], made["none"]) == (None, None)


def test_a_store_that_is_away_is_no_failure_of_an_aggregate(
    store: MemoryEventStore, snapshots: MemorySnapshotStore, maker: SnapshotMaker
) -> None:
    def records() -> object:
        yield from store.load("a", until=5)
        raise StoreUnavailable("it went away")

    store_history(store, "a", 12)
    with pytest.raises(StoreUnavailable):
        maker.make_from(History("a", records()))  # type: ignore[arg-type]


def test_a_history_at_hand_is_folded_with_its_snapshot(
    store: EventStore, snapshots: MemorySnapshotStore, maker: SnapshotMaker
) -> None:
    store_history(store, "a", 25)
    snapshots.save([snapshot_at(store, "a", 10)])
    kept = SnapshotReader(snapshots).find(["a"])["a"]
    made = maker.make_from(History("a", store.load("a", after=9), kept))
    assert without_time(made) == without_time(snapshot_at(store, "a", 25))
    assert Shelf.snapshot_every == 10


@pytest.mark.django_db
def test_a_snapshot_names_the_command_of_the_stream_that_it_was_made_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """A failover loses the last stream while it is replayed, and another command makes the version."""
    stored, kept = PostgresEventStore(), PostgresSnapshotStore()
    store_history(stored, "a", 10)
    (other,) = streams("a", [100])
    put = Shelf._put

    def put_and_fail_over(self: Shelf, event: Put) -> None:
        put(self, event)
        if event.amount == 10:
            EventStream.unprotected.filter(version=10).delete()
            stored.append([other._replace(version=10)])

    monkeypatch.setattr(Shelf, "_put", put_and_fail_over)
    made = SnapshotMaker(stored, kept).make("a")
    assert made is not None
    kept.save([made])
    loaded = AggregateLoader(stored, kept).load("a")
    assert isinstance(loaded, Shelf)
    assert loaded.total == total(1, 9) + 100
