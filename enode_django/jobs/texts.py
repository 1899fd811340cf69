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
    """Return a progress, or figures, as a text. ``done`` counts ``tasks``; ``left`` are seconds.

    >>> in_words({"stage": "reading", "rounds": 3, "events": 1200000})
    'reading: rounds 3, events 1,200,000'
    >>> in_words({"stage": "replay", "tasks": 16, "done": 4, "left": 72, "streams": 1200, "a_second": 50})
    'replay: 4 of 16 tasks done, about 0:01:12 left, streams 1,200, 50 a second'
    """
    figures = ", ".join(text for name in progress if (text := _figure(name, progress)))
    return ": ".join(part for part in (str(progress.get("stage", "")), figures) if part)


def _figure(name: str, progress: Mapping[str, Any]) -> str:
    value = progress[name]
    if name == "stage" or (name == "tasks" and "done" in progress) or (name == "left" and value is None):
        return ""
    match name:
        case "done" if "tasks" in progress:
            return f"{_number(value)} of {_number(progress['tasks'])} tasks done"
        case "left":
            return f"about {timedelta(seconds=value)} left"
        case "a_second":
            return f"{_number(value)} a second"
        case _:
            return f"{name.replace('_', ' ')} {_number(value)}"


def _number(value: object) -> str:
    return f"{value:,}" if isinstance(value, int | float) and not isinstance(value, bool) else str(value)
