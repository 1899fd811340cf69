"""Options for Java processes that end soon, and an archive of classes that halves the processor time of their start.

``python -m tests.java`` makes the archive. Java ignores one that another Java or other libraries have made. See "Class
Data Sharing" in the documentation of the JDK.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.datasource import DataSource

QUICK_TO_START = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
ARCHIVE = Path(sys.prefix, "spark.jsa")


SELDOM = (
    "org.apache.spark.deploy.master.Master",
    "org.apache.spark.deploy.worker.Worker",
    "org.apache.spark.deploy.worker.ExecutorRunner",
    "org.apache.spark.executor.CoarseGrainedExecutorBackend",
    "org.apache.spark.scheduler.cluster.StandaloneSchedulerBackend",
)
"""Begin what a cluster has besides; they are loaded, and not run."""


def quick_options() -> str:
    """Return the options for a Java process of Spark: a driver, an executor, or a master or worker of a cluster. Their
    class paths lead to the same files, by which Java judges."""
    return f"{QUICK_TO_START} -XX:SharedArchiveFile={ARCHIVE}" if ARCHIVE.exists() else QUICK_TO_START


def main() -> None:
    """Run a session that loads what most sessions of the tests load, and archive its classes."""
    from pyspark.sql import SparkSession

    options = f"{QUICK_TO_START} -XX:ArchiveClassesAtExit={ARCHIVE} -Xlog:disable"
    builder = SparkSession.builder.master("local[2]").config("spark.driver.extraJavaOptions", options)
    with tempfile.TemporaryDirectory() as directory:
        builder = builder.config("spark.eventLog.enabled", True).config("spark.eventLog.dir", f"file://{directory}")
        builder = builder.config("spark.sql.execution.arrow.pyspark.enabled", True)
        builder = builder.config("spark.sql.shuffle.partitions", 2).config("spark.eventLog.compress", False)
        spark = builder.config("spark.ui.enabled", False).config("spark.driver.memory", "512m").getOrCreate()
        gateway: Any = spark.sparkContext._gateway
        work(spark, directory)
        for name in SELDOM:
            gateway.jvm.java.lang.Class.forName(name)
        spark.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()  # Java ends by that, and writes the archive
    gateway.proc.wait()


def work(spark: SparkSession, directory: str) -> None:
    """Ask of Spark what the batch jobs do: Python data sources and functions, Parquet and JSON, joins, sorts, files."""
    spark.sparkContext.setJobGroup("warm", "warm", interruptOnCancel=True)
    spark.sparkContext.parallelize(range(100), 2).map(str).collect()
    spark.dataSource.register(numbers())
    columns = "id BIGINT, name STRING, data BINARY, at TIMESTAMP"
    rows = spark.read.format("numbers").load().filter("id < 50").mapInArrow(made, columns)
    written = divided(rows).write.partitionBy("kind", "part")
    written.option("compression", "zstd").parquet(f"{directory}/parquet")
    divided(rows).write.partitionBy("kind", "part").json(f"{directory}/json")
    stored = spark.read.schema(f"{columns}, kind STRING, part INT").parquet(f"{directory}/parquet")
    for found in (joined(spark, stored), aggregated(stored), spark.read.json(f"{directory}/json")):
        found.collect()
        found.toPandas()
    jvm: Any = spark.sparkContext._jvm
    path = jvm.org.apache.hadoop.fs.Path(f"file://{directory}/file")
    files = path.getFileSystem(spark.sparkContext._jsc.hadoopConfiguration())
    files.create(path).close()
    jvm.org.apache.commons.io.IOUtils.toString(files.open(path), "utf-8")
    files.listStatus(path.getParent())
    files.delete(path, True)


def numbers() -> type[DataSource]:
    from pyspark.sql.datasource import DataSource, DataSourceReader

    class Reader(DataSourceReader):
        def read(self, partition: object) -> Iterator[tuple[int]]:
            return ((number,) for number in range(100))

    class Numbers(DataSource):
        @classmethod
        def name(cls) -> str:
            return "numbers"

        def schema(self) -> str:
            return "id BIGINT"

        def reader(self, schema: object) -> DataSourceReader:
            return Reader()

    return Numbers


def made(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    from datetime import UTC, datetime

    import pyarrow as pa

    for batch in batches:
        ids = batch.column(0).to_pylist()
        at, kind = [datetime.now(UTC)] * len(ids), pa.timestamp("us", tz="UTC")
        columns = [
            pa.array(ids, pa.int64()),
            pa.array(map(str, ids)),
            pa.array([b"data"] * len(ids)),
            pa.array(at, kind),
        ]
        yield pa.record_batch(columns, ["id", "name", "data", "at"])


def divided(rows: DataFrame) -> DataFrame:
    from pyspark.sql import functions as sql

    parts = rows.withColumn("part", sql.shiftright("id", 4)).repartition(2, "part")
    kinds = parts.withColumn("kind", sql.coalesce(sql.format_string("%04d", sql.col("id") % 2), sql.lit("")))
    return kinds.sortWithinPartitions("kind", "part", "name")


def joined(spark: SparkSession, stored: DataFrame) -> DataFrame:
    from pyspark.sql import functions as sql

    others = sql.broadcast(spark.createDataFrame([(1, bytearray(b"other"))], "id BIGINT, other BINARY"))
    found = stored.where(sql.col("kind").isin(["0000"]) & sql.col("part").between(0, 2)).join(others, "id", "left")
    return found.withColumn("data", sql.coalesce("other", "data")).select(*stored.columns).union(stored)


def aggregated(stored: DataFrame) -> DataFrame:
    from pyspark.sql import functions as sql

    last = sql.max(sql.when(sql.col("id").isNotNull(), sql.struct("at", "id")))
    return stored.groupBy("kind").agg(sql.count("*").alias("rows"), sql.count("id").alias("ids"), last).orderBy("kind")


if __name__ == "__main__":
    main()
