"""The data source ``enode_events``: event streams below one horizon as a DataFrame.

A job sees one state of the store, regardless of concurrent writes and of repeated tasks: the horizon is taken once, at
planning or before. Plans contain aliases of databases and positions; each process reads the rest from the project's
settings, so no plan, log or web page of Spark shows a password.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from math import ceil
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, InputPartition
from pyspark.sql.functions import col
from pyspark.sql.types import StructType

from enode_django.concurrency.cores import usable_cores
from enode_django.eventstore import dividing, generations
from enode_django.eventstore.base import EventStore, FeedPage, StreamRecord
from enode_django.eventstore.feed import Feed
from enode_django.eventstore.positions import BEGINNING, END, Position
from enode_django.eventstore.postgres import PostgresEventStore
from enode_django.eventstore.rows import connected
from enode_django.eventstore.scanning import CHUNK_BYTES, Scan, check_settled, persistently, scan
from enode_django.exceptions import ConfigurationError
from enode_django.rebuilding.engine import postgres_shards
from enode_django.runtime import make_store
from enode_django.spark import pushdown
from enode_django.spark.batches import DDL, SCHEMA, batch_of, ddl_of, names_in
from enode_django.spark.executors import task
from enode_django.spark.horizons import Positions, horizon_of, text_of
from enode_django.spark.options import AGGREGATE, NAME, POSITION, Options, options_of
from enode_django.spark.reading import limited, read_alias

__all__ = ["events"]

PARTITION_BYTES = 32 * 1024 * 1024
"""The most bytes of the table in one partition: about a second's work, so that repeating a task costs little."""
IDS_PER_PARTITION = 1_000
_FIRST_PAGE, _LARGEST_PAGE = 100, 5_000


def events(
    spark: SparkSession,
    *,
    horizon: Positions | None = None,
    after: Positions | None = None,
    types: Sequence[str] = (),
    order: str = AGGREGATE,
    refusals: bool = False,
    partitions: int | None = None,
    columns: Sequence[str] = (),
) -> DataFrame:
    """Return a frame of the streams in the settings' event store below ``horizon``, by default one taken now.

    ``types`` are the names of aggregate classes (none: all). The frame has the columns of
    `enode_django.spark.batches.SCHEMA`, or those of ``columns``: other columns are not sent to Spark, which cannot tell
    a source in Python which ones a query needs. ``after`` leaves out streams below it; ``order`` and ``partitions`` are
    as in `Options`. Queries the database. Raises `StoreUnavailable` and `ConfigurationError`.

    For example::

        with spark_session() as spark:
            frame = events(spark, types=["bank.BankAccount"], columns=["aggregate_root_id"])
            print(frame.distinct().count())
    """
    store = make_store()
    shards = postgres_shards(store)
    tasks = ceil(2 * spark.sparkContext.defaultParallelism / len(shards))
    chosen = partitions or max(parts_of(shard.alias, tasks) for shard in shards)
    options = {"order": order, "refusals": str(refusals), "partitions": str(chosen)}
    options["horizon"] = text_of(horizon_of(store) if horizon is None else horizon)
    if after is not None:
        options["after"] = text_of(after)
    reader = spark.read.format(NAME).options(**options)
    if columns:  # the column of types is dropped again unless it is named
        reader = reader.schema(ddl_of(list(dict.fromkeys([*columns, *["aggregate_root_type"][: len(types)]]))))
    frame = reader.load()
    frame = frame.where(col("aggregate_root_type").isin(list(types))) if types else frame
    return limited(frame.select(*columns) if columns else frame)


def parts_of(alias: str, tasks: int) -> int:
    """Return the number of parts of a shard, for ``tasks`` tasks that run at the same time."""
    return max(tasks, ceil(dividing.size(alias) / PARTITION_BYTES))


class EventsSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        options_of(self.options)  # a mistake fails the load, and not only an action
        return DDL

    def reader(self, schema: StructType) -> DataSourceReader:
        return EventsReader(
            options_of(self.options), names_in({field.name: field.dataType.simpleString() for field in schema})
        )


@dataclass
class EventsPartition(InputPartition):
    """A part of the shard with this number."""

    shard: int
    scan: Scan


