"""Texts about jobs for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any

from django.utils import timezone

from enode_django.models import JobState

LABELS: Mapping[str, str] = {
    "streams": "event streams replayed",
    "aggregates": "aggregates replayed",
    "parked": "aggregates parked",
    "compared": "aggregates compared",
    "uncompared": "aggregates not compared",
    "differences": "rows that differ",
    "behind": "aggregates behind the tables in use",
    "examples": "examples of differences",
    "swapped": "new tables in use",
    "seconds": "duration in seconds",
    "made": "snapshots made",
    "failed": "snapshots that failed",
    "failures": "the first failures",
    "rows": "rows added",
    "refusals": "refusals among them",
    "increment": "increment added",
    "merged": "increments merged",
    "increments": "increments in the archive",
    "history": "history of the archive",
    "horizon": "archived up to position, by shard",
}
"""The labels of the figures that the framework's own jobs store, by the name of the figure."""
RESULTS = ("made", "failed", "rows", "refusals", "streams", "aggregates", "differences")
"""The figures that say in one line what a job has done."""

QUOTING = ("examples", "failures")
"""The figures that may quote contents of events and read models."""


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


def progress_of(job: Any) -> str:
    """Return the progress of a running job, the results of one that succeeded, or the progress that another one
    reached."""
    if job.state == JobState.RUNNING and not job.is_left:
        return in_words(job.progress)
    if job.state == JobState.SUCCEEDED:
        done = (f"{_total(job.figures[name])} {LABELS[name]}" for name in RESULTS if name in job.figures)
        return ", ".join(done) or "done"
    reached = in_words({name: value for name, value in job.progress.items() if name not in ("left", "a_second")})
    return f"reached {reached}" if reached else ""


def figures_of(job: Any, *, instead_of_quotes: str = "") -> Iterator[tuple[str, str]]:
    """Yield the label and the text of each figure. A list has a line for each item. If ``instead_of_quotes`` is set, it
    replaces the texts of `QUOTING` figures."""
    for name, value in job.figures.items():
        is_hidden = bool(instead_of_quotes and value and name in QUOTING)
        yield LABELS.get(name, name.replace("_", " ")), instead_of_quotes if is_hidden else _lines(value)


def _lines(value: Any) -> str:
    if isinstance(value, Mapping):
        value = [f"{key}: {_number(item)}" for key, item in value.items()]
    if isinstance(value, list):
        return "\n".join(": ".join(map(str, one)) if isinstance(one, list) else str(one) for one in value) or "none"
    if value is None:
        return "none"
    return ("yes" if value else "no") if isinstance(value, bool) else _number(value)


def _total(value: Any) -> str:
    """Return a figure as a number; of figures by name, their sum."""
    return _number(sum(value.values()) if isinstance(value, Mapping) else value)


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
