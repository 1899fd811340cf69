"""The tasks of the snapshot job on an archive, whose streams are sorted by aggregate."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import dropwhile, groupby
from operator import attrgetter

import pyarrow as pa

from enode_django.domain.aggregate import AggregateRoot
from enode_django.eventstore.base import EventStore, StreamRecord, by_place
from enode_django.eventstore.scanning import persistently
from enode_django.exceptions import ConfigurationError
from enode_django.repository.loading import History
from enode_django.repository.reading import SnapshotReader
from enode_django.repository.snapshot_building import is_wanted
from enode_django.repository.snapshot_making import Outcome, SnapshotMaker, outcome_of
from enode_django.repository.state import ReadSnapshot
from enode_django.repository.store import SnapshotStore
from enode_django.runtime import make_snapshots, make_store
from enode_django.spark.batches import records_of
from enode_django.spark.executors import task
from enode_django.spark.horizons import Positions, positions_of
from enode_django.spark.snapshot_making import Row, classes_of, in_batches


def make_from_streams(
    batches: Iterable[pa.RecordBatch], *, horizon: str, type_names: Sequence[str] | None
) -> Iterator[pa.RecordBatch]:
    """Make snapshots from streams below the horizon, which are grouped by aggregate and sorted by version. For
    ``mapInArrow``."""
    with task():
        store = make_store()
        snapshots = make_snapshots(store)
        if snapshots is None:
            raise ConfigurationError("snapshots are switched off in the settings of the executors")
        folding = _Folding(store, snapshots, positions_of(horizon), classes_of(type_names))
        yield from in_batches(folding.rows(batches))


Begin = ReadSnapshot | Exception | None
"""The beginning of a due aggregate: its usable snapshot, None if it has none, or the error of the check whether it is
due."""


class _Folding:
    """Folds streams into snapshots. ``_due`` has the due aggregates of the current batch, with type and beginning."""

    def __init__(
        self,
        store: EventStore,
        snapshots: SnapshotStore,
        horizon: Positions,
        classes: Collection[type[AggregateRoot]] | None,
    ) -> None:
        self._store = store
        self._maker = SnapshotMaker(store, snapshots)
        self._reader = SnapshotReader(snapshots)
        self._horizon = horizon
        self._classes = classes
        self._due: dict[str, tuple[str, Begin]] = {}

    def rows(self, batches: Iterable[pa.RecordBatch]) -> Iterator[Row]:
        for id, records in groupby(self._records(batches), attrgetter("aggregate_root_id")):
            if id in self._due:
                alias = self._store.shards[self._store.place_of(id)].name
                type_name, begin = self._due[id]
                yield Row.of(alias, id, type_name, self._made(id, records, begin))

    def _made(self, id: str, records: Iterator[StreamRecord], begin: Begin) -> Outcome:
        if isinstance(begin, Exception):
            return begin
        if begin is not None:
            records = dropwhile(lambda record: (record.version or 0) < begin.version, records)
        return outcome_of(partial(self._maker.make_from, History(id, records, begin)))

    def _records(self, batches: Iterable[pa.RecordBatch]) -> Iterator[StreamRecord]:
        """Yield the records, and look up the due aggregates of each batch. The last aggregate of a batch may continue
        in the next one, so its entry is kept."""
        last = ""
        for batch in batches:
            types = dict(zip(_texts(batch, "aggregate_root_id"), _texts(batch, "aggregate_root_type"), strict=True))
            kept = {id: due for id, due in self._due.items() if id == last}
            new = {id: name for id, name in types.items() if id != last and is_wanted(name, self._classes)}
            self._due = kept | persistently(self._store.shards[0].name, partial(self._look_up, new))
            yield from records_of(batch)
            last = next(reversed(types), last)

    def _look_up(self, types: Mapping[str, str]) -> dict[str, tuple[str, Begin]]:
        heads: dict[str, int] = {}
        for place, ids in by_place(self._store, types).items():
            shard = self._store.shards[place]
            heads.update(shard.heads_before(ids, self._horizon[shard.number]))
        reached = self._maker.reached(list(heads))
        due = {id: self._is_due(types[id], reached[id], head) for id, head in heads.items()}
        snapshots = self._reader.find([id for id, is_due in due.items() if is_due and reached[id]])
        return {
            id: (types[id], is_due if isinstance(is_due, Exception) else snapshots.get(id))
            for id, is_due in due.items()
            if is_due
        }

    def _is_due(self, type_name: str, reached: int, head: int) -> bool | Exception:
        try:
            return self._maker.is_due(type_name, reached, head)
        except Exception as error:  # a policy may be a function
            return error


def _texts(batch: pa.RecordBatch, column: str) -> list[str]:
    texts: list[str] = batch.column(column).to_numpy(zero_copy_only=False).tolist()
    return texts
