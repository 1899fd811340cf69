"""Texts about jobs for people."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from django.utils import timezone

from enode_django.models import JobState


def state_of(job: Any) -> str:
    """Return the state of a row of `leases.with_lease_state`."""
    if job.is_left:
        return "running (its lease ran out)"
    if job.state == JobState.RUNNING and job.cancel_requested_at is not None:
        return "running (is to stop)"
    return str(job.state)


def duration_of(job: Any) -> str:
    """Return the duration of a job; of a running one, up to now by this machine's clock."""
    lasted: timedelta = (job.finished_at or timezone.now()) - job.started_at
    return str(timedelta(seconds=max(0, round(lasted.total_seconds()))))


def in_words(progress: Mapping[str, Any]) -> str:
    """
    >>> in_words({"stage": "reading", "rounds": 3, "events": 1200000})
    'reading: rounds 3, events 1,200,000'
    """
    figures = ", ".join(f"{name.replace('_', ' ')} {_number(progress[name])}" for name in progress if name != "stage")
    return ": ".join(part for part in (str(progress.get("stage", "")), figures) if part)


def _number(value: object) -> str:
    return f"{value:,}" if isinstance(value, int | float) and not isinstance(value, bool) else str(value)
