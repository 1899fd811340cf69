from __future__ import annotations

from django.apps import AppConfig


class LongJobsConfig(AppConfig):
    name = "tests.acceptance.long_jobs"
    label = "long_jobs"

    def ready(self) -> None:
        from enode_django import batch as job_kinds
        from tests.acceptance.long_jobs.work import KINDS

        job_kinds.KINDS.update(KINDS)
