from __future__ import annotations

from django.apps import AppConfig


class LongJobsConfig(AppConfig):
    name = "tests.acceptance.long_jobs"
    label = "long_jobs"

    def ready(self) -> None:
        from enode_django.job_kinds import KINDS
        from tests.acceptance.long_jobs.work import compute

        KINDS["long"] = compute
