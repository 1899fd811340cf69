"""What the long jobs do: count, in Python or in Spark."""

from __future__ import annotations

import os
import time
from typing import Any

from enode_django.jobs import RunningJob


def compute(job: RunningJob, *, engine: str) -> None:
    """Its progress says which process works, and what the one is that ends with it."""
    if engine == "spark":
        compute_in_spark(job)
    step = 0
    while True:
        job.report("counting", step=(step := step + 1), process=os.getpid())
        time.sleep(0.02)


def compute_in_spark(job: RunningJob) -> None:
    """Waits in Java, without ever looking whether it is to stop."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    builder: Any = SparkSession.builder
    builder = builder.master("local[1]").config("spark.ui.enabled", "false").config("spark.driver.host", "127.0.0.1")
    spark = builder.getOrCreate()
    job.on_stop(spark.stop)
    gateway: Any = SparkContext._gateway
    job.report("computing", java=gateway.proc.pid, process=os.getpid())
    spark.sparkContext.parallelize([600], 1).foreach(time.sleep)
