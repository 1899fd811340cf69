"""What the demo measured."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from django.db.models import Count, Max, Min, Q

from enode_django.models import EventStream
from sample_project.bank.demo.workload import Workload


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Of the movements. ``seconds`` are from the first stored to the last; a batch is the rows of one transaction."""

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
    """How many have ended, and how."""

    completed: int
    cancelled: int

    @property
    def ended(self) -> int:
        return self.completed + self.cancelled


COMPLETED_AT_VERSION = 5
"""Started, two reservations (and confirmed), two movements (and completed)."""


def count_transfers(workload: Workload) -> Transfers:
    rows = EventStream.objects.filter(aggregate_root_id__startswith=workload.transfer_prefix)
    is_cancelled = Q(command_type="bank.CancelTransfer", version__isnull=False)
    counts = rows.aggregate(
        completed=Count("pk", filter=Q(version=COMPLETED_AT_VERSION)), cancelled=Count("pk", filter=is_cancelled)
    )
    return Transfers(**counts)


def count_stored(workload: Workload) -> int:
    return EventStream.objects.filter(command_id__startswith=workload.movement_prefix).count()


def measure(workload: Workload) -> Figures:
    rows = EventStream.objects.filter(command_id__startswith=workload.movement_prefix)
    total = rows.aggregate(
        stored=Count("*"),
        refused=Count("pk", filter=Q(version__isnull=True)),
        first=Min("created_at"),
        last=Max("created_at"),
    )
    batches = [size for (size,) in rows.values("transaction_id").annotate(size=Count("*")).values_list("size")]
    return Figures(
        stored=total["stored"],
        refused=total["refused"],
        seconds=(total["last"] - total["first"]).total_seconds() if total["stored"] else 0.0,
        batches=len(batches),
        median_batch=median(batches) if batches else 0,
        largest_batch=max(batches, default=0),
    )


def percentile(seconds: Sequence[float], percent: int) -> float:
    """The time within which so many percent of the answers came (nearest rank); at least one is needed.

    >>> percentile([0.1, 0.3, 0.2], 50)
    0.2
    """
    rank = -(-len(seconds) * percent // 100)
    return sorted(seconds)[max(0, rank - 1)]
