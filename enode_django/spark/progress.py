"""Waiting for Spark while reporting its progress."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import suppress
from typing import Any, TypeVar

from pyspark.sql import SparkSession

from enode_django.concurrency import stopping
from enode_django.concurrency.threads import join_threads, start_thread
from enode_django.jobs.progress import Report, figures_of

Value = TypeVar("Value")
TELL_EVERY = 1.0
LOOK_EVERY = 0.2
"""Seconds between checks whether the work has to stop."""
JOIN_SECONDS = 15.0


def with_progress(
    spark: SparkSession,
    stage: str,
    action: Callable[[], Value],
    report: Report,
    *,
    streams: Callable[[], int] | None = None,
) -> Value:
    """Run ``action``, which uses Spark, in another thread, and return its value. Blocks.

    ``report`` is called every second with ``tasks``, the number of ``done`` ones, and ``left``, the estimated seconds
    for the rest (None: unknown); if ``streams`` counts them, also with ``streams`` and ``a_second``. An error of
    ``report``, or one that ends the surrounding work (see `enode_django.concurrency.stopping`), cancels Spark's jobs
    and is raised.
    """
    group = f"enode-{uuid.uuid4()}"

    def act() -> Value:
        make_active(spark)
        spark.sparkContext.setJobGroup(group, f"enode_django: {stage}", interruptOnCancel=True)
        return action()

    began = time.monotonic()
    thread, outcome = in_thread(f"spark-{stage}", act)
    try:
        return _wait(outcome, lambda: report(stage, **_figures(spark, group, began, streams)))
    except BaseException:
        _cancel(spark, group, thread)
        raise
    finally:
        join_threads([thread], JOIN_SECONDS)


def in_thread(name: str, call: Callable[[], Value]) -> tuple[threading.Thread, Future[Value]]:
    """Make the call in another thread. Return the thread and the future outcome."""
    outcome: Future[Value] = Future()

    def run() -> None:
        try:
            outcome.set_result(call())
        except BaseException as error:
            outcome.set_exception(error)

    return start_thread(name, run), outcome


def _wait(outcome: Future[Value], tell: Callable[[], None]) -> Value:
    told = time.monotonic()
    while not wait([outcome], min(TELL_EVERY, LOOK_EVERY)).done:
        stopping.check()
        if time.monotonic() >= told + TELL_EVERY:
            told = time.monotonic()
            tell()
    return outcome.result()


def _figures(spark: SparkSession, group: str, began: float, streams: Callable[[], int] | None) -> dict[str, int | None]:
    done, tasks = _tasks(spark, group)
    return figures_of(tasks, done, time.monotonic() - began, None if streams is None else streams())


def _cancel(spark: SparkSession, group: str, thread: threading.Thread) -> None:
    """Cancel the jobs of a group until the thread that begins them has ended, for up to `JOIN_SECONDS`."""
    deadline = time.monotonic() + JOIN_SECONDS
    while thread.is_alive() and time.monotonic() < deadline:
        with suppress(Exception):  # a context that does not answer has ended
            spark.sparkContext.cancelJobGroup(group)
        thread.join(LOOK_EVERY)


def make_active(spark: SparkSession) -> None:
    """Make the session active in this thread: Spark looks up settings in the thread's session."""
    jvm: Any = spark.sparkContext._jvm
    SparkSession._get_j_spark_session_class(jvm).setActiveSession(spark._jsparkSession)


def _tasks(spark: SparkSession, group: str) -> tuple[int, int]:
    """Return the numbers of done and of all tasks in the stages known so far."""
    tracker = spark.sparkContext.statusTracker()
    jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group)]
    stages = [tracker.getStageInfo(stage) for job in jobs if job is not None for stage in job.stageIds]
    known = [stage for stage in stages if stage is not None]
    return sum(stage.numCompletedTasks for stage in known), sum(stage.numTasks for stage in known)
