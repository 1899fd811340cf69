"""Spark's work, while somebody waits for it."""

from __future__ import annotations

import threading
import time

import pytest
from pyspark.sql import SparkSession

from enode_django.spark.progress import with_progress


class _Enough(Exception):
    pass


def test_an_error_of_the_report_cancels_the_running_job_and_those_that_follow(spark: SparkSession) -> None:
    begun, ended = [], threading.Event()

    def stall(number: int) -> int:
        time.sleep(600)
        return number

    def action() -> None:
        """Goes on after a job that was cancelled."""
        try:
            for job in range(3):
                begun.append(job)
                try:
                    spark.sparkContext.parallelize([job], 1).map(stall).collect()
                except Exception:
                    continue
        finally:
            ended.set()

    def report(stage: str, /, **figures: object) -> None:
        if figures["tasks"]:  # the job is running
            raise _Enough

    with pytest.raises(_Enough):
        with_progress(spark, "stalls", action, report)
    assert ended.is_set()
    assert begun == [0, 1, 2]
