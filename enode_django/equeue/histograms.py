"""Count measured values in buckets that can be added over workers and hosts."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

SIZES = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000)
SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
INFINITE = "+Inf"


class Histogram:
    """Counts of values by bucket. One thread at a time writes; any may read, and see a value counted but not summed.

    >>> sizes = Histogram((1, 2, 5))
    >>> for size in (2, 3, 9):
    ...     sizes.add(size)
    >>> sizes.as_map()
    {'buckets': {'1': 0, '2': 1, '5': 2, '+Inf': 3}, 'sum': 14}
    """

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._names = [*(f"{bound:g}" for bound in bounds), INFINITE]
        self._counts = [0] * (len(bounds) + 1)
        self._sum: float = 0

    def add(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def as_map(self) -> dict[str, Any]:
        """Return the sum, and in ``buckets`` the number of values up to each bound. Bounds are texts, for JSON."""
        return {"buckets": dict(zip(self._names, accumulate(self._counts), strict=True)), "sum": self._sum}
