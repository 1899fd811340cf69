"""The work of the jobs: one counts until it is stopped, the others get SIGTERM at an awkward moment."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

from django.db import transaction

from enode_django.exceptions import JobStopped
from enode_django.jobs import termination as job_termination
from enode_django.jobs.running import RunningJob


def compute(job: RunningJob) -> None:
    """Its progress says which process works."""
    step = 0
    while True:
        job.report("counting", step=(step := step + 1), process=os.getpid())
        time.sleep(0.02)


def work_briefly(job: RunningJob) -> None:
    job.report("working", process=os.getpid())


def stop_by_sigterm(job: RunningJob) -> None:
    """Send SIGTERM to the own process in the middle of the work."""
    terminate()
    while True:
        job.pause(0.02)


def hear_two(job: RunningJob) -> None:
    """Do as `stop_by_sigterm`, and send SIGTERM again during the cleanup."""
    try:
        stop_by_sigterm(job)
    except JobStopped:
        terminate()
        raise


def hear_nothing(job: RunningJob) -> None:
    """Work that never asks whether it must stop."""
    job_termination.PATIENCE = 1.0  # keeps the wait short
    terminate()
    while True:
        time.sleep(0.02)


def terminate() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def terminate_when_begun(execute: Callable[..., Any], sql: str, params: Any, many: bool, context: Any) -> Any:
    """A wrapper of statements: SIGTERM comes as soon as the row of the job is committed."""
    result = execute(sql, params, many, context)
    if sql.startswith('INSERT INTO "enode_django_job"'):
        transaction.on_commit(terminate, using=context["connection"].alias)
    return result


def terminate_when_ending(execute: Callable[..., Any], sql: str, params: Any, many: bool, context: Any) -> Any:
    """A wrapper of statements: SIGTERM comes before the end of the job is written."""
    if sql.startswith('UPDATE "enode_django_job"') and "finished_at" in sql:
        terminate()
    return execute(sql, params, many, context)


KINDS = {
    "long": compute,
    "brief": work_briefly,
    "heard": stop_by_sigterm,
    "heard_twice": hear_two,
    "deaf": hear_nothing,
}
