"""The tasks of the snapshot job, called as Spark calls them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest

from enode_django.eventstore.base import StreamRecord
from enode_django.eventstore.postgres import PostgresEventStore
from enode_django.eventstore.scanning import Scan, scan
from enode_django.repository.fingerprint import forget
from enode_django.repository.loading import READ_AHEAD
from enode_django.repository.postgres import PostgresSnapshotStore
from enode_django.repository.snapshot_building import UNSUITABLE
from enode_django.repository.snapshot_making import SnapshotMaker
from enode_django.spark import snapshot_making
from enode_django.spark.batches import batch_of
from enode_django.spark.horizons import horizon_of, text_of
from enode_django.spark.snapshot_folding import make_from_streams
from enode_django.spark.snapshot_job import names_of
from enode_django.spark.snapshot_making import make_in_ranges
from tests.snapshots.domain import Fussy, Hooked, Off, Shelf, Undeclared
from tests.snapshots.histories import snapshot_at, store_history

pytestmark = pytest.mark.django_db(transaction=True)

Make = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def store() -> PostgresEventStore:
    return PostgresEventStore()


@pytest.fixture
def snapshots() -> PostgresSnapshotStore:
    return PostgresSnapshotStore()


def from_ranges(types: Sequence[str] | None = None, edges: Sequence[str | None] = ("", None)) -> list[dict[str, Any]]:
    ranges = [Scan("default", low, high) for low, high in pairwise(edges) if low is not None]
    numbers = pa.RecordBatch.from_pydict({"id": list(range(len(ranges)))})
    return rows_of(make_in_ranges(iter([numbers]), ranges=ranges, type_names=types))


def from_streams(types: Sequence[str] | None = None, at_once: int = 7) -> list[dict[str, Any]]:
    """Make snapshots from sorted streams, as an archive yields them, cut into batches anywhere."""

    def batches() -> Iterator[pa.RecordBatch]:
        wanted = Scan("default", types=names_of(types))
        return (batch_of(0, rows) for rows in scan(wanted, at_once=at_once))

    horizon = text_of(horizon_of(PostgresEventStore()))
    return rows_of(make_from_streams(batches(), horizon=horizon, type_names=types))


def rows_of(batches: Iterator[pa.RecordBatch]) -> list[dict[str, Any]]:
    return sorted((row for batch in batches for row in batch.to_pylist()), key=lambda row: row["aggregate_root_id"])


def made(rows: list[dict[str, Any]]) -> dict[str, int]:
    return {row["aggregate_root_id"]: row["version"] for row in rows if row["failure"] is None}


def failures(rows: list[dict[str, Any]]) -> dict[str, str]:
    return {row["aggregate_root_id"]: row["failure"] for row in rows if row["failure"] is not None}


both = pytest.mark.parametrize("make", [from_ranges, from_streams])


@both
def test_what_is_due_is_made_as_this_process_makes_it(make: Make, store: PostgresEventStore) -> None:
    for id, until, cls in (("a", 25, Shelf), ("b", 9, Shelf), ("c", 10, Shelf), ("h", 12, Hooked), ("o", 30, Off)):
        store_history(store, id, until, cls)
    rows = make()
    assert made(rows) == {"a": 25, "c": 10, "h": 12}
    for row in rows:
        here = snapshot_at(store, row["aggregate_root_id"], row["version"])
        assert tuple(row[name] for name in here._fields[:-1]) == here[:-1]
        assert row["alias"] == "default"


@both
def test_only_the_types_that_are_named(make: Make, store: PostgresEventStore) -> None:
    store_history(store, "a", 10)
    store_history(store, "h", 10, Hooked)
    assert made(make(["snapshots.Hooked"])) == {"h": 10}


@both
def test_what_is_kept_counts_and_is_begun_with(
    make: Make, store: PostgresEventStore, snapshots: PostgresSnapshotStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for id, kept, until in (("due", 15, 26), ("young", 15, 24), ("foreign", 15, 16)):
        store_history(store, id, until)
        snapshots.save([snapshot_at(store, id, kept)])
    foreign = snapshot_at(store, "foreign", 15)
    snapshots.discard(foreign)
    snapshots.save([foreign._replace(fingerprint="0" * 32)])
    begun: dict[str, int] = {}
    make_from = SnapshotMaker.make_from

    def watched(self: SnapshotMaker, history: Any) -> Any:
        begun[history.aggregate_root_id] = history.snapshot.version if history.snapshot else 0
        return make_from(self, history)

    monkeypatch.setattr(SnapshotMaker, "make_from", watched)
    assert made(make()) == {"due": 26, "foreign": 16}
    assert begun == {"due": 15, "foreign": 0}


def test_where_most_is_new_the_range_is_read_and_what_is_kept_is_begun_with_all_the_same(
    store: PostgresEventStore, snapshots: PostgresSnapshotStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for id, until in (("a", 30), ("kept", 26), ("young", 5), ("z", 40)):
        store_history(store, id, until)
    snapshots.save([snapshot_at(store, "kept", 15)])
    looked_up: list[str] = []
    make_many = SnapshotMaker.make_many

    def watched(self: SnapshotMaker, heads: Any) -> Any:
        looked_up.extend(heads)
        return make_many(self, heads)

    monkeypatch.setattr(SnapshotMaker, "make_many", watched)
    assert made(from_ranges(edges=["", "k", "y", None])) == {"a": 30, "kept": 26, "z": 40}
    assert looked_up == ["kept"]


@both
def test_what_fails_is_told_with_its_reason_and_the_others_are_made(make: Make, store: PostgresEventStore) -> None:
    store_history(store, "bad", 30, fails_at=5)
    store_history(store, "good", 12)
    store_history(store, "odd", 12, Undeclared)
    store_history(store, "fussy", 13, Fussy)
    rows = make()
    assert made(rows) == {"good": 12}
    told = failures(rows)
    assert told["bad"].startswith("BrokenHistory: ")
    assert told["odd"] == UNSUITABLE
    assert told["fussy"] == "RuntimeError: RuntimeError('unlucky')"
    assert {row["aggregate_root_type"] for row in rows} == {
        "snapshots.Shelf",
        "snapshots.Undeclared",
        "snapshots.Fussy",
    }


@both
def test_a_snapshot_of_another_history_is_replaced(
    make: Make, store: PostgresEventStore, snapshots: PostgresSnapshotStore
) -> None:
    """The streams that follow it were read for nothing."""
    store_history(store, "a", 12)
    other = snapshot_at(store, "a", 12)
    snapshots.save([other])
    store_history(store, "b", 30)
    taken = snapshot_at(store, "b", 12)
    snapshots.save([taken._replace(payload=taken.payload[:-1])])
    assert made(make()) == {"b": 30}


@both
def test_streams_of_types_that_this_code_does_not_know_are_left_to_others(
    make: Make, store: PostgresEventStore
) -> None:
    known = store_history(store, "a", 10)
    store.append([one._replace(aggregate_root_id="b", aggregate_root_type="newer.Thing") for one in known])
    assert (made(make()), failures(make())) == ({"a": 10}, {})


def test_ranges_laid_end_to_end_have_all(store: PostgresEventStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot_making, "HEADS_AT_ONCE", 2)
    monkeypatch.setattr(snapshot_making, "MADE_AT_ONCE", 2)
    ids = [f"a{n}" for n in range(9)]
    for id in ids:
        store_history(store, id, 10)
    assert made(from_ranges(edges=["", "a2", "a3", "b", None])) == dict.fromkeys(ids, 10)


def test_a_history_is_folded_as_it_comes(store: PostgresEventStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """No more than a batch of a long history is in memory."""
    records = store_history(store, "long", 500)
    consumed: list[int] = []
    read = 0

    def batches() -> Iterator[pa.RecordBatch]:
        nonlocal read
        for start in range(0, 500, 50):
            read = start + 50
            yield batch_of(0, records[start : start + 50])

    original = Shelf._put

    def processor(self: Shelf, event: Any) -> None:
        consumed.append(read - event.amount)
        original(self, event)

    monkeypatch.setattr(Shelf, "_put", processor)
    forget(Shelf)
    try:
        rows = rows_of(make_from_streams(batches(), horizon=text_of(horizon_of(store)), type_names=None))
    finally:
        forget(Shelf)
    assert made(rows) == {"long": 500}
    assert max(consumed) < 50 + READ_AHEAD


def test_streams_beyond_the_horizon_do_not_make_it_due(store: PostgresEventStore) -> None:
    records: list[StreamRecord] = store_history(store, "a", 9)
    horizon = text_of(horizon_of(store))
    store_history(store, "a", 10, after=9)
    batches = iter([batch_of(0, records)])
    assert rows_of(make_from_streams(batches, horizon=horizon, type_names=None)) == []


def test_rows_leave_in_batches_of_a_bearable_size(store: PostgresEventStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot_making, "_BATCH_BYTES", 1)
    for id in "abc":
        store_history(store, id, 10)
    numbers = pa.RecordBatch.from_pydict({"id": [0]})
    batches = list(make_in_ranges(iter([numbers]), ranges=[Scan("default", "", None)], type_names=None))
    assert [batch.num_rows for batch in batches] == [1, 1, 1]
