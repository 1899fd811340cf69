"""A snapshot makes a load shorter and never makes it wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import pytest

from enode_django.domain.aggregate import AggregateRoot
from enode_django.eventstore.base import EventStore, StreamRecord
from enode_django.eventstore.memory import MemoryEventStore
from enode_django.eventstore.postgres import PostgresEventStore
from enode_django.exceptions import AggregateTypeMismatch, BrokenHistory, StoreUnavailable, UnusableSnapshot
from enode_django.repository import loading, reading
from enode_django.repository.fingerprint import forget
from enode_django.repository.loading import AggregateLoader, Begin, History
from enode_django.repository.postgres import PostgresSnapshotStore
from enode_django.repository.store import MemorySnapshotStore, Snapshot, SnapshotStore
from tests.snapshots.domain import Hooked, Off, Put, Shelf
from tests.snapshots.histories import snapshot_at, store_history, streams, total


class Watched(MemoryEventStore):
    """``read`` are the versions that were read of each aggregate, ``questions`` counts the calls."""

    def __init__(self) -> None:
        super().__init__()
        self.read: dict[str, list[int]] = {}
        self.questions: Counter[str] = Counter()

    def _note(self, record: StreamRecord) -> StreamRecord:
        self.read.setdefault(record.aggregate_root_id, []).append(record.version or 0)
        return record

    def load(self, aggregate_root_id: str, *, after: int = 0, until: int | None = None) -> Iterator[StreamRecord]:
        self.questions["load"] += 1
        return map(self._note, super().load(aggregate_root_id, after=after, until=until))

    def load_many(self, aggregate_root_ids: Iterable[str]) -> Mapping[str, Sequence[StreamRecord]]:
        self.questions["load_many"] += 1
        loaded = super().load_many(aggregate_root_ids)
        return {id: list(map(self._note, records)) for id, records in loaded.items()}

    def load_ranges(
        self, ranges: Mapping[str, tuple[int, int]], *, limit: int = 1_000
    ) -> Mapping[str, Sequence[StreamRecord]]:
        before = self.questions.copy()
        found = super().load_ranges(ranges, limit=limit)  # this calls load() in turn
        self.questions = before + Counter(load_ranges=1)
        return found


class WatchedSnapshots(MemorySnapshotStore):
    def __init__(self) -> None:
        super().__init__()
        self.asked: list[list[str]] = []
        self.error: Exception | None = None

    def load(self, aggregate_root_ids: Iterable[str]) -> Mapping[str, Snapshot]:
        ids = list(aggregate_root_ids)
        self.asked.append(ids)
        if self.error is not None:
            raise self.error
        return super().load(ids)


@pytest.fixture
def store() -> Watched:
    return Watched()


@pytest.fixture
def snapshots() -> WatchedSnapshots:
    return WatchedSnapshots()


@pytest.fixture(autouse=True)
def _nothing_told() -> None:
    reading._told.clear()


Load = Callable[..., Any]


def load_one(store: EventStore, snapshots: SnapshotStore, id: str = "a") -> AggregateRoot | None:
    return AggregateLoader(store, snapshots).load(id)


def load_in_batch(store: EventStore, snapshots: SnapshotStore, id: str = "a") -> AggregateRoot | None:
    """Load the aggregate as a command mailbox does."""
    loader = AggregateLoader(store, snapshots)
    portions, large = loader.sorted_by_size(["other", id])
    histories: dict[str, History] = {}
    for portion in portions:
        histories.update(loader.histories_of(portion))
    if id in large:
        return loader.load(id)
    try:
        return histories[id].rebuild()
    except UnusableSnapshot as error:
        aggregate = loader.load(id, begin=Begin.NOTHING)
        loader.reject(histories[id], error)
        return aggregate


ways = pytest.mark.parametrize("load", [load_one, load_in_batch])


@ways
def test_the_streams_after_the_snapshot_complete_it(load: Load, store: Watched, snapshots: WatchedSnapshots) -> None:
    store_history(store, "a", 25)
    snapshots.save([snapshot_at(store, "a", 20)])
    store.read.clear()
    shelf = load(store, snapshots)
    assert (shelf.version, shelf.total) == (25, total(1, 25))
    assert store.read.get("a", list(range(20, 26))) == list(range(20, 26))
    assert len(snapshots.asked) == 1


@ways
def test_a_snapshot_of_the_newest_version_is_all_there_is_to_do(
    load: Load, store: Watched, snapshots: WatchedSnapshots
) -> None:
    store_history(store, "a", 20)
    snapshots.save([snapshot_at(store, "a", 20)])
    shelf = load(store, snapshots)
    assert (shelf.version, shelf.total) == (20, total(1, 20))


@ways
def test_without_a_snapshot_everything_is_replayed(load: Load, store: Watched, snapshots: WatchedSnapshots) -> None:
    store_history(store, "a", 25)
    shelf = load(store, snapshots)
    assert (shelf.version, shelf.total) == (25, total(1, 25))
    assert load(store, snapshots, "nobody") is None


def flipped(snapshot: Snapshot) -> Snapshot:
    payload = bytearray(snapshot.payload)
    payload[-1] ^= 1
    return snapshot._replace(payload=bytes(payload))


@ways
def test_a_flipped_byte_is_reported_once_and_the_snapshot_replaced(
    load: Load, store: Watched, snapshots: WatchedSnapshots, caplog: pytest.LogCaptureFixture
) -> None:
    store_history(store, "a", 25)
    good = snapshot_at(store, "a", 20)
    snapshots.save([flipped(good)])
    for _ in range(3):
        shelf = load(store, snapshots)
        assert (shelf.version, shelf.total) == (25, total(1, 25))
    (told,) = caplog.messages
    assert told == "the snapshot of 'a' at version 20 is discarded: its bytes are not those that were written"
    assert snapshots.save([good]) == 1


@ways
def test_a_snapshot_ahead_of_the_store_is_not_used(
    load: Load, snapshots: WatchedSnapshots, caplog: pytest.LogCaptureFixture
) -> None:
    store, restored = Watched(), Watched()
    records = store_history(store, "a", 30)
    snapshots.save([snapshot_at(store, "a", 30)])
    restored.append(records[:25])
    shelf = load(restored, snapshots)
    assert (shelf.version, shelf.total) == (25, total(1, 25))
    assert caplog.messages == ["the snapshot of 'a' at version 30 is discarded: the store has no such version"]
    assert snapshots.versions(["a"]) == {}


@ways
def test_a_snapshot_of_another_history_is_not_used(
    load: Load, snapshots: WatchedSnapshots, caplog: pytest.LogCaptureFixture
) -> None:
    """After a restore the aggregate went on otherwise, and has come past the version of the snapshot."""
    store, restored = Watched(), Watched()
    records = store_history(store, "a", 30)
    snapshots.save([snapshot_at(store, "a", 30)])
    restored.append(records[:20])
    restored.append(
        [record._replace(version=version) for version, record in enumerate(streams("a", range(101, 121)), 21)]
    )
    shelf = load(restored, snapshots)
    assert (shelf.version, shelf.total) == (40, total(1, 20) + total(101, 120))
    assert "another history" in caplog.text


@ways
def test_what_other_code_made_is_neither_used_nor_deleted(
    load: Load, store: Watched, snapshots: WatchedSnapshots, monkeypatch: pytest.MonkeyPatch, request: Any
) -> None:
    store_history(store, "a", 25)
    snapshots.save([snapshot_at(store, "a", 20)])

    def otherwise(self: Shelf, event: Put) -> None:
        self.total += 2 * event.amount

    monkeypatch.setattr(Shelf, "_put", otherwise)
    forget(Shelf)
    request.addfinalizer(lambda: forget(Shelf))
    shelf = load(store, snapshots)
    assert (shelf.version, shelf.total) == (25, 2 * total(1, 25))
    assert set(snapshots.versions(["a"])) == {"a"}


@ways
def test_a_state_that_cannot_be_restored_is_replayed(
    load: Load,
    store: Watched,
    snapshots: WatchedSnapshots,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    store_history(store, "a", 25, Hooked)
    snapshots.save([snapshot_at(store, "a", 20)])
    kept = Hooked.__dict__["restore"]

    def broken(self: Hooked, plain: Any) -> None:
        kept(self, plain)
        raise KeyError("gone")

    monkeypatch.setattr(Hooked, "restore", broken)
    hooked = load(store, snapshots)
    assert hooked.counts == Counter(range(1, 26))
    assert "KeyError" in caplog.text
    assert snapshots.versions(["a"]) == {}


@ways
def test_a_history_with_a_gap_is_refused_as_it_is_without_snapshots(
    load: Load, store: Watched, snapshots: WatchedSnapshots
) -> None:
    store_history(store, "a", 20)
    snapshots.save([snapshot_at(store, "a", 20)])
    store.append(streams("a", [22]))
    with pytest.raises(BrokenHistory, match="22 does not follow"):
        load(store, snapshots)
    assert set(snapshots.versions(["a"])) == {"a"}, "it is not the snapshot's fault"


@ways
def test_streams_of_another_type_are_refused(load: Load, store: Watched, snapshots: WatchedSnapshots) -> None:
    store_history(store, "a", 20)
    snapshots.save([snapshot_at(store, "a", 20)])
    store.append(streams("a", [21], Off))
    with pytest.raises(AggregateTypeMismatch):
        load(store, snapshots)


@ways
def test_a_class_without_snapshots_uses_none(
    load: Load, store: Watched, snapshots: WatchedSnapshots, monkeypatch: pytest.MonkeyPatch
) -> None:
    store_history(store, "a", 25)
    snapshots.save([snapshot_at(store, "a", 20)._replace(payload=b"nobody looks")])
    monkeypatch.setattr(Shelf, "snapshot_every", None)
    assert load(store, snapshots).total == total(1, 25)
    assert set(snapshots.versions(["a"])) == {"a"}


@ways
def test_snapshots_that_cannot_be_read_cost_a_line_in_the_log(
    load: Load, store: Watched, snapshots: WatchedSnapshots, caplog: pytest.LogCaptureFixture
) -> None:
    store_history(store, "a", 25)
    snapshots.error = RuntimeError("no such table")
    for _ in range(3):
        assert load(store, snapshots).total == total(1, 25)
    assert caplog.messages == ["snapshots cannot be read, loading goes on without: no such table"]


@ways
def test_a_database_that_is_away_is_waited_for(load: Load, store: Watched, snapshots: WatchedSnapshots) -> None:
    store_history(store, "a", 25)
    snapshots.error = StoreUnavailable("gone")
    with pytest.raises(StoreUnavailable):
        load(store, snapshots)


def test_a_batch_asks_once_and_not_about_what_is_too_young(
    store: Watched, snapshots: WatchedSnapshots, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading.policy, "lowest", lambda: 10)
    for name, length in (("a", 30), ("b", 15), ("c", 9), ("d", 1)):
        store_history(store, name, length)
    snapshots.save([snapshot_at(store, "a", 20), snapshot_at(store, "b", 10)])
    loader = AggregateLoader(store, snapshots)
    store.questions.clear()
    (portion,), large = loader.sorted_by_size("abcd")
    assert (portion.ids, set(portion.snapshots), large) == (["a", "b", "c", "d"], {"a", "b"}, [])
    totals = {id: history.rebuild().total for id, history in loader.histories_of(portion).items()}  # type: ignore[union-attr]
    assert totals == {"a": total(1, 30), "b": total(1, 15), "c": total(1, 9), "d": 1}
    assert snapshots.asked == [["a", "b"]]
    assert store.questions == {"load_ranges": 1}


def test_where_no_class_has_snapshots_nobody_asks_for_any(
    store: Watched, snapshots: WatchedSnapshots, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading.policy, "lowest", lambda: None)
    store_history(store, "a", 30)
    assert load_in_batch(store, snapshots).total == load_one(store, snapshots).total == total(1, 30)  # type: ignore[union-attr]
    assert snapshots.asked == []


def test_what_is_long_is_streamed_also_behind_a_snapshot(
    store: Watched, snapshots: WatchedSnapshots, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "PORTION", 20)
    store_history(store, "a", 50)
    store_history(store, "b", 50)
    snapshots.save([snapshot_at(store, "a", 20), snapshot_at(store, "b", 40)])
    portions, large = AggregateLoader(store, snapshots).sorted_by_size(["a", "b"])
    assert ([portion.ids for portion in portions], large) == ([["b"]], ["a"])
    assert load_in_batch(store, snapshots).total == total(1, 50)  # type: ignore[union-attr]


def test_long_histories_stand_alone(
    store: Watched, snapshots: WatchedSnapshots, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "LONG", 20)
    for name, length in (("a", 5), ("b", 30), ("c", 5), ("d", 30)):
        store_history(store, name, length)
    snapshots.save([snapshot_at(store, "d", 25)])
    loader = AggregateLoader(store, snapshots)
    portions, large = loader.sorted_by_size("abcd")
    assert ([portion.ids for portion in portions], large) == ([["a", "c", "d"], ["b"]], [])
    totals = {id: one.rebuild().total for portion in portions for id, one in loader.histories_of(portion).items()}  # type: ignore[union-attr]
    assert totals == {"a": total(1, 5), "b": total(1, 30), "c": total(1, 5), "d": total(1, 30)}


def test_up_to_an_older_version_the_snapshot_is_left_out(store: Watched, snapshots: WatchedSnapshots) -> None:
    store_history(store, "a", 30)
    snapshots.save([snapshot_at(store, "a", 20)])
    loader = AggregateLoader(store, snapshots)
    for until in (1, 19, 20, 21, 30):
        shelf: Any = loader.load("a", until=until)
        assert (shelf.version, shelf.total) == (until, total(1, until))


@pytest.mark.django_db
@ways
def test_in_postgres(load: Load) -> None:
    store, snapshots = PostgresEventStore(), PostgresSnapshotStore()
    store_history(store, "a", 25)
    store_history(store, "other", 3)
    snapshots.save([snapshot_at(store, "a", 20)])
    shelf = load(store, snapshots)
    assert (shelf.version, shelf.total) == (25, total(1, 25))
    bad = flipped(snapshot_at(store, "a", 20))
    snapshots.discard(snapshots.load(["a"])["a"])
    snapshots.save([bad])
    assert load(store, snapshots).total == total(1, 25)
    assert snapshots.load(["a"]) == {}
