"""The rows of figures that each ``runprocessors`` writes about itself."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

from django.db import router
from django.db.models.functions import Now

from enode_django.equeue.hosts import host_name
from enode_django.models import ProcessorReport
from enode_django.processors.watch import Watch

STOP_SECONDS = 3.0
"""Seconds for writing the last row: an unavailable database must not keep the process from ending."""


class ReportWriter:
    """Writes rows in a thread of its own, from its construction on. ``figures`` is called there."""

    def __init__(
        self, supervisor: str, figures: Callable[[], Mapping[str, Any]], *, interval: float, retention: float
    ) -> None:
        self._supervisor = supervisor
        self._figures = figures
        self._retention = timedelta(seconds=retention)
        self._began = time.monotonic()
        self._watch = Watch("reports", self._write, interval, last=lambda: self._write(ended=True))

    def stop(self) -> None:
        """Write the last row."""
        self._watch.stop(STOP_SECONDS)

    def _write(self, *, ended: bool = False) -> None:
        figures = self._figures()
        if not figures:
            return  # the supervisor has no report yet
        alias = router.db_for_write(ProcessorReport)
        ProcessorReport.objects.using(alias).create(
            supervisor=self._supervisor,
            host=host_name()[:255],
            pid=os.getpid(),
            started_at=Now() - timedelta(seconds=time.monotonic() - self._began),
            ended=ended,
            figures=figures,
        )
        ProcessorReport.objects.using(alias).filter(reported_at__lt=Now() - self._retention).delete()
