"""Helpers of commands that run jobs on Spark. PySpark is imported only when a job starts."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from django.core.management.base import CommandError, CommandParser, OutputWrapper

from enode_django.jobs.progress import Report
from enode_django.jobs.running import RunningJob, running_job
from enode_django.management.errors import errors_shown

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TELL_EVERY = 2.0
"""Seconds."""


def add_master(parser: CommandParser) -> None:
    parser.add_argument("--master", metavar="URL", help="Spark's master; by default SPARK['MASTER'] of the settings")


@contextmanager
def job_on_spark(kind: str, name: str, master: str | None) -> Iterator[tuple[SparkSession, RunningJob]]:
    """Run the block as a job on Spark. Errors of this package, the databases and Spark become a `CommandError`."""
    with errors_shown():
        from enode_django.spark.session import spark_session  # raises SparkUnavailable without PySpark

        try:
            with running_job(kind, name) as job, spark_session(master) as spark:
                yield spark, job
        except Exception as error:
            if type(error).__module__.startswith(("pyspark.", "py4j.")):
                raise CommandError(f"the Spark job failed: {error}") from error
            raise


class Lines:
    """A report that also writes a line: when a stage begins, and at most every `TELL_EVERY` seconds within it."""

    def __init__(self, out: OutputWrapper, report: Report) -> None:
        self._out = out
        self._report = report
        self._stage = ""
        self._next = 0.0

    def __call__(self, stage: str, /, **figures: object) -> None:
        self._report(stage, **figures)
        if stage != self._stage or time.monotonic() >= self._next:
            told = ", ".join(f"{name} {value}" for name, value in figures.items() if value is not None)
            self._out.write(f"{stage}: {told}" if told else stage)
            self._stage, self._next = stage, time.monotonic() + TELL_EVERY
