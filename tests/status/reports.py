"""Reports of processors, as their supervisors would have written them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from django.utils import timezone

from enode_django.equeue.histograms import INFINITE, SECONDS, SIZES
from enode_django.models import ProcessorReport

JUST_NOW = -60
"""Seconds since the last report of a living supervisor. It is dated ahead, so that a slow machine does not find it
silent, which it is after 15 seconds."""


def distribution(bounds: Sequence[float], value: float, count: int) -> dict[str, Any]:
    """Return the distribution of ``count`` equal values."""
    buckets = {f"{bound:g}": count if value <= bound else 0 for bound in bounds}
    return {"buckets": {**buckets, INFINITE: count}, "sum": count * value}


def figures(commands: int, *, seconds: float = 0.004, batch: int = 10, **others: Any) -> dict[str, Any]:
    """Return the figures after this number of commands, in batches of one size and one duration."""
    batches = commands // batch
    return {
        "finished": commands,
        "succeeded": commands,
        "refused": 0,
        "failed": 0,
        "batches": batches,
        "conflicts": 0,
        "batch_sizes": distribution(SIZES, batch, batches),
        "pulled_to_durable": distribution(SECONDS, seconds, batches),
        "sent_to_durable": distribution(SECONDS, seconds, batches),
        "subscribers": {},
        "backlog": {},
        "unfinished": 0,
        "cached_aggregates": 7,
        "workers": 2,
        "event_workers": 2,
        "planned_workers": 2,
        "planned_event_workers": 2,
        "restarts": 0,
        **others,
    }


def followed(lag: float, handled: int = 0) -> Mapping[str, Any]:
    return {"handled": handled, "parked": 0, "lag": lag}


def write_report(
    supervisor: str,
    ago: float,
    counted: Mapping[str, Any],
    *,
    lived: float,
    ended: bool = False,
    now: datetime | None = None,
) -> None:
    """Write a report dated ``ago`` seconds before now, ``lived`` seconds after the start."""
    at = (now or timezone.now()) - timedelta(seconds=ago)
    ProcessorReport.objects.create(
        supervisor=supervisor,
        host="host",
        pid=17,
        started_at=at - timedelta(seconds=lived),
        reported_at=at,
        ended=ended,
        figures=counted,
    )
