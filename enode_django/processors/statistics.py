"""What a worker has done so far, for the supervisor's report."""

from __future__ import annotations

import resource
import sys
from collections.abc import Callable, Iterable
from typing import Any


class Statistics:
    """Each counter has one writing thread per event mailbox or publisher, and each subscriber's one of its own; a
    report may lag a batch behind."""

    def __init__(self) -> None:
        self.finished = 0
        self.batches = 0
        self.largest_batch = 0
        self.conflicts = 0
        self.published = 0
        self.gauges: dict[str, Callable[[], int]] = {}
        """What is asked when a report is made."""
        self._followed: dict[str, tuple[int, int]] = {}

    def count_batch(self, finished: int, conflicts: int) -> None:
        self.finished += finished
        self.batches += 1
        self.largest_batch = max(self.largest_batch, finished)
        self.conflicts += conflicts

    def count_published(self, published: int) -> None:
        self.published += published

    def set_followed(self, subscriber: str, handled: int, parked: int) -> None:
        """How many event streams a subscriber has handled, and how many aggregates it has parked, so far."""
        self._followed[subscriber] = (handled, parked)

    def report(self) -> dict[str, Any]:
        followed = self._followed.copy()
        return {
            "finished": self.finished,
            "batches": self.batches,
            "largest_batch": self.largest_batch,
            "conflicts": self.conflicts,
            "published": self.published,
            "handled": sum(handled for handled, _ in followed.values()),
            "parked": sum(parked for _, parked in followed.values()),
            "subscribers": {name: handled for name, (handled, _) in followed.items()},
            **{name: gauge() for name, gauge in self.gauges.items()},
            "peak_memory": peak_memory(),
        }


def peak_memory() -> int:
    """Bytes of resident memory that this process has had at its largest."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def add_reports(reports: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Sums, name by name in dictionaries, and the largest of what has no sum.

    >>> add_reports([{"finished": 2, "largest_batch": 2}, {"finished": 3, "largest_batch": 1}])
    {'finished': 5, 'largest_batch': 2}
    >>> add_reports([{"subscribers": {"a": 1}}, {"subscribers": {"a": 2, "b": 3}}])
    {'subscribers': {'a': 3, 'b': 3}}
    """
    total: dict[str, Any] = {}
    for report in reports:
        for name, value in report.items():
            if name not in total:
                total[name] = value
            elif name in ("largest_batch", "peak_memory"):
                total[name] = max(total[name], value)
            elif isinstance(value, dict):
                total[name] = add_reports([total[name], value])
            else:
                total[name] += value
    return total
