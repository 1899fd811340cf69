"""The Spark engine of a rebuild: each task replays a range of aggregates into the shadow, with the usual handlers.

A task may be repeated, or run twice at the same time: the shadow's checkpoints show what was done already. Without an
archive, the task itself reads its range. Through the data source, each stream would pass through the JVM and back,
which takes longer than handling it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from enode_django.eventstore.fetched import Row, TimeOf, itself
from enode_django.eventstore.scanning import Scan, raw_time, scan_raw
from enode_django.jobs.progress import Report, silent
from enode_django.rebuilding.catch_up_tasks import CatchUpTask, work_off
from enode_django.rebuilding.engine import Plan
from enode_django.rebuilding.ranges import scans
from enode_django.rebuilding.replaying import Replayed, Todo, replayer, total_of
from enode_django.rebuilding.shadow import Shadow
from enode_django.runtime import make_store
from enode_django.spark.archive_reading import archived_events
from enode_django.spark.batches import records_of
from enode_django.spark.executors import task
from enode_django.spark.progress import with_progress
from enode_django.spark.reading import limited, limited_count

if TYPE_CHECKING:
    from pyspark import Accumulator
    from pyspark.sql import DataFrame, SparkSession

ALONE = 2_000
"""The largest number of aggregates that is caught up in this process: tasks on Spark cost more."""
DONE: pa.Schema = pa.schema(
    [pa.field("streams", pa.int64()), pa.field("aggregates", pa.int64()), pa.field("parked", pa.list_(pa.string()))]
)
Work = Callable[[Iterable[Any]], Iterable[Replayed]]
_DDL = "streams BIGINT, aggregates BIGINT, parked ARRAY<STRING>"


class SparkEngine:
    """An `Engine` on Spark. Methods raise Spark's error for a task that has failed in all attempts.

    ``session`` returns the session; it is called whenever there is work for Spark.
    """

    def __init__(self, session: Callable[[], SparkSession]) -> None:
        self._session = session

    def replay(self, plan: Plan, report: Report) -> Replayed:
        if not plan.types:
            return Replayed()
        spark = self._session()
        streams = spark.sparkContext.accumulator(0)
        with _replaying(spark, plan, streams, report) as replayed:
            rows = with_progress(spark, "replay", replayed.collect, report, streams=lambda: streams.value)
        return total_of(Replayed(streams, aggregates, tuple(parked)) for streams, aggregates, parked in rows)

    def catch_up(self, shadow: Shadow, todo: Sequence[Todo]) -> Replayed:
        if len(todo) <= ALONE:
            with replayer(shadow) as replaying:
                return replaying.catch_up(todo)
        cores = self._session().sparkContext.defaultParallelism
        tasks = limited_count(min(4 * cores, len(todo) // ALONE + 1))
        return self._in_tasks(partial(_catch_up, shadow), todo, tasks)

    def tasks_at_once(self) -> int:
        """Return Spark's number of cores, up to the limit of database tasks: tasks of a range have equal sizes."""
        return limited_count(self._session().sparkContext.defaultParallelism)

    def work_off(self, shadow: Shadow, tasks: Sequence[CatchUpTask]) -> Replayed:
        if len(tasks) == 1:
            return work_off(shadow, tasks)
        return self._in_tasks(partial(_work_off, shadow), tasks, len(tasks))

    def _in_tasks(self, work: Work, todo: Sequence[Any], tasks: int) -> Replayed:
        spark = self._session()
        done = spark.sparkContext.parallelize(todo, tasks).mapPartitions(work)
        return total_of(with_progress(spark, "catch up", done.collect, silent))


@contextmanager
def _replaying(spark: SparkSession, plan: Plan, streams: Accumulator[int], report: Report) -> Iterator[DataFrame]:
    """Yield a frame whose tasks replay, and whose rows are their results."""
    if plan.archive is None:
        parts = scans(plan, spark.sparkContext.defaultParallelism)
        frame = limited(spark.range(0, len(parts), 1, len(parts)))
        yield frame.mapInArrow(partial(_replay_scans, plan.shadow, streams, parts), _DDL)
        return
    with archived_events(spark, plan.archive, make_store(), plan.horizon, plan.types, report) as archived:
        yield archived.mapInArrow(partial(_replay_streams, plan.shadow, streams), _DDL)


def _replay_scans(
    shadow: Shadow, streams: Accumulator[int], parts: Sequence[Scan], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Replay the scans whose indices are in the first column."""
    with task():
        for batch in batches:
            places: list[Any] = batch.column(0).to_pylist()
            for place in places:
                yield _replay(shadow, streams, scan_raw(parts[place]), raw_time)


def _replay_streams(
    shadow: Shadow, streams: Accumulator[int], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    with task():
        yield _replay(shadow, streams, (record for batch in batches for record in records_of(batch)))


def _replay(shadow: Shadow, streams: Accumulator[int], rows: Iterable[Row], time_of: TimeOf = itself) -> pa.RecordBatch:
    with replayer(shadow) as replaying:
        done = replaying.replay(rows, time_of)
    streams.add(done.streams)
    return pa.RecordBatch.from_pylist([done._asdict()], schema=DONE)


def _catch_up(shadow: Shadow, todo: Iterator[Todo]) -> Iterator[Replayed]:
    with task(), replayer(shadow) as replaying:
        yield replaying.catch_up(todo)


def _work_off(shadow: Shadow, tasks: Iterator[CatchUpTask]) -> Iterator[Replayed]:
    with task():
        yield work_off(shadow, list(tasks))