class EventsReader(DataSourceReader):
    """Plans and reads partitions. ``names`` are the columns to read."""

    def __init__(self, options: Options, names: Sequence[str] = SCHEMA.names) -> None:
        self._options = options
        self._names = names
        self._refusals = options.refusals
        self._wanted = Scan("", contents=not {"events", "metadata"}.isdisjoint(names))

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        for condition in filters:
            if not self._push(condition):
                yield condition

    def _push(self, condition: Filter) -> bool:
        if self._options.order == POSITION and not pushdown.is_about_types(condition):
            return False
        if pushdown.leaves_out_refusals(condition):
            self._refusals = False
            return True
        narrowed = pushdown.narrowed(self._wanted, condition)
        self._wanted = narrowed or self._wanted
        return narrowed is not None

    def partitions(self) -> Sequence[InputPartition]:
        if pushdown.is_nothing(self._wanted):
            return []
        with task():
            return list(self._planned(make_store()))

    def _planned(self, store: EventStore) -> Iterator[EventsPartition]:
        horizon = self._options.horizon
        shards = {shard.number: shard for shard in postgres_shards(store)}
        horizon = _checked(shards, horizon) if horizon is not None else horizon_of(store)
        after = self._options.after or {}
        _check_known(shards, after)
        for number, shard in shards.items():
            parts = self._options.partitions or parts_of(shard.alias, usable_cores())
            alias = read_alias(shard.alias)
            whole = self._wanted._replace(alias=alias, horizon=horizon[number], after=after.get(number))
            for part in self._parts(whole, parts):
                yield EventsPartition(number, part)

    def _parts(self, whole: Scan, parts: int) -> Iterator[Scan]:
        if self._options.order == POSITION:
            yield from _parts_by_position(whole, parts)
            return
        yield from _parts_by_id(whole, parts)
        if self._refusals:
            yield from _parts_of_refusals(whole._replace(refusals=True), parts)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, EventsPartition):  # Spark makes one if there are none
            return
        with task():
            for rows in self._rows(partition):
                if rows:
                    yield batch_of(partition.shard, rows, self._names)

    def _rows(self, partition: EventsPartition) -> Iterator[Sequence[Sequence[Any]]]:
        if self._options.order == AGGREGATE:
            yield from scan(partition.scan, raw_times=True)
            return
        types = partition.scan.types
        for records in _pages(partition.scan):
            yield [
                record
                for record in records
                if (self._refusals or record.version is not None) and (not types or record.aggregate_root_type in types)
            ]


def _checked(shards: dict[int, PostgresEventStore], horizon: Positions) -> Positions:
    _check_known(shards, horizon)
    for number, shard in shards.items():
        if number not in horizon:
            raise ConfigurationError(f"the horizon {text_of(horizon)} says nothing of shard {number}; take a new one")
        if horizon[number].transaction > shard.position():
            raise ConfigurationError(
                f"the horizon {horizon[number]} lies ahead of shard {number}: it was taken of another database, "
                "or the database was set back since, or is a replica that lags; take a new one"
            )
    return horizon


def _check_known(shards: dict[int, PostgresEventStore], positions: Positions) -> None:
    unknown = sorted(positions.keys() - shards.keys())
    if unknown:
        raise ConfigurationError(f"the event store has no shards {unknown}; it has {sorted(shards)}")


def _parts_by_id(whole: Scan, parts: int) -> Iterator[Scan]:
    some = whole.ids[IDS_PER_PARTITION::IDS_PER_PARTITION]
    begins = some if whole.ids else dividing.bounds(whole.alias, parts)
    edges = ["", *begins, None]
    return (whole._replace(low=low, high=high) for low, high in pairwise(edges) if low is not None)


def _parts_of_refusals(whole: Scan, parts: int) -> Iterator[Scan]:
    edges = [None, *dividing.refusal_bounds(whole.alias, parts), None]
    return (pushdown.made_between(whole, begin, end) for begin, end in pairwise(edges))


def _parts_by_position(whole: Scan, parts: int) -> Iterator[Scan]:
    assert whole.horizon is not None
    after, before = (whole.after or BEGINNING).transaction, whole.horizon.transaction
    if after >= before:
        return iter(())
    edges = [after, *dividing.position_bounds(whole.alias, parts, after, before), before]
    return (whole._replace(after=one, horizon=other) for one, other in pairwise(dict.fromkeys(edges)))


def _pages(part: Scan) -> Iterator[list[StreamRecord]]:
    """Yield pages of the feed, sized by the average row, since a row may have megabytes. A part that ends at the
    position of a row includes it."""
    at, limit = part.after or BEGINNING, _FIRST_PAGE
    horizon = part.horizon or END
    feed = Feed(1) if at.sequence else Feed()  # a part that begins within a transaction has many earlier rows of it
    while at < horizon:
        page = persistently(part.alias, partial(_page, feed, part.alias, at, limit, horizon))
        yield [entry.record for entry in page.entries if entry.position <= horizon]
        at = page.position
        limit = _next_limit([entry.record for entry in page.entries], limit)


def _page(feed: Feed, alias: str, at: Position, limit: int, horizon: Position) -> FeedPage:
    with connected(alias) as connection:
        page = feed.page(connection, generations.state(connection), at, limit)
    if not page.entries:
        check_settled(alias, page.position, horizon)
    return page


def _next_limit(records: Sequence[StreamRecord], limit: int) -> int:
    average = sum(len(record.events) + len(record.metadata) for record in records) // max(len(records), 1)
    return max(1, min(2 * limit, _LARGEST_PAGE, CHUNK_BYTES // (average + 1)))
