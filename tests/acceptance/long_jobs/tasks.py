from __future__ import annotations

from contextlib import nullcontext
from typing import Any

from celery import shared_task
from django.db import connections

from enode_django.jobs.leases import job_database
from enode_django.models import Job
from enode_django.tasks import JobTask, run_job
from tests.acceptance.long_jobs.work import terminate_when_begun, terminate_when_ending


@shared_task(bind=True, base=JobTask, name="tests.long_job")
def long_job(self: JobTask, name: str) -> dict[str, Any]:
    return run_job(self, "long", name)


@shared_task(bind=True, base=JobTask, name="tests.told_to_end")
def told_to_end(self: JobTask, kind: str, wrapper: str = "") -> dict[str, Any]:
    """A job whose process gets SIGTERM. When the task comes again, it runs undisturbed."""
    if Job.objects.filter(name=kind).exists():
        return run_job(self, "brief", kind)
    wrappers = {"begun": terminate_when_begun, "ending": terminate_when_ending}
    connection = connections[job_database()]
    with connection.execute_wrapper(wrappers[wrapper]) if wrapper else nullcontext():
        return run_job(self, kind, kind)
