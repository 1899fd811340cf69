"""The tasks of the snapshot job in the executors.

The memory of a task does not depend on the length of a history: streams are folded as they are read, and snapshots are
returned in batches.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from itertools import groupby, islice
from operator import attrgetter
from typing import Any, NamedTuple

import pyarrow as pa

from enode_django.domain.aggregate import AggregateRoot
from enode_django.eventstore.heads import Head, heads_page
from enode_django.eventstore.postgres import PostgresEventStore
from enode_django.eventstore.scanning import Scan, persistently, scan_records
from enode_django.repository.loading import History
from enode_django.repository.postgres import PostgresSnapshotStore
from enode_django.repository.snapshot_building import UNSUITABLE, failure_text, is_wanted
from enode_django.repository.snapshot_making import Outcome, SnapshotMaker, outcome_of
from enode_django.repository.store import Snapshot
from enode_django.serialization.registry import types
from enode_django.spark.executors import task
from enode_django.spark.reading import read_alias

_COLUMNS: dict[str, pa.DataType] = {
    "alias": pa.string(),
    "aggregate_root_id": pa.string(),
    "aggregate_root_type": pa.string(),
    "version": pa.int64(),
    "fingerprint": pa.string(),
    "payload": pa.binary(),
    "created_at": pa.timestamp("us", tz="UTC"),
    "failure": pa.string(),
}
_SCHEMA = pa.schema(_COLUMNS)
HEADS_AT_ONCE = 1_000
MADE_AT_ONCE = 500
"""Aggregates whose streams are looked up together, if they are short."""
_BATCH_ROWS = 1_000
_BATCH_BYTES = 4 * 1024 * 1024


class Row(NamedTuple):
    """The snapshot of a due aggregate, or the reason why there is none."""

    alias: str
    aggregate_root_id: str
    aggregate_root_type: str
    version: int
    fingerprint: str
    payload: bytes | None
    created_at: datetime
    failure: str | None

    @classmethod
    def of(cls, alias: str, id: str, type_name: str, outcome: Outcome) -> Row:
        if isinstance(outcome, Snapshot):
            return cls(alias, *outcome, None)
        failure = UNSUITABLE if outcome is None else failure_text(outcome)
        return cls(alias, id, type_name, 0, "", None, datetime.now(UTC), failure)


def make_in_ranges(
    batches: Iterable[pa.RecordBatch], *, ranges: Sequence[Scan], type_names: Sequence[str] | None
) -> Iterator[pa.RecordBatch]:
    """Make snapshots in the ranges whose indices are in the first column. For ``mapInArrow``."""
    with task():
        classes = classes_of(type_names)
        for batch in batches:
            numbers: list[Any] = batch.column(0).to_pylist()
            for number in numbers:
                yield from in_batches(_rows(ranges[number], classes))


def classes_of(type_names: Sequence[str] | None) -> Collection[type[AggregateRoot]] | None:
    return None if type_names is None else {types.class_of(AggregateRoot, name) for name in type_names}


def _rows(wanted: Scan, classes: Collection[type[AggregateRoot]] | None) -> Iterator[Row]:
    source = read_alias(wanted.alias)
    maker = SnapshotMaker(PostgresEventStore(source), PostgresSnapshotStore(wanted.alias))
    persist = partial(persistently, source)
    at: str | None = wanted.low
    while at is not None:
        page = persist(partial(heads_page, source, at, wanted.high, limit=HEADS_AT_ONCE))
        part = Scan(source, at, page.next_id or wanted.high)
        names = {head.aggregate_root_id: head.aggregate_root_type for head in page.heads}
        for id, outcome in _outcomes(maker, part, page.heads, classes):
            yield Row.of(wanted.alias, id, names[id], outcome)
        at = page.next_id


def _outcomes(
    maker: SnapshotMaker, part: Scan, all_heads: Sequence[Head], classes: Collection[type[AggregateRoot]] | None
) -> Iterator[tuple[str, Outcome]]:
    heads = [head for head in all_heads if is_wanted(head.aggregate_root_type, classes)]
    reached = persistently(part.alias, partial(maker.reached, [head.aggregate_root_id for head in heads]))
    due: dict[str, int] = {}
    for id, name, version in heads:
        try:
            if maker.is_due(name, reached[id], version):
                due[id] = version
        except Exception as error:  # a policy may be a function
            yield id, error
    new = {id for id in due if not reached[id]}
    if new and 2 * sum(due[id] for id in new) >= sum(head.version for head in all_heads):
        yield from _made_in_passing(maker, part, new)
        due = {id: version for id, version in due.items() if id not in new}
    remaining = iter(due.items())
    while some := dict(islice(remaining, MADE_AT_ONCE)):
        yield from persistently(part.alias, partial(_made, maker, some))


def _made_in_passing(maker: SnapshotMaker, part: Scan, ids: Collection[str]) -> Iterator[tuple[str, Outcome]]:
    """Yield outcomes from whole histories, by a scan of the range. It costs the server a third less than looking each
    aggregate up if they have most of the range's streams, and nothing is sorted."""
    for id, records in groupby(scan_records(part), attrgetter("aggregate_root_id")):
        if id in ids:
            yield id, outcome_of(partial(maker.make_from, History(id, records)))


def _made(maker: SnapshotMaker, heads: Mapping[str, int]) -> list[tuple[str, Outcome]]:
    return list(maker.make_many(heads))


def in_batches(rows: Iterable[Row]) -> Iterator[pa.RecordBatch]:
    waiting: list[Row] = []
    size = 0
    for row in rows:
        waiting.append(row)
        size += len(row.payload or b"")
        if len(waiting) >= _BATCH_ROWS or size >= _BATCH_BYTES:
            yield _batch(waiting)
            waiting, size = [], 0
    if waiting:
        yield _batch(waiting)


def _batch(rows: Sequence[Row]) -> pa.RecordBatch:
    columns: Any = zip(*rows, strict=True)
    return pa.RecordBatch.from_arrays(
        [pa.array(column, field.type) for column, field in zip(columns, _SCHEMA, strict=True)], schema=_SCHEMA
    )
