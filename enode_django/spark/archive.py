"""The archive: all stored rows as Parquet files, to be read instead of the database.

Each export adds the rows between the horizon of the previous one and its own. Positions order rows without gaps, so a
row is in the archive once, regardless of concurrent writes. Many increments are merged.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, NamedTuple

from pyspark.sql import DataFrame, SparkSession

from enode_django.conf import conf
from enode_django.eventstore.base import EventStore
from enode_django.eventstore.dividing import position_bounds, size
from enode_django.eventstore.positions import BEGINNING
from enode_django.exceptions import ArchiveBusy, ArchiveError, ArchiveMismatch
from enode_django.jobs.progress import Report
from enode_django.rebuilding.engine import postgres_shards
from enode_django.runtime import make_store
from enode_django.spark.archive_files import ArchiveFiles
from enode_django.spark.archive_rows import BUCKETS_COLUMN, rows_by_bucket, with_columns, write, written
from enode_django.spark.compaction import begin_of_merge
from enode_django.spark.hadoop_files import HadoopFiles
from enode_django.spark.holding import held
from enode_django.spark.horizons import Positions, horizon_of, text_of
from enode_django.spark.layout import count_ranges
from enode_django.spark.manifests import Increment, Known, Manifest
from enode_django.spark.options import POSITION
from enode_django.spark.source import events

STORED_BYTES = 128 * 1024 * 1024
"""The most bytes of the table for one range of buckets, which a task sorts and writes to one file of each type."""
FILE_BYTES = 32 * 1024 * 1024
"""The most bytes of merged files for one range of buckets."""
_LEAST = 8
"""There are further ranges, up to Spark's parallelism, if each has at least an eighth of the most bytes."""
READ_FOR = timedelta(days=1)
"""Replaced files are kept for that long, or for the time limit of jobs if that is longer: jobs may still read them."""
_SAMPLE = 100
"""The number of parts of a shard. The size of new rows is estimated in such parts."""


class ArchiveRun(NamedTuple):
    """The values that all steps of a run use."""

    spark: SparkSession
    files: ArchiveFiles
    store: EventStore
    report: Report


def export_events(
    spark: SparkSession, path: str, report: Report, *, anew: bool = False, json: bool = False, compact: bool = False
) -> dict[str, Any]:
    """Add the new rows of the settings' event store to the archive at ``path``, a directory or URI that Spark can write
    to. Then merge increments if there are many, or all of them with ``compact``. Blocks.

    ``anew`` begins another archive beside the existing one. ``json`` adds the rows as JSON, in this export and all
    later ones. Returns ``rows`` and ``refusals`` (the numbers added), ``increment`` (its name, None if nothing was
    new), ``merged`` (the number of increments merged), ``increments`` (the number now), ``history`` and ``horizon``.
    Raises `ArchiveBusy`, `ArchiveMismatch` if the store was restored or is another one, `ArchiveError`, and Spark's
    error for a failed job; the archive is then unchanged, or has the new rows and is not merged.
    """
    store = make_store()
    files = ArchiveFiles(HadoopFiles(spark, path), anew=anew)
    run = ArchiveRun(spark, files, store, report)
    with held(store.shards[0].name, f"archive {files.root}") as is_ours:
        if not is_ours:
            raise ArchiveBusy(f"another export to {files.root} is running; wait until it has ended")
        before = files.newest()
        check_history(before, store, files.directory)
        before, removed = files.clean(before, _oldest_job(), partial(is_unused, store))
        report("cleaning", removed=len(removed))
        added = _added(run, before, before.json or json)
        after = _merged(run, added, json=added.json or json, compact=compact)
        new = added.increments[len(before.increments) :]
        return {
            "rows": sum(one.rows for one in new),
            "refusals": sum(one.refusals for one in new),
            "increment": new[0].name if new else None,
            "merged": len(added.increments) - len(after.increments) + 1 if after is not added else 0,
            "increments": len(after.increments),
            "history": files.history,
            "horizon": text_of(after.horizon),
        }


def _oldest_job() -> datetime:
    """Return the earliest time at which a running job may have begun."""
    return datetime.now(UTC) - max(READ_FOR, timedelta(seconds=conf().JOBS.TIME_LIMIT))


def _added(run: ArchiveRun, manifest: Manifest, json: bool) -> Manifest:
    """Add the new rows, and return the current manifest: the given one if nothing is new."""
    horizon = horizon_of(run.store)
    if not has_new(run.store, manifest.horizon, horizon):
        return manifest
    name = run.files.new_increment(manifest)
    run.report("writing", increment=name)
    increment, known = write_new(run, name, manifest.horizon, horizon, json=json)
    if not increment.rows:  # refusals may have been pruned meanwhile
        run.files.remove(name)
        return manifest
    added = manifest.followed_by(increment, known)
    run.files.add(added)
    return added


def has_new(store: EventStore, after: Positions, horizon: Positions) -> bool:
    """Return True if the store has rows at positions p with after <= p < horizon. This costs one query for each shard,
    while a Spark job takes seconds."""
    return any(
        entry.position < horizon[shard.number]
        for shard in store.shards
        for entry in shard.feed(after.get(shard.number, BEGINNING), limit=1).entries
    )


