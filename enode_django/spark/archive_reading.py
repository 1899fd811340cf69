"""Reading the archive together with the newer rows of the store, for jobs that need whole aggregates in order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from enode_django.eventstore.base import EventStore
from enode_django.exceptions import ArchiveError, ArchiveMismatch
from enode_django.jobs.progress import Report, silent
from enode_django.spark.archive import ArchiveRun, check_history, has_new, tail_held, write_new
from enode_django.spark.archive_corrections import with_corrections
from enode_django.spark.archive_files import ArchiveFiles
from enode_django.spark.archive_rows import TYPE, bucket_branches, label_in, rows_by_bucket
from enode_django.spark.hadoop_files import HadoopFiles
from enode_django.spark.horizons import Positions, text_of
from enode_django.spark.layout import count_ranges
from enode_django.spark.manifests import Increment, Manifest
from enode_django.spark.reading import limited

__all__ = ["archived_events"]

TASKS_PER_CORE = 4
"""Several, so that the last task does not keep one core busy for long while the others idle."""
TASK_BYTES, LEAST_TASK_BYTES = 32 * 1024 * 1024, 256 * 1024
"""The bytes of files for one task: at most some seconds' work, at least enough to be worth a task."""


@contextmanager
def archived_events(
    spark: SparkSession,
    path: str,
    store: EventStore,
    horizon: Positions,
    types: Sequence[str] = (),
    report: Report = silent,
) -> Iterator[DataFrame]:
    """Yield a frame of the streams below ``horizon``, as `enode_django.spark.source.events` does: from the archive at
    ``path``, and newer ones from the database. ``types`` are names of aggregate classes (none: all). The frame can be
    read until the block ends.

    Corrections made before or after archiving are applied. All streams of an aggregate are in one partition, sorted by
    (aggregate root id, version); refusals are left out. Increments need no shuffle. Rows that are not in the
    archive are written beside it, and deleted at the end of the block. Blocks while they are written. Raises
    `ArchiveError` if there is no archive or files of it are missing, and `ArchiveMismatch` as `export_events` does.

    For example::

        store = make_store()
        with spark_session() as spark, archived_events(spark, "/srv/archive", store, horizon_of(store)) as frame:
            print(frame.count())
    """
    files = ArchiveFiles(HadoopFiles(spark, path))
    manifest = _manifest_before(files, horizon)
    check_history(manifest, store, files.directory)
    files.check_files(manifest.increments)  # Spark reads whatever is in their directories
    with (
        _tail(ArchiveRun(spark, files, store, report), manifest, horizon, types) as tail,
        _whole_aggregates(spark, files, [*manifest.increments, *tail], types) as rows,
    ):
        corrected = with_corrections(spark, rows, store)
        yield limited(corrected.sortWithinPartitions("aggregate_root_id", "version"))


@contextmanager
def _tail(run: ArchiveRun, manifest: Manifest, horizon: Positions, types: Sequence[str]) -> Iterator[list[Increment]]:
    """Write the rows that are not in the archive to an increment that no manifest names, and delete it at the end."""
    if not has_new(run.store, manifest.horizon, horizon):
        yield []
        return
    name = run.files.new_tail()
    with tail_held(run.store, name):
        try:
            run.report("writing what is new", increment=name)
            increment, _ = write_new(run, name, manifest.horizon, horizon, types=types)
            yield [increment] if increment.rows else []
        finally:
            # The session may have ended; then the next export deletes it.
            with suppress(Exception):
                run.files.remove(name)


def _whole_aggregates(
    spark: SparkSession, files: ArchiveFiles, increments: Sequence[Increment], types: Sequence[str]
) -> AbstractContextManager[DataFrame]:
    """Yield a frame that has all streams of an aggregate in one partition."""
    rows = _wanted(rows_by_bucket(spark, files, increments), types)
    labels = {label_in(file) for one in increments for file in one.files}
    return bucket_branches(rows, labels, _tasks(spark, increments))


def _wanted(rows: DataFrame, types: Sequence[str]) -> DataFrame:
    streams = rows.where("version IS NOT NULL")
    return streams.where(sql.col(TYPE).isin(list(types))) if types else streams


def _tasks(spark: SparkSession, increments: Sequence[Increment]) -> int:
    bytes, cores = sum(one.bytes for one in increments), spark.sparkContext.defaultParallelism
    return count_ranges(bytes, most=TASK_BYTES, least=LEAST_TASK_BYTES, wanted=TASKS_PER_CORE * cores)


def _manifest_before(files: ArchiveFiles, horizon: Positions) -> Manifest:
    """Return the newest manifest without rows beyond the horizon: an export may have ended since that was taken."""
    newest = files.newest()
    if not newest.increments:
        raise ArchiveError(f"there is no archive in {files.root}; make one with: manage.py enode exportevents PATH")
    for manifest in files.manifests():
        if all(number in horizon and position <= horizon[number] for number, position in manifest.horizon.items()):
            return manifest
    raise ArchiveMismatch(
        f"{files.directory} goes up to {text_of(newest.horizon)}, which is beyond the horizon {text_of(horizon)} of "
        "this job: was the database restored? else take a new horizon"
    )
