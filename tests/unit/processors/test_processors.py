from __future__ import annotations

import os
from pathlib import Path

import pytest

from enode_django.processors.cores import usable_cores
from enode_django.processors.statistics import Statistics, add_reports
from enode_django.processors.suspicion import Suspicion


def test_a_command_is_suspect_after_one_death_and_condemned_after_three() -> None:
    suspicion = Suspicion(3, 60)
    assert suspicion.died("w1", [7, 0]) == []
    assert (suspicion.suspects, suspicion.condemned) == ({7}, set())
    assert suspicion.died("w2", [8, 7]) == []
    assert suspicion.died("w3", [0, 7]) == [7]
    assert (suspicion.suspects, suspicion.condemned) == ({8}, {7})
    assert suspicion.died("w4", [7, 7]) == []


def test_one_death_counts_once_for_a_command() -> None:
    suspicion = Suspicion(2, 60)
    suspicion.died("w", [7, 7])
    assert suspicion.condemned == set()


def test_a_command_is_overdue_only_when_one_mailbox_held_it_all_the_time() -> None:
    suspicion = Suspicion(3, 10)
    assert suspicion.overdue("w", [5, 0], 100) is None
    assert suspicion.overdue("w", [5, 0], 110) is None
    assert suspicion.overdue("w", [5, 0], 110.1) == 5
    assert suspicion.overdue("w", [6, 0], 111) is None
    assert suspicion.overdue("w", [6, 0], 120) is None
    assert suspicion.overdue("w", [0, 6], 130) is None
    assert suspicion.overdue("w", [0, 0], 200) is None
    assert suspicion.overdue("other", [6, 0], 200) is None


def test_times_of_a_dead_worker_are_forgotten() -> None:
    suspicion = Suspicion(3, 10)
    suspicion.overdue("w", [5], 100)
    suspicion.died("w", [5])
    assert suspicion.overdue("w", [5], 200) is None


@pytest.mark.parametrize(
    ("limit", "cores"),
    [
        ("100000 100000", 1), ("50000 100000", 1), ("100000000 100000", None), ("max 100000", None), ("", None),
        ("nonsense", None), ("a b", None),
    ],
)  # fmt: skip
def test_cores_honour_the_quota_of_the_cgroup(tmp_path: Path, limit: str, cores: int | None) -> None:
    file = tmp_path / "cpu.max"
    file.write_text(limit)
    everything = len(os.sched_getaffinity(0))
    assert usable_cores(file) == (everything if cores is None else cores)
    assert usable_cores(tmp_path / "missing") == everything


def test_reports_add_up() -> None:
    one, other = Statistics(), Statistics()
    one.count_batch(5, 1)
    one.count_batch(2, 0)
    one.count_published(6)
    other.count_batch(9, 0)
    total = add_reports([one.report(), other.report(), {"workers": 1}])
    assert (total["finished"], total["batches"], total["largest_batch"]) == (16, 3, 9)
    assert (total["conflicts"], total["published"], total["workers"]) == (1, 6, 1)
    assert total["peak_memory"] >= one.report()["peak_memory"] > 1_000_000
    assert add_reports([]) == {}


def test_reports_add_up_for_each_subscriber() -> None:
    one, other = Statistics(), Statistics()
    one.set_followed("a", 3, 1)
    one.set_followed("a", 5, 1)
    one.set_followed("b", 2, 0)
    other.set_followed("b", 4, 2)
    total = add_reports([one.report(), Statistics().report(), other.report()])
    assert (total["handled"], total["parked"]) == (11, 3)
    assert total["subscribers"] == {"a": 5, "b": 6}


def test_gauges_are_asked_when_a_report_is_made() -> None:
    statistics = Statistics()
    statistics.gauges["cached_aggregates"] = lambda: cached
    cached = 7
    assert statistics.report()["cached_aggregates"] == 7
