"""The archive: all that was ever stored as Parquet files, to be read in place of the database.

Each export adds what lies between the horizon of the one before and its own. Positions order that without a gap, so a
row is in the archive once, whatever was written meanwhile.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from enode_django.conf import conf
from enode_django.eventstore.base import EventStore
from enode_django.exceptions import ArchiveBusy, ArchiveError, ArchiveMismatch
from enode_django.reporting import Report
from enode_django.runtime import make_store
from enode_django.spark.archive_corrections import with_corrections
from enode_django.spark.archive_files import INCREMENT, ArchiveFiles
from enode_django.spark.batches import SCHEMA
from enode_django.spark.decoding import ARCHIVE_DDL, READ_DDL, decoded
from enode_django.spark.holding import held
from enode_django.spark.horizons import Positions, horizon_of, text_of
from enode_django.spark.manifests import EMPTY, Increment, Known, Manifest
from enode_django.spark.options import POSITION
from enode_django.spark.progress import with_progress
from enode_django.spark.source import events

_COMPRESSION = "zstd"
_DIRECTORIES = ("aggregate_root_type", "day")
_TIMES = "spark.sql.parquet.outputTimestampType"


def export_events(spark: SparkSession, path: str, report: Report, *, anew: bool = False) -> dict[str, Any]:
    """Add what is new in the event store of the settings to the archive at ``path``, a directory or URI that Spark can
    write to; ``anew`` begins another one beside what is there.

    Returns ``rows`` and ``refusals`` that were added, ``increment`` (its name, None if nothing was new), ``history``
    and ``horizon``. Blocks. Raises `ArchiveBusy`, `ArchiveMismatch` if the store was set back or is another one,
    `ArchiveError`, and what Spark raises for a job that failed; then the archive is as it was.
    """
    store = make_store()
    files = ArchiveFiles(spark, path, anew=anew)
    with held(store.shards[0].name, f"archive {files.root}") as is_ours:
        if not is_ours:
            raise ArchiveBusy(f"another export to {files.root} is running; wait until it has ended")
        manifest = files.newest()
        check_history(manifest, store, files.directory)
        report("cleaning", removed=len(files.remove_left_behind(manifest)))
        horizon = horizon_of(store)
        increment, known = _write(spark, files, manifest, horizon, report)
        if increment.rows:
            files.add(manifest.followed_by(increment, known))
        else:
            files.remove(increment.name)
        return {
            "rows": increment.rows,
            "refusals": increment.refusals,
            "increment": increment.name if increment.rows else None,
            "history": files.history,
            "horizon": text_of(horizon),
        }


def _write(
    spark: SparkSession, files: ArchiveFiles, manifest: Manifest, horizon: Positions, report: Report
) -> tuple[Increment, Known]:
    name = files.new_increment(manifest)
    report("writing", increment=name)
    # By position: what was stored at one time lies in few files then.
    stored = events(spark, horizon=horizon, after=manifest.horizon, order=POSITION, refusals=True)
    rows = stored.mapInArrow(decoded, ARCHIVE_DDL)
    if manifest.increments:  # little, of many tasks: put together, it makes a few files and not very many
        rows = rows.hint("rebalance", *_DIRECTORIES)
    with _exact_times(spark):
        writer = rows.write.partitionBy(*_DIRECTORIES).option("compression", _COMPRESSION).mode("errorifexists")
        with_progress(spark, "writing", partial(writer.parquet, files.uri_of(name)), report)
    report("counting", increment=name)
    count, refusals, known = _counted(spark, files, name, report)
    made_at = datetime.now(UTC).isoformat()
    return Increment(name, manifest.horizon, horizon, count, refusals, made_at, files.files_of(name)), known


@contextlib.contextmanager
def _exact_times(spark: SparkSession) -> Iterator[None]:
    """Spark's own type for times is read by few others; there is no option of the writer for another one."""
    before = spark.conf.get(_TIMES)
    spark.conf.set(_TIMES, "TIMESTAMP_MICROS")
    try:
        yield
    finally:
        spark.conf.set(_TIMES, str(before))


