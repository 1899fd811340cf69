"""The snapshot job: makes the due snapshots of all stored aggregates in parallel.

A task has a range of aggregates. It reads their heads and the versions of their snapshots, and then only the streams of
due aggregates, from the version of their snapshot on. It does so in ``mapInArrow`` over the ranges instead of the data
source: the streams to be read depend on the snapshots, so a source would do all of the job's work, and streams would
pass through the JVM and back.

With an archive, the streams come from there and from the data source, sorted by aggregate. The database is only queried
for heads and snapshots.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from enode_django.domain.aggregate import AggregateRoot
from enode_django.domain.declarations import aliases_of, declared
from enode_django.eventstore.base import EventStore
from enode_django.eventstore.dividing import bounds
from enode_django.eventstore.scanning import Scan
from enode_django.exceptions import TypeNameError
from enode_django.jobs.progress import Report
from enode_django.repository import policy
from enode_django.runtime import make_store, needed_snapshots
from enode_django.serialization import registry
from enode_django.spark.archive_reading import archived_events
from enode_django.spark.horizons import horizon_of, text_of
from enode_django.spark.reading import limited
from enode_django.spark.sink import Make, StagedRows, write_made
from enode_django.spark.snapshot_folding import make_from_streams
from enode_django.spark.snapshot_making import classes_of, make_in_ranges

RANGES_PER_CORE = 4
"""Ranges of all shards together for each core: several, so that a task that fails costs little, and the last one does
not keep one core busy for long while the others idle."""
SHOWN_FAILURES = 10

_COUNTS = """
    SELECT aggregate_root_type, count(*) FILTER (WHERE failure IS NULL), count(*) FILTER (WHERE failure IS NOT NULL)
    FROM {staged} GROUP BY aggregate_root_type
"""
_FAILURES = f"""
    SELECT aggregate_root_type, aggregate_root_id, failure FROM {{staged}} WHERE failure IS NOT NULL
    ORDER BY aggregate_root_id LIMIT {SHOWN_FAILURES}
"""


def build_snapshots(
    spark: SparkSession, types: Sequence[str] | None, report: Report, *, archive: str | None = None
) -> dict[str, Any]:
    """Make the due snapshots of the aggregates of these types, by stable name (None: of all that have snapshots).

    Returns ``made`` (numbers by type), ``failed`` (the number of due aggregates that cannot be loaded or kept) and
    ``failures`` (type, id and reason of the first ten). Blocks until all are published, in one transaction per shard.
    Raises `ConfigurationError` if snapshots are switched off, and Spark's error for a failed job.
    """
    store = make_store()
    needed_snapshots(store)  # raises before a task does
    aliases = [shard.name for shard in store.shards]
    with (
        _source(spark, store, types, report, archive) as (frame, make),
        write_made(frame, make, aliases, report) as staged,
    ):
        return _figures(staged)


@contextmanager
def _source(
    spark: SparkSession, store: EventStore, types: Sequence[str] | None, report: Report, archive: str | None
) -> Iterator[tuple[DataFrame, Make]]:
    """Yield a frame, and the function that makes snapshots of its batches."""
    if archive is None:
        count = spark.sparkContext.defaultParallelism * RANGES_PER_CORE
        ranges = [one for shard in store.shards for one in ranges_of(shard.name, -(-count // len(store.shards)))]
        report("making", ranges=len(ranges))
        frame = limited(spark.range(0, len(ranges), 1, len(ranges)))
        yield frame, partial(make_in_ranges, ranges=ranges, type_names=types)
        return
    horizon = horizon_of(store)
    report("reading", archive=archive)
    with archived_events(spark, archive, store, horizon, names_of(types), report) as streams:
        yield streams, partial(make_from_streams, horizon=text_of(horizon), type_names=types)


def names_of(types: Sequence[str] | None) -> list[str]:
    """Return the type names under which streams of these types, or of all that have snapshots, may be stored."""
    names: list[str] = []
    classes = classes_of(types)
    for cls in declared() if classes is None else classes:
        if issubclass(cls, AggregateRoot) and cls is not AggregateRoot and policy.is_on(cls):
            with suppress(TypeNameError):  # for example an abstract class, which has no streams
                names += [registry.types.name_of(cls), *aliases_of(cls)]
    return sorted(names)


def ranges_of(alias: str, parts: int) -> list[Scan]:
    inner = bounds(alias, parts)
    return [Scan(alias, low, high) for low, high in zip(["", *inner], [*inner, None], strict=True)]


def _figures(staged: StagedRows) -> dict[str, Any]:
    made: dict[str, int] = {}
    failed = 0
    for name, successes, failures in sorted(staged.ask(_COUNTS)):
        if successes:
            made[name] = made.get(name, 0) + successes
        failed += failures
    return {"made": made, "failed": failed, "failures": sorted(map(list, staged.ask(_FAILURES)))[:SHOWN_FAILURES]}
