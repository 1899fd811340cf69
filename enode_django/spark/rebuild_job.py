"""The work of a rebuild on Spark: each task replays a range of aggregates into the shadow, with the projection's own
handlers.

A task that runs again, or twice at a time, does no harm: what is in the shadow already is known by its checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from enode_django.rebuilding.engine import Plan
from enode_django.rebuilding.replaying import Replayed, Todo, replayer
from enode_django.rebuilding.shadow import Shadow
from enode_django.reporting import Report
from enode_django.runtime import make_store
from enode_django.spark.batches import records_of
from enode_django.spark.executors import task
from enode_django.spark.progress import with_progress
from enode_django.spark.source import events

if TYPE_CHECKING:
    from pyspark import Accumulator
    from pyspark.sql import DataFrame, SparkSession

ALONE = 2_000
"""So many aggregates are brought up to date in this process: to tell others costs more."""
DONE: pa.Schema = pa.schema(
    [
        pa.field("streams", pa.int64()),
        pa.field("aggregates", pa.int64()),
        pa.field("parked", pa.list_(pa.string())),
    ]
)
_DDL = "streams BIGINT, aggregates BIGINT, parked ARRAY<STRING>"


class SparkEngine:
    """As `Engine` says. Methods raise what Spark raises for a task that failed again and again.

    ``session`` is called when there is work for Spark, and then again.
    """

    def __init__(self, session: Callable[[], SparkSession]) -> None:
        self._session = session

    def replay(self, plan: Plan, report: Report) -> Replayed:
        if not plan.types:
            return Replayed()
        spark = self._session()
        streams = spark.sparkContext.accumulator(0)
        replayed = self._events(plan).mapInArrow(partial(_replay, plan.shadow, streams), _DDL)
        rows = with_progress(spark, "replay", replayed.collect, report, streams=lambda: streams.value)
        return _sum(Replayed(streams, aggregates, tuple(parked)) for streams, aggregates, parked in rows)

    def _events(self, plan: Plan) -> DataFrame:
        if plan.archive is None:
            return events(self._session(), horizon=plan.horizon, types=plan.types)
        from enode_django.spark.archive import archived_events

        return archived_events(self._session(), plan.archive, make_store(), plan.horizon, types=plan.types)

    def catch_up(self, shadow: Shadow, todo: Sequence[Todo]) -> Replayed:
        if len(todo) <= ALONE:
            with replayer(shadow) as replaying:
                return replaying.catch_up(todo)
        context = self._session().sparkContext
        parts = context.parallelize(todo, min(4 * context.defaultParallelism, len(todo) // ALONE + 1))
        return _sum(parts.mapPartitions(partial(_catch_up, shadow)).collect())


def _replay(shadow: Shadow, streams: Accumulator[int], batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    with task(), replayer(shadow) as replaying:
        done = replaying.replay(record for batch in batches for record in records_of(batch))
    streams.add(done.streams)
    yield pa.RecordBatch.from_pylist([done._asdict()], schema=DONE)


def _catch_up(shadow: Shadow, todo: Iterator[Todo]) -> Iterator[Replayed]:
    with task(), replayer(shadow) as replaying:
        yield replaying.catch_up(todo)


def _sum(all_done: Iterator[Replayed] | list[Replayed]) -> Replayed:
    total = Replayed()
    for done in all_done:
        total += done
    return total
