"""Count the work of a worker, for the supervisor's report. ``docs/reference/metrics.md`` explains the names."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from enode_django.equeue.histograms import SECONDS, SIZES, Histogram

PEAKS = frozenset({"largest_batch", "peak_memory"})
LAG = "lag"
MAX_OFFSET, CONSUME_OFFSET = "max_offset", "consume_offset"
MOMENTARY = frozenset({"cached_aggregates", "unfinished", "waiting_for_help", LAG, MAX_OFFSET, CONSUME_OFFSET})
"""The names of figures that no longer count when a worker has ended."""


class OutcomeCounts(NamedTuple):
    """The outcomes of a batch's commands. ``refused`` ones were ended by a domain exception, ``failed`` ones by their
    sender's mistake, such as asking for a missing aggregate, and ``crashed`` ones by any other exception."""

    succeeded: int
    unchanged: int
    refused: int
    failed: int
    crashed: int = 0


NONE = OutcomeCounts(0, 0, 0, 0)


class _HandledEvents(NamedTuple):
    handled: int
    parked: int
    behind_since: float | None


class Statistics:
    """The figures of one worker. Each thread counts its own batches or subscriber; a report may lag behind."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self.finished = 0
        self.batches = 0
        self.largest_batch = 0
        self.conflicts = 0
        self.published = 0
        self.gauges: dict[str, Callable[[], int]] = {}
        """Functions that are called for each report, by the names of their figures."""
        self.mailboxes: Callable[[], Mapping[str, Mapping[str, int]]] = dict
        """Called for each report: returns ``max_offset`` and ``consume_offset`` of each mailbox, by its name."""
        self._clock = clock
        self._lock = threading.Lock()
        self._outcomes = NONE
        self._histograms = {
            "batch_sizes": Histogram(SIZES),
            "store_seconds": Histogram(SECONDS),
            "pulled_to_durable": Histogram(SECONDS),
            "sent_to_durable": Histogram(SECONDS),
        }
        self._subscribers: dict[str, _HandledEvents] = {}

    def count_batch(self, finished: int, conflicts: int, outcomes: OutcomeCounts = NONE) -> None:
        with self._lock:
            self.finished += finished
            self.batches += 1
            self.largest_batch = max(self.largest_batch, finished)
            self.conflicts += conflicts
            self._outcomes = OutcomeCounts(*map(sum, zip(self._outcomes, outcomes, strict=True)))
            self._histograms["batch_sizes"].add(finished)

    def measure(self, **values: float | None) -> None:
        """Add values to the histograms of these names. None is left out."""
        with self._lock:
            for name, value in values.items():
                if value is not None:
                    self._histograms[name].add(value)

    def count_published(self, published: int) -> None:
        self.published += published

    def set_subscriber(self, subscriber: str, handled: int, parked: int, behind_since: float | None = None) -> None:
        """Set how many event streams a subscriber has handled, and how many aggregates it has parked, so far; and when
        its oldest pulled and unhandled stream was stored, as a time of the clock (None: it has none)."""
        self._subscribers[subscriber] = _HandledEvents(handled, parked, behind_since)

    def report(self) -> dict[str, Any]:
        subscribers = self._subscribers.copy()
        now = self._clock()
        return {
            "finished": self.finished,
            **self._outcomes._asdict(),
            "batches": self.batches,
            "largest_batch": self.largest_batch,
            "conflicts": self.conflicts,
            "published": self.published,
            **{name: histogram.as_map() for name, histogram in self._histograms.items()},
            "handled": sum(one.handled for one in subscribers.values()),
            "parked": sum(one.parked for one in subscribers.values()),
            "subscribers": {
                name: {"handled": one.handled, "parked": one.parked, LAG: _lag(one.behind_since, now)}
                for name, one in subscribers.items()
            },
            **{name: gauge() for name, gauge in self.gauges.items()},
            "mailboxes": self.mailboxes(),
            "peak_memory": peak_memory(),
        }


def _lag(since: float | None, now: float) -> float:
    return 0.0 if since is None else max(0.0, now - since)


def peak_memory() -> int:
    """Return the bytes of resident memory that this process has had at its largest."""
    import resource  # Windows has none

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def add_reports(reports: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Return the sums of the reports, name by name in dictionaries, and the largest of the values that have no sum.

    >>> add_reports([{"finished": 2, "largest_batch": 2}, {"finished": 3, "largest_batch": 1}])
    {'finished': 5, 'largest_batch': 2}
    >>> add_reports([{"subscribers": {"a": {"handled": 1}}}, {"subscribers": {"a": {"handled": 2, "lag": 3.5}}}])
    {'subscribers': {'a': {'handled': 3, 'lag': 3.5}}}
    """
    total: dict[str, Any] = {}
    for report in reports:
        for name, value in report.items():
            if name not in total:
                total[name] = value
            elif isinstance(value, dict):
                total[name] = add_reports([total[name], value])
            elif name in PEAKS or name == LAG:
                total[name] = max(total[name], value)
            else:
                total[name] += value
    return total


def without_momentary(report: dict[str, Any]) -> dict[str, Any]:
    """Return the part of a worker's report that remains when the worker has ended.

    >>> without_momentary({"finished": 2, "unfinished": 1, "subscribers": {"a": {"handled": 1, "lag": 2.0}}})
    {'finished': 2, 'subscribers': {'a': {'handled': 1}}}
    """
    return {
        name: without_momentary(value) if isinstance(value, dict) else value
        for name, value in report.items()
        if isinstance(value, dict) or name not in MOMENTARY
    }
