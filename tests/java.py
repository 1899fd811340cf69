"""Options for short-lived Java processes, and an archive of classes that halves the processor time of their start.

``python -m tests.java`` makes the archive. Java ignores an archive of another Java version or other libraries. See
"Class Data Sharing" in the documentation of the JDK.
"""

from __future__ import annotations

import sys
from pathlib import Path

QUICK_TO_START = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
ARCHIVE = Path(sys.prefix, "spark.jsa")
INTERPRETED = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
"""To compile generated code for each query takes more time than to interpret it for a few rows. `test_cluster` runs the
jobs with generated code."""


def quick_options() -> str:
    """Return the options for a Java process of Spark: a driver, an executor, or a master or worker of a cluster. Java
    compares the files on their class paths, not the paths, so a ``SPARK_HOME`` of symbolic links works, too."""
    return f"{QUICK_TO_START} -XX:SharedArchiveFile={ARCHIVE}" if ARCHIVE.exists() else QUICK_TO_START


def main() -> None:
    """Run a session that loads what most sessions of the tests load, and archive its classes."""
    from pyspark.sql import SparkSession

    options = f"{QUICK_TO_START} -XX:ArchiveClassesAtExit={ARCHIVE} -Xlog:disable"
    builder = SparkSession.builder.master("local[2]").config("spark.driver.extraJavaOptions", options)
    spark = builder.config("spark.ui.enabled", False).config("spark.driver.memory", "512m").getOrCreate()
    spark.range(1_000).selectExpr("id", "id % 7 as rest").groupBy("rest").count().collect()
    spark.sparkContext.parallelize(range(100), 2).map(str).collect()
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    spark.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()  # this ends Java, which then writes the archive
    gateway.proc.wait()


if __name__ == "__main__":
    main()