def _counted(spark: SparkSession, files: ArchiveFiles, increment: str, report: Report) -> tuple[int, int, Known]:
    """Read the written rows again: return how many rows and refusals there are, and a stream of each shard."""
    stream = sql.when(sql.col("version").isNotNull(), sql.struct("created_at", "command_id", "aggregate_root_id"))
    counted = (
        _read(spark, files, [increment])
        .groupBy("shard")
        .agg(sql.count("*").alias("rows"), sql.count("version").alias("streams"), sql.max(stream).alias("last"))
    )
    figures = with_progress(spark, "counting", counted.collect, report)
    rows, streams = sum(one["rows"] for one in figures), sum(one["streams"] for one in figures)
    known = {one["shard"]: (one["last"]["command_id"], one["last"]["aggregate_root_id"])
             for one in figures if one["last"] is not None}  # fmt: skip
    return rows, rows - streams, known


def _read(spark: SparkSession, files: ArchiveFiles, increments: Sequence[str]) -> DataFrame:
    """Read increments with the columns of the files and the partitions. Without ``increments`` there are no rows."""
    if not increments:
        return spark.createDataFrame([], READ_DDL)
    reader = spark.read.schema(f"{READ_DDL}, {INCREMENT} STRING").option("basePath", files.directory)
    return reader.parquet(*map(files.uri_of, increments)).drop(INCREMENT)


def check_history(manifest: Manifest, store: EventStore, directory: str) -> None:
    """Raises `ArchiveMismatch` unless the store has come on from where the archive ends, and nowhere else from."""
    shards = {shard.number: shard for shard in store.shards}
    if manifest.horizon.keys() - shards.keys():
        raise ArchiveMismatch(f"{directory} has shards {sorted(manifest.horizon)}, the event store {sorted(shards)}")
    for number, horizon in manifest.horizon.items():
        position = shards[number].position()
        key = manifest.known.get(number)
        if position.generation != horizon.generation or position < horizon or not _has(shards[number], key):
            raise ArchiveMismatch(
                f"{directory} ends at position {horizon} of shard {number}, which has come to {position} by another "
                "way: it was restored, moved, or is another database. What is in the archive may never have happened "
                "there; begin a new one beside it with --anew"
            )


def _has(store: EventStore, key: tuple[str, str] | None) -> bool:
    return key is None or bool(store.find([key]))


def archived_events(
    spark: SparkSession, path: str, store: EventStore, horizon: Positions, types: Sequence[str] = ()
) -> DataFrame:
    """The streams below ``horizon``, as `enode_django.spark.source.events` gives them: from the archive at ``path``,
    and what is not in it from the database. ``types`` are names of aggregate classes (none: all).

    Events that were corrected, before or after they were archived, are as they are read now. All of an aggregate is in
    one partition, sorted by (aggregate root id, version); refusals are left out. Raises
    `ArchiveError` if there is no archive, `ArchiveMismatch` as `export_events`.
    """
    files = ArchiveFiles(spark, path)
    manifest = _manifest_before(files, horizon)
    check_history(manifest, store, files.directory)
    archived = _read(spark, files, [one.name for one in manifest.increments]).where("version IS NOT NULL")
    if types:
        archived = archived.where(sql.col("aggregate_root_type").isin(list(types)))
    # By position, whose index leads to what is new; in the order of aggregates all there is would be read for it.
    tail = events(spark, horizon=horizon, after=manifest.horizon, types=types, order=POSITION)
    archived = with_corrections(spark, archived.select(*SCHEMA.names), store)
    both = archived.union(tail.select(*SCHEMA.names))
    tasks = conf().spark_database_tasks  # those that use what is read write to the database
    parts = both.repartition("aggregate_root_id") if tasks is None else both.repartition(tasks, "aggregate_root_id")
    return parts.sortWithinPartitions("aggregate_root_id", "version")


def _manifest_before(files: ArchiveFiles, horizon: Positions) -> Manifest:
    """The newest one that has nothing beyond the horizon: an export may have gone on since that was taken."""
    newest = files.newest()
    if newest == EMPTY:
        raise ArchiveError(f"there is no archive in {files.root}; make one with: manage.py exportevents PATH")
    for manifest in files.manifests():
        if all(number in horizon and position <= horizon[number] for number, position in manifest.horizon.items()):
            return manifest
    raise ArchiveMismatch(
        f"{files.directory} goes up to {text_of(newest.horizon)}, which is beyond the horizon {text_of(horizon)} of "
        "this job: was the database restored? else take a new horizon"
    )
