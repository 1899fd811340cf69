"""Reads a sharded store and makes its snapshots with executors that are processes of their own; says what they saw.

Started by `test_cluster`: ``python -m tests.spark.cluster MASTER`` prints JSON.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from typing import Any

import django
import pyarrow as pa

from tests.java import QUICK_TO_START, driver_options


def seen_by_executors(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Pickled with its code, since this module is not sent to them."""
    import os

    from enode_django.spark.executors import task

    for _ in batches:
        with task():
            from django.conf import settings

            from enode_django.snapshots.fingerprint import fingerprint_of
            from sample_project.bank.domain import accounts

            yield pa.RecordBatch.from_pydict(
                {
                    "pid": [os.getppid()],
                    "file": [accounts.__file__],
                    "fingerprint": [fingerprint_of(accounts.BankAccount)],
                    "settings": [settings.SETTINGS_MODULE],
                }
            )


def main(master: str) -> dict[str, Any]:
    django.setup()
    from django.conf import settings
    from django.test import override_settings

    from enode_django.snapshots.fingerprint import fingerprint_of
    from enode_django.spark.session import spark_session
    from enode_django.spark.snapshot_job import build_snapshots
    from enode_django.spark.source import events
    from sample_project.bank.domain import accounts

    config = {
        "spark.driver.extraJavaOptions": driver_options(),
        "spark.executor.extraJavaOptions": QUICK_TO_START,
        "spark.driver.memory": "512m",
        "spark.scheduler.minRegisteredResourcesRatio": "1",
    }
    enode = {**settings.ENODE, "SPARK": {"CONFIG": config}}
    with override_settings(ENODE=enode), spark_session(master) as spark:
        columns = "pid bigint, file string, fingerprint string, settings string"
        seen = spark.range(0, 8, numPartitions=2).mapInArrow(seen_by_executors, columns).distinct().collect()
        snapshots = build_snapshots(spark, None, lambda stage, **figures: None)
        rows = events(spark).select("shard", "aggregate_root_id", "version").collect()
        java = spark.sparkContext._gateway.proc.pid  # type: ignore[union-attr]
    return {
        "snapshots": snapshots,
        "rows": [list(row) for row in rows],
        "executors": [row.asDict() for row in seen],
        "file": accounts.__file__,
        "fingerprint": fingerprint_of(accounts.BankAccount),
        "java": java,
        "is_running": os.path.exists(f"/proc/{java}"),
    }


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1])))
