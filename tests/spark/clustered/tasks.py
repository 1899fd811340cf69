"""Imported by the Celery worker, and not by Spark's executors."""

from __future__ import annotations

import contextlib
from typing import Any

from celery import shared_task
from celery.signals import worker_process_init, worker_process_shutdown

from enode_django.batch import KINDS
from enode_django.tasks import JobTask, run_job
from tests.spark.clustered.work import look

_session = contextlib.ExitStack()
KINDS["look"] = look


@worker_process_init.connect
def start_session(**options: Any) -> None:
    from enode_django.spark.session import spark_session

    _session.enter_context(spark_session())


@worker_process_shutdown.connect
def end_session(**options: Any) -> None:
    _session.close()


@shared_task(bind=True, base=JobTask, name="tests.look")
def look_at_executors(self: JobTask) -> dict[str, Any]:
    return run_job(self, "look", "executors")
