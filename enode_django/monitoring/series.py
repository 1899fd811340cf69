"""Compute the lines of charts from the reports of processors. Pure. Times are seconds since 1970.

A report counts from its supervisor's start, so the difference of two reports is what happened between them. Each
supervisor reports at its own times. So differences are spread evenly over *steps* of equal width, and the steps of all
supervisors are added up.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from enode_django.equeue.histograms import INFINITE

COUNTERS = ("finished", "refused", "failed", "crashed", "batches", "conflicts")
DISTRIBUTIONS = ("batch_sizes", "pulled_to_durable", "sent_to_durable")

Line = Sequence[float | None]
"""A value for each step, None if it is not known."""


class Report(NamedTuple):
    """``figures`` count from ``started_at``. ``ended``: this is the supervisor's last report."""

    supervisor: str
    started_at: float
    at: float
    ended: bool
    figures: Mapping[str, Any]


class Steps(NamedTuple):
    """``number`` steps of ``width`` seconds, from ``begin`` on."""

    begin: float
    width: float
    number: int

    @property
    def ends(self) -> list[float]:
        return [self.begin + self.width * (place + 1) for place in range(self.number)]

    @classmethod
    def between(cls, begin: float, end: float, width: float) -> Steps:
        """Return the steps that end after ``begin`` and not after ``end``. Bounds are multiples of ``width``.

        >>> Steps.between(101, 117, 5).ends
        [105, 110, 115]
        """
        first, last = math.floor(begin / width), math.floor(end / width)
        return cls(first * width, width, max(0, last - first))


def reported_until(reports: Iterable[Report], now: float, patience: float) -> float:
    """Return the time up to which all living supervisors have reported. Supervisors that are silent for ``patience``
    seconds are ignored."""
    last = {report.supervisor: report for report in sorted(reports, key=lambda report: report.at)}
    awaited = [one.at for one in last.values() if not one.ended and one.at > now - patience]
    return min(awaited, default=now - patience)


def charts(reports: Iterable[Report], steps: Steps, patience: float) -> dict[str, dict[str, Line]]:
    """Return the lines of each chart, by name; ``docs/howto/dashboard-and-status.md`` describes the charts.

    Lines have a gap where a supervisor's reports are more than ``patience`` seconds apart.
    """
    runs = _runs(reports)
    counted = _Counted(steps)
    for run in runs:
        counted.add(run, patience)
    subscribers = sorted({name for run in runs for report in run for name in _map(report.figures, "subscribers")})
    rate = counted.per_second
    return {
        "commands": {name: rate(name) for name in ("finished", "refused", "failed", "crashed")},
        "sent": _quantiles(counted, "sent_to_durable", scale=1000),
        "pulled": _quantiles(counted, "pulled_to_durable", scale=1000),
        "sizes": {"average": counted.ratio("finished", "batches"), **_quantiles(counted, "batch_sizes", only="p99")},
        "conflicts": {"conflicts": rate("conflicts")},
        "backlog": _backlogs(runs, steps, patience),
        "lag": {name: _largest(runs, steps, patience, ("subscribers", name, "lag")) for name in subscribers},
        "handled": {name: rate(f"subscribers/{name}/handled") for name in subscribers},
    }


Run = Sequence[Report]
"""The reports of one supervisor, by time."""


def _runs(reports: Iterable[Report]) -> list[Run]:
    runs: dict[str, list[Report]] = {}
    for report in sorted(reports, key=lambda report: report.at):
        runs.setdefault(report.supervisor, []).append(report)
    return list(runs.values())


# -- what was counted --------------------------------------------------------------------------------------------------


class _Stretch(NamedTuple):
    """The counts of a supervisor between two moments."""

    begin: float
    end: float
    counts: Mapping[str, float]


@dataclass(slots=True)
class _Counted:
    """The counts of all runs in each step. ``sums`` has them by the number of the step and the name of the figure."""

    steps: Steps
    sums: dict[int, dict[str, float]] = field(default_factory=dict)

    def add(self, run: Run, patience: float) -> None:
        """Add the counts of a run. Steps for which reports are missing are left out, since they would be too low."""
        stretches = list(_stretches(run, patience))
        shares: dict[int, dict[str, float]] = {}
        covered: dict[int, float] = defaultdict(float)
        for begin, end, counts in stretches:
            for place, seconds in _overlaps(begin, end, self.steps):
                covered[place] += seconds
                share = shares.setdefault(place, defaultdict(float))
                for name, count in counts.items():
                    share[name] += count * seconds / (end - begin)
        for place, share in shares.items():
            if covered[place] >= self._lived(run, place) - 0.001:
                total = self.sums.setdefault(place, defaultdict(float))
                for name, count in share.items():
                    total[name] += count

    def _lived(self, run: Run, place: int) -> float:
        """Return the seconds of a step in which the supervisor ran."""
        begin = self.steps.begin + place * self.steps.width
        end = run[-1].at if run[-1].ended else math.inf
        return min(begin + self.steps.width, end) - max(begin, run[0].started_at)

    def per_second(self, name: str) -> Line:
        return [None if known is None else known.get(name, 0.0) / self.steps.width for known in self._all()]

    def ratio(self, name: str, by: str) -> Line:
        return [known[name] / known[by] if known and known.get(by) else None for known in self._all()]

    def quantile(self, name: str, quantile: float) -> Line:
        prefix = f"{name}/buckets/"
        found = ({key.removeprefix(prefix): known[key] for key in known if key.startswith(prefix)}
                 for known in (one or {} for one in self._all()))  # fmt: skip
        return [quantile_of(buckets, quantile) for buckets in found]

    def _all(self) -> Iterator[Mapping[str, float] | None]:
        return (self.sums.get(place) for place in range(self.steps.number))


