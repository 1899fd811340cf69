"""Writing rows of the archive by bucket, and reading them.

Each file of an increment has the rows of one type and one range of buckets, sorted by (bucket, aggregate root id,
version). So some buckets are found in some directories, and in some pages of the files there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from enode_django.eventstore.buckets import BUCKETS
from enode_django.jobs.progress import Report
from enode_django.spark.archive_files import INCREMENT, ArchiveFiles
from enode_django.spark.batches import SCHEMA
from enode_django.spark.decoding import ARCHIVE_DDL, ARCHIVE_NAMES, READ_DDL, decoded
from enode_django.spark.layout import bucket_ranges, labels_meeting
from enode_django.spark.manifests import Increment, Known
from enode_django.spark.progress import with_progress

TYPE, BUCKETS_COLUMN = "aggregate_root_type", "buckets"
_COMPRESSION = "zstd"
_ROW_GROUP_BYTES = 16 * 1024 * 1024
"""Small, so that a task that needs some of a file's buckets need not read the whole file."""
_TIMES = "spark.sql.parquet.outputTimestampType"
_UNIONS = "spark.sql.unionOutputPartitioning"
_PART = "part"


class Written(NamedTuple):
    """The contents of a directory. ``known`` is a stream of each shard, as in a manifest."""

    rows: int
    refusals: int
    known: Known
    files: Sequence[str]
    bytes: int


def with_columns(stored: DataFrame, *, json: bool) -> DataFrame:
    """Return event streams with all columns of the archive but `BUCKETS_COLUMN`."""
    return stored.select(*SCHEMA.names).mapInArrow(partial(decoded, json=json), ARCHIVE_DDL)


def write(rows: DataFrame, files: ArchiveFiles, increment: str, ranges: int, report: Report) -> None:
    """Write rows with the columns of `with_columns` to a new increment, in ``ranges`` ranges of buckets. Blocks."""
    spark = rows.sparkSession
    # Neither column may have nulls: Spark would replace them and sort again, which would undo the order.
    first, width = sql.shiftleft(_PART, _bits(ranges)), BUCKETS // ranges
    labelled = (
        rows.withColumn(TYPE, sql.coalesce(TYPE, sql.lit("")))
        .withColumn(_PART, sql.shiftright("bucket", _bits(ranges)))
        .withColumn(BUCKETS_COLUMN, sql.format_string("%04d-%04d", first, first + (width - 1)))
    )
    # By the part itself: by its hash, some tasks would get several parts and others none.
    ordered = labelled.repartitionById(ranges, _PART).sortWithinPartitions(
        TYPE, BUCKETS_COLUMN, "bucket", "aggregate_root_id", "version"
    )
    # Few other programs read Spark's own type for times, and the writer has no option for it.
    with _set(spark, _TIMES, "TIMESTAMP_MICROS"):
        writer = ordered.drop(_PART).write.partitionBy(TYPE, BUCKETS_COLUMN).mode("errorifexists")
        writer = writer.option("compression", _COMPRESSION).option("parquet.block.size", _ROW_GROUP_BYTES)
        with_progress(spark, "writing", partial(writer.parquet, files.uri_of(increment)), report)


def _bits(ranges: int) -> int:
    """Return the number of low bits of a bucket that are its place in its range."""
    return (BUCKETS // ranges).bit_length() - 1


@contextlib.contextmanager
def _set(spark: SparkSession, name: str, value: str) -> Iterator[None]:
    before = spark.conf.get(name)
    spark.conf.set(name, value)
    try:
        yield
    finally:
        with contextlib.suppress(Exception):  # the session may have ended
            spark.conf.set(name, str(before))


def written(spark: SparkSession, files: ArchiveFiles, increment: str, report: Report) -> Written:
    """Read an increment that was written, and return its contents. Blocks."""
    stream = sql.when(sql.col("version").isNotNull(), sql.struct("created_at", "command_id", "aggregate_root_id"))
    counted = (
        _parquet(spark, files, [increment], f"{READ_DDL}, {BUCKETS_COLUMN} STRING")
        .groupBy("shard")
        .agg(sql.count("*").alias("rows"), sql.count("version").alias("streams"), sql.max(stream).alias("last"))
    )
    figures = with_progress(spark, "counting", counted.collect, report)
    rows, streams = sum(one["rows"] for one in figures), sum(one["streams"] for one in figures)
    known = {one["shard"]: (one["last"]["command_id"], one["last"]["aggregate_root_id"])
             for one in figures if one["last"] is not None}  # fmt: skip
    found = files.files_of(increment)
    return Written(rows, rows - streams, known, list(found), sum(found.values()))


def rows_by_bucket(spark: SparkSession, files: ArchiveFiles, increments: Sequence[Increment]) -> DataFrame:
    """Read increments, with the columns of `with_columns` and `BUCKETS_COLUMN`."""
    names = [one.name for one in increments]
    # Spark puts the columns of directories last.
    return _parquet(spark, files, names, f"{READ_DDL}, {BUCKETS_COLUMN} STRING").select(*ARCHIVE_NAMES, BUCKETS_COLUMN)


def _parquet(spark: SparkSession, files: ArchiveFiles, increments: Sequence[str], ddl: str) -> DataFrame:
    if not increments:
        return spark.createDataFrame([], ddl)
    reader = spark.read.schema(f"{ddl}, {INCREMENT} STRING").option("basePath", files.directory)
    return reader.parquet(*map(files.uri_of, increments))


def label_in(file: str) -> str:
    """Return the range of buckets of a file of an increment, by its path.

    >>> label_in("aggregate_root_type=bank.Account/buckets=0000-0511/part-0.parquet")
    '0000-0511'
    """
    return file.split("/")[1].removeprefix(f"{BUCKETS_COLUMN}=")


@contextlib.contextmanager
def bucket_branches(rows: DataFrame, labels: Collection[str], ranges: int) -> Iterator[DataFrame]:
    """Yield rows that are laid out by bucket in ``ranges`` partitions, each with exactly the rows of a range of
    buckets, without a shuffle. ``labels`` are those of the directories. Spark must plan the frame before the block
    ends."""
    branches = [
        rows.where(sql.col(BUCKETS_COLUMN).isin(labels_meeting(labels, one)) & sql.col("bucket").between(*one))
        .select(*SCHEMA.names)
        .coalesce(1)
        for one in bucket_ranges(ranges)
    ]
    # With this property Spark would merge the single partitions of all branches into one.
    with _set(rows.sparkSession, _UNIONS, "false"):
        yield _union(branches)


def _union(frames: Sequence[DataFrame]) -> DataFrame:
    """Unite frames in pairs: one after the other, Spark would analyse the first ones again for each further one."""
    while len(frames) > 1:
        pairs = zip(frames[::2], frames[1::2], strict=True)
        frames = [one.union(other) for one, other in pairs]
    return frames[0]
