"""Measurements of the demo."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any, NamedTuple

from django.db.models import Count, Max, Min, Q, QuerySet

from enode_django.models import EventStream
from sample_project.bank.demo.streams import streams
from sample_project.bank.demo.workload import Workload


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Figures of the movements. ``seconds`` is the time from the first stored one to the last; a batch is the rows of
    one transaction."""

    stored: int
    refused: int
    seconds: float
    batches: int
    median_batch: float
    largest_batch: int

    @property
    def per_second(self) -> float:
        return self.stored / max(self.seconds, 0.001)


class Transfers(NamedTuple):
    """The number of transfers that have ended, by outcome."""

    completed: int
    cancelled: int

    @property
    def ended(self) -> int:
        return self.completed + self.cancelled


COMPLETED_AT_VERSION = 5
"""Started, two reservations (and confirmed), two movements (and completed)."""


def count_transfers(workload: Workload) -> Transfers:
    is_cancelled = Q(command_type="bank.CancelTransfer", version__isnull=False)
    counts = [
        rows.filter(aggregate_root_id__startswith=workload.transfer_prefix).aggregate(
            completed=Count("pk", filter=Q(version=COMPLETED_AT_VERSION)), cancelled=Count("pk", filter=is_cancelled)
        )
        for rows in streams()
    ]
    return Transfers(*(sum(count[name] for count in counts) for name in Transfers._fields))


def count_stored(workload: Workload) -> int:
    return sum(rows.filter(command_id__startswith=workload.movement_prefix).count() for rows in streams())


def measure(workload: Workload) -> Figures:
    movements = [rows.filter(command_id__startswith=workload.movement_prefix) for rows in streams()]
    totals = [total for total in map(_total, movements) if total["stored"]]
    batches = [size for rows in movements for size in _batches(rows)]
    begin = min((total["first"] for total in totals), default=None)
    end = max((total["last"] for total in totals), default=None)
    return Figures(
        stored=sum(total["stored"] for total in totals),
        refused=sum(total["refused"] for total in totals),
        seconds=(end - begin).total_seconds() if begin and end else 0.0,
        batches=len(batches),
        median_batch=median(batches) if batches else 0,
        largest_batch=max(batches, default=0),
    )


def _total(movements: QuerySet[EventStream]) -> dict[str, Any]:
    return movements.aggregate(
        stored=Count("*"),
        refused=Count("pk", filter=Q(version__isnull=True)),
        first=Min("created_at"),
        last=Max("created_at"),
    )


def _batches(movements: QuerySet[EventStream]) -> Iterator[int]:
    for (size,) in movements.values("transaction_id").annotate(size=Count("*")).values_list("size"):
        yield size


def percentile(seconds: Sequence[float], percent: int) -> float:
    """Return a percentile of at least one time (nearest rank).

    >>> percentile([0.1, 0.3, 0.2], 50)
    0.2
    """
    rank = -(-len(seconds) * percent // 100)
    return sorted(seconds)[max(0, rank - 1)]
