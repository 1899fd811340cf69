from __future__ import annotations

from typing import Any

from celery import shared_task

from enode_django.tasks import JobTask, run_job


@shared_task(bind=True, base=JobTask, name="tests.long_job")
def long_job(self: JobTask, name: str) -> dict[str, Any]:
    return run_job(self, "long", name)
