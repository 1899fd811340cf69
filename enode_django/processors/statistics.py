"""What a worker has done so far, for the supervisor's report."""

from __future__ import annotations

import resource
import sys
from typing import Any


class Statistics:
    """Each counter has one writing thread per event mailbox or publisher; a report may lag a batch behind."""

    def __init__(self) -> None:
        self.finished = 0
        self.batches = 0
        self.largest_batch = 0
        self.conflicts = 0
        self.published = 0

    def count_batch(self, finished: int, conflicts: int) -> None:
        self.finished += finished
        self.batches += 1
        self.largest_batch = max(self.largest_batch, finished)
        self.conflicts += conflicts

    def count_published(self, published: int) -> None:
        self.published += published

    def report(self) -> dict[str, Any]:
        return {
            "finished": self.finished,
            "batches": self.batches,
            "largest_batch": self.largest_batch,
            "conflicts": self.conflicts,
            "published": self.published,
            "peak_memory": peak_memory(),
        }


def peak_memory() -> int:
    """Bytes of resident memory that this process has had at its largest."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def add_reports(reports: list[dict[str, Any]]) -> dict[str, Any]:
    """Sums, and the largest of what has no sum.

    >>> add_reports([{"finished": 2, "largest_batch": 2}, {"finished": 3, "largest_batch": 1}])
    {'finished': 5, 'largest_batch': 2}
    """
    total: dict[str, Any] = {}
    for report in reports:
        for name, value in report.items():
            if name not in total:
                total[name] = value
            elif name in ("largest_batch", "peak_memory"):
                total[name] = max(total[name], value)
            else:
                total[name] += value
    return total
