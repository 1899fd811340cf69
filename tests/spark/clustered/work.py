"""Look at the executors, from within."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from enode_django.jobs.running import RunningJob  # executors import this before they have loaded the apps

COLUMNS = "pid bigint, file string, fingerprint string, settings string"


def seen(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the code and the settings that a task finds. ``pid`` is the daemon's. Each executor has one daemon."""
    from enode_django.spark.executors import task

    for _ in batches:
        with task():
            from django.conf import settings

            from enode_django.repository.fingerprint import fingerprint_of
            from sample_project.bank.domain import accounts

            fingerprint = fingerprint_of(accounts.BankAccount)
            yield pa.RecordBatch.from_pydict(
                {
                    "pid": [os.getppid()],
                    "file": [accounts.__file__],
                    "fingerprint": [fingerprint],
                    "settings": [settings.SETTINGS_MODULE],
                }
            )


def look(job: RunningJob) -> None:
    from enode_django.repository.fingerprint import fingerprint_of
    from enode_django.spark.session import spark_session
    from enode_django.spark.source import events
    from sample_project.bank.domain import accounts

    with spark_session() as spark:
        found = spark.range(0, 8, numPartitions=2).mapInArrow(seen, COLUMNS).distinct().collect()
        rows = events(spark, columns=["shard", "aggregate_root_id", "version"]).collect()
        java = spark.sparkContext._gateway.proc.pid  # type: ignore[union-attr]
    job.result(
        executors=[row.asDict() for row in found],
        rows=[list(row) for row in rows],
        file=accounts.__file__,
        fingerprint=fingerprint_of(accounts.BankAccount),
        java=java,
    )
