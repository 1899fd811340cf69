"""Spark's work, while somebody waits for it."""

from __future__ import annotations

import os
import signal
import threading
import time
from types import FrameType

import pytest
from pyspark.sql import SparkSession

from enode_django.spark.progress import LOOK_EVERY, with_progress


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


def test_a_signal_that_is_handled_for_longer_than_a_look_ends_no_looks(spark: SparkSession) -> None:
    handled, seen = threading.Event(), threading.Event()

    def handle(number: int, frame: FrameType | None) -> None:
        time.sleep(3 * LOOK_EVERY)
        handled.set()

    def report(stage: str, /, **figures: object) -> None:
        if handled.is_set():
            seen.set()
            raise _Enough

    before = signal.signal(signal.SIGUSR1, handle)
    sending = threading.Timer(LOOK_EVERY / 2, os.kill, (os.getpid(), signal.SIGUSR1))
    try:
        sending.start()
        with pytest.raises(_Enough):
            with_progress(spark, "waits", lambda: seen.wait(20), report)
    finally:
        sending.join()
        signal.signal(signal.SIGUSR1, before)