def _stretches(run: Run, patience: float) -> Iterator[_Stretch]:
    """Yield the counts between consecutive reports, and between the start and the first report, without gaps of more
    than ``patience`` seconds."""
    first = run[0]
    before, known = first.started_at, dict[str, float]()
    for report in run:
        counts = _flat(report.figures)
        if 0 < report.at - before <= patience:
            yield _Stretch(before, report.at, {name: _growth(counts[name], known.get(name, 0)) for name in counts})
        before, known = report.at, counts


def _growth(count: float, before: float) -> float:
    """Return how much a counter grew. A counter that is lower than before was reset."""
    return count - before if count >= before else count


def _flat(figures: Mapping[str, Any]) -> dict[str, float]:
    """
    >>> _flat({"finished": 3, "batch_sizes": {"buckets": {"1": 2}, "sum": 3}, "subscribers": {"a": {"handled": 1}}})
    {'finished': 3, 'batch_sizes/buckets/1': 2, 'subscribers/a/handled': 1}
    """
    counts = {name: figures.get(name) for name in COUNTERS} if isinstance(figures, Mapping) else {}
    for name in DISTRIBUTIONS:
        buckets = _map(_map(figures, name), "buckets")
        counts |= {f"{name}/buckets/{bound}": count for bound, count in buckets.items()}
    followed = _map(figures, "subscribers")
    counts |= {f"subscribers/{name}/handled": _map(followed, name).get("handled", 0) for name in followed}
    return {name: count for name, count in counts.items() if isinstance(count, int | float)}


def _map(figures: Any, name: str) -> Mapping[str, Any]:
    """Return a map among the figures, an empty one if another version has written something else there: one report
    must not hide all others."""
    found = figures.get(name) if isinstance(figures, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def _overlaps(begin: float, end: float, steps: Steps) -> Iterator[tuple[int, float]]:
    """Yield the numbers of the steps that overlap a stretch of time, each with the seconds of the overlap."""
    first = max(0, math.floor((begin - steps.begin) / steps.width))
    last = min(steps.number - 1, math.floor((end - steps.begin) / steps.width))
    for place in range(first, last + 1):
        at = steps.begin + place * steps.width
        seconds = min(end, at + steps.width) - max(begin, at)
        if seconds > 0:
            yield place, seconds


def quantile_of(buckets: Mapping[str, float], quantile: float) -> float | None:
    """Return a quantile of a cumulative histogram, interpolated between two bounds. Return the highest bound for a
    quantile above it, and None without values.

    >>> quantile_of({"1": 0, "2": 50, "5": 100, "+Inf": 100}, 0.75)
    3.5
    """
    total = buckets.get(INFINITE, 0)
    if total <= 0:
        return None
    wanted, low, below = quantile * total, 0.0, 0.0
    for bound, count in sorted((float(bound), count) for bound, count in buckets.items() if bound != INFINITE):
        if count >= wanted:
            return low + (bound - low) * (wanted - below) / (count - below) if count > below else bound
        low, below = bound, count
    return low


def _quantiles(counted: _Counted, name: str, *, scale: float = 1, only: str = "") -> dict[str, Line]:
    wanted = {"p50": 0.5, "p99": 0.99}
    lines = {label: counted.quantile(name, quantile) for label, quantile in wanted.items() if only in ("", label)}
    return {label: [None if one is None else one * scale for one in line] for label, line in lines.items()}


# -- figures of the moment ---------------------------------------------------------------------------------------------


def _backlogs(runs: Sequence[Run], steps: Steps, patience: float) -> dict[str, Line]:
    """Return the backlogs. They are not added up, since all supervisors ask the same queue."""
    reports = (report for run in runs for report in run)
    names = {
        (topic, group)
        for one in reports
        for topic in _map(one.figures, "backlog")
        for group in _map(_map(one.figures, "backlog"), topic)
    }
    return {
        f"{topic} → {group}": _largest(runs, steps, patience, ("backlog", topic, group))
        for topic, group in sorted(names)
    }


def _largest(runs: Sequence[Run], steps: Steps, patience: float, path: Sequence[str]) -> Line:
    """Return the largest of the supervisors' newest values at the end of each step."""
    timed = [(run, [report.at for report in run]) for run in runs]
    lines = [[_value(_last(run, times, end, patience), path) for end in steps.ends] for run, times in timed]
    return [max((value for value in values if value is not None), default=None) for values in zip(*lines, strict=True)]


def _last(run: Run, times: Sequence[float], at: float, patience: float) -> Report | None:
    """Return the newest report of a supervisor at a moment; None if it was not running then."""
    place = bisect_right(times, at) - 1
    if place < 0 or run[place].ended or at - times[place] > patience:
        return None
    return run[place]


def _value(report: Report | None, path: Sequence[str]) -> float | None:
    value: Any = report.figures if report is not None else None
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value if isinstance(value, int | float) else None
