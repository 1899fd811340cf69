"""The schedule of the load behind the latencies, and their percentiles."""

from __future__ import annotations

import itertools

import pytest

from benchmarks.arrivals import arrival_times
from benchmarks.figures import quantile


def test_commands_arrive_at_random_times_at_the_rate_and_alike_by_the_same_seed() -> None:
    times = arrival_times(1_000, 10, seed=1)
    assert times == sorted(times) == arrival_times(1_000, 10, seed=1) != arrival_times(1_000, 10, seed=2)
    assert (times[0] > 0, times[-1] < 10) == (True, True)
    assert len(times) == pytest.approx(10_000, rel=0.05)
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert sum(gap > 0.001 for gap in gaps) / len(gaps) == pytest.approx(0.368, rel=0.1), "gaps are exponential"


def test_a_percentile_is_not_made_of_too_few_values() -> None:
    values = list(map(float, range(1_001)))
    assert [quantile(values, share) for share in (0.5, 0.99, 0.999)] == [500, 990, 999]
    with pytest.raises(ValueError, match=r"100 values have no quantile 0\.999"):
        quantile(values[:100], 0.999)