def write_new(
    run: ArchiveRun, name: str, after: Positions, horizon: Positions, *, json: bool = False, types: Sequence[str] = ()
) -> tuple[Increment, Known]:
    """Write the rows of the store at positions p with after <= p < horizon to a new increment. ``types`` are names of
    aggregate classes (none: all)."""
    # By position, whose index finds the new rows: by aggregate, the whole store would be read.
    stored = events(run.spark, horizon=horizon, after=after, types=types, order=POSITION, refusals=True)
    bytes = sum(_bytes_between(shard.alias, shard.number, after, horizon) for shard in postgres_shards(run.store))
    return _written(run, with_columns(stored, json=json), Increment(name, after, horizon, 0, 0, "", [], json=json),
                    _ranges(run.spark, bytes, STORED_BYTES))  # fmt: skip


def _bytes_between(alias: str, shard: int, after: Positions, horizon: Positions) -> int:
    """Estimate the bytes of the rows between two positions in the table."""
    if shard not in after:
        return size(alias)
    bounds = position_bounds(alias, _SAMPLE, after[shard].transaction, horizon[shard].transaction)
    parts = len(bounds) + 1
    return size(alias) * parts // _SAMPLE


def _ranges(spark: SparkSession, bytes: int, most: int) -> int:
    return count_ranges(bytes, most=most, least=most // _LEAST, wanted=spark.sparkContext.defaultParallelism)


def _written(run: ArchiveRun, rows: DataFrame, increment: Increment, ranges: int) -> tuple[Increment, Known]:
    write(rows, run.files, increment.name, ranges, run.report)
    run.report("counting", increment=increment.name)
    found = written(run.spark, run.files, increment.name, run.report)
    made_at = datetime.now(UTC).isoformat()
    return increment._replace(
        rows=found.rows, refusals=found.refusals, made_at=made_at, files=found.files, bytes=found.bytes
    ), found.known


def _merged(run: ArchiveRun, manifest: Manifest, *, json: bool, compact: bool) -> Manifest:
    """Merge increments if that is due, and return the current manifest: the given one if not."""
    begin = begin_of_merge([one.rows for one in manifest.increments])
    if compact:
        begin = None if _is_compact(manifest, json) else 0
    if begin is None:
        return manifest
    merged = manifest.increments[begin:]
    name = run.files.new_increment(manifest)
    run.report("merging", increments=len(merged), into=name)
    bytes = sum(one.bytes for one in merged)
    planned = Increment(name, merged[0].after, merged[-1].horizon, 0, 0, "", [], json=json)
    rows = _rows_of(run, merged, json)
    increment, _ = _written(run, rows, planned, _ranges(run.spark, bytes, FILE_BYTES))
    _check_complete(increment, merged)
    after = manifest.merged(increment, datetime.now(UTC), _oldest_job())
    run.files.add(after)
    return after


def _is_compact(manifest: Manifest, json: bool) -> bool:
    return len(manifest.increments) < 2 and all(_is_as_wanted(one, json) for one in manifest.increments)


def _is_as_wanted(increment: Increment, json: bool) -> bool:
    return increment.json or not json


def _rows_of(run: ArchiveRun, increments: Sequence[Increment], json: bool) -> DataFrame:
    """Read increments with the columns that `write` takes. Only those that lack columns are decoded."""
    as_wanted = [one for one in increments if _is_as_wanted(one, json)]
    lacking = [one for one in increments if not _is_as_wanted(one, json)]
    rows = rows_by_bucket(run.spark, run.files, as_wanted).drop(BUCKETS_COLUMN)
    if not lacking:
        return rows
    return rows.union(with_columns(rows_by_bucket(run.spark, run.files, lacking), json=json))


def _check_complete(increment: Increment, merged: Sequence[Increment]) -> None:
    expected = sum(one.rows for one in merged), sum(one.refusals for one in merged)
    if (increment.rows, increment.refusals) != expected:
        raise ArchiveError(
            f"{increment.rows} rows with {increment.refusals} refusals were read from the increments "
            f"{[one.name for one in merged]}, which should have {expected[0]} with {expected[1]}: files were changed "
            "or are missing; restore them, or begin another archive with --anew"
        )


def is_unused(store: EventStore, tail: str) -> bool:
    """Return True if no job reads this tail."""
    with tail_held(store, tail) as is_free:
        return is_free


def tail_held(store: EventStore, tail: str) -> AbstractContextManager[bool]:
    """Hold a tail, as `held` does, while a job reads it. Its name is unique, and an export may know the archive by
    another path."""
    return held(store.shards[0].name, f"archive {tail}")


def check_history(manifest: Manifest, store: EventStore, directory: str) -> None:
    """Raise `ArchiveMismatch` unless the store continues the archive: each shard of the archive exists, is in the same
    generation, has reached the horizon, and has the ``known`` row."""
    shards = {shard.number: shard for shard in store.shards}
    if manifest.horizon.keys() - shards.keys():
        raise ArchiveMismatch(f"{directory} has shards {sorted(manifest.horizon)}, the event store {sorted(shards)}")
    for number, horizon in manifest.horizon.items():
        position = shards[number].position()
        key = manifest.known.get(number)
        is_known = key is None or bool(shards[number].find([key]))
        if position.generation != horizon.generation or position < horizon or not is_known:
            raise ArchiveMismatch(
                f"{directory} ends at position {horizon} of shard {number}, which has come to {position} by another "
                "way: it was restored, moved, or is another database. What is in the archive may never have happened "
                "there; begin a new one beside it with --anew"
            )
