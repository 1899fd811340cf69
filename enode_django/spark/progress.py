"""Waiting for Spark, and telling how far it is meanwhile."""

from __future__ import annotations

import queue
import time
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from enode_django.concurrency.threads import join_threads, start_thread

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from enode_django.reporting import Report

Value = TypeVar("Value")
TELL_EVERY = 1.0
JOIN_SECONDS = 30.0


def with_progress(
    spark: SparkSession, stage: str, action: Callable[[], Value], report: Report, *, streams: Callable[[], int]
) -> Value:
    """The value of ``action``, which makes Spark work; ``report`` is told of it every second: ``tasks``, how many are
    ``done``, the ``streams`` of these, ``a_second``, and ``left``, the seconds that the rest will take if it goes on
    like that.

    Blocks. What ``report`` raises stops the work in Spark, and is raised.
    """
    group = f"enode-{uuid.uuid4()}"
    outcome: queue.SimpleQueue[tuple[Value | None, BaseException | None]] = queue.SimpleQueue()

    def act() -> None:
        spark.sparkContext.setJobGroup(group, f"enode_django: {stage}", interruptOnCancel=True)
        try:
            outcome.put((action(), None))
        except BaseException as error:
            outcome.put((None, error))

    began = time.monotonic()
    thread = start_thread(f"spark-{stage}", act)
    try:
        return _wait(outcome, lambda: report(stage, **_figures(spark, group, began, streams())))
    except BaseException:
        spark.sparkContext.cancelJobGroup(group)
        raise
    finally:
        join_threads([thread], JOIN_SECONDS)


def _wait(outcome: queue.SimpleQueue[tuple[Value | None, BaseException | None]], tell: Callable[[], None]) -> Value:
    while True:
        try:
            value, error = outcome.get(timeout=TELL_EVERY)
        except queue.Empty:
            tell()
            continue
        if error is not None:
            raise error
        return value  # type: ignore[return-value]


def _figures(spark: SparkSession, group: str, began: float, streams: int) -> dict[str, int | None]:
    seconds = time.monotonic() - began
    done, tasks = _tasks(spark, group)
    left = round(seconds * (tasks - done) / done) if done else None
    return {"tasks": tasks, "done": done, "streams": streams, "a_second": round(streams / seconds), "left": left}


def _tasks(spark: SparkSession, group: str) -> tuple[int, int]:
    """Those that are done, and all, of the stages that are known by now."""
    tracker = spark.sparkContext.statusTracker()
    jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group)]
    stages = [tracker.getStageInfo(stage) for job in jobs if job is not None for stage in job.stageIds]
    known = [stage for stage in stages if stage is not None]
    return sum(stage.numCompletedTasks for stage in known), sum(stage.numTasks for stage in known)
