"""Lines for charts from cumulative figures: nothing here needs a database."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from enode_django.monitoring.series import Line, Report, Steps, charts, quantile_of, reported_until
from tests.status.reports import distribution, figures, followed

START = 10_000.0
PATIENCE = 15.0
BOUNDS = (1, 2, 5, 10)


def report(supervisor: str, at: float, commands: int, *, ended: bool = False, **others: Any) -> Report:
    return Report(supervisor, START, START + at, ended, figures(commands, **others))


def commands(reports: Sequence[Report], until: float) -> Line:
    return charts(reports, Steps.between(START, START + until, 5), PATIENCE)["commands"]["finished"]


def test_what_was_done_between_two_reports_is_their_difference() -> None:
    assert commands([report("a", 5, 50), report("a", 10, 150), report("a", 15, 150)], 15) == [10, 20, 0]


def test_supervisors_that_report_at_other_moments_are_added_up_at_the_same_ones() -> None:
    one = [report("a", at, at * 100) for at in range(5, 41, 5)]
    other = [report("b", at, at * 10) for at in range(3, 44, 5)]
    assert commands([*one, *other], 35) == pytest.approx([110] * 7)


def test_a_restart_takes_nothing_away_and_adds_nothing() -> None:
    old = [report("a", 5, 50), report("a", 7, 70, ended=True)]
    new = [Report("a2", START + 8, START + at, False, figures(10 * (at - 8))) for at in (10, 15)]
    assert commands([*old, *new], 15) == pytest.approx([10, (20 + 20) / 5, 10])


def test_a_counter_that_went_back_has_begun_anew() -> None:
    assert commands([report("a", 5, 500), report("a", 10, 40)], 10) == [100, 8]


def test_where_nothing_was_reported_there_is_a_gap_and_no_slope_towards_it() -> None:
    at = [5, 10, 13, 42, 45, 50]
    line = commands([report("a", seconds, seconds * 10) for seconds in at], 50)
    assert line == [10, 10, None, None, None, None, None, None, None, 10]


def test_a_supervisor_that_was_there_before_the_first_report_in_sight_leaves_a_gap_and_not_a_slope() -> None:
    assert commands([report("a", seconds, seconds) for seconds in (22, 27, 32)], 30)[4:] == [None, 1]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 28), st.integers(0, 10_000)), min_size=1, max_size=20))
def test_all_that_was_counted_is_shared_out(pauses: Sequence[tuple[int, int]]) -> None:
    at, done, reports = START, 0, []
    for pause, more in pauses:
        at, done = at + pause / 2, done + more
        reports.append(Report("a", START, at, False, figures(done)))
    reports[-1] = reports[-1]._replace(ended=True)
    line = charts(reports, Steps.between(START, at + 5, 5), PATIENCE)["commands"]["finished"]
    assert sum(value for value in line if value is not None) * 5 == pytest.approx(done)


def test_polling_step_by_step_gives_what_asking_once_does() -> None:
    reports = [
        report(
            name, at + shift, at * 7, subscribers={"s": followed(at, at * 3)}, backlog={"commands": {"processors": at}}
        )
        for name, shift in (("a", 0), ("b", 2))
        for at in range(5, 200, 5)
    ]
    whole = charts(reports, Steps.between(START + 20, START + 180, 5), PATIENCE)
    polled: dict[str, dict[str, list[float | None]]] = {}
    for since in range(20, 180, 20):
        near = [one for one in reports if one.at > START + since - PATIENCE]
        for chart, lines in charts(near, Steps.between(START + since, START + since + 20, 5), PATIENCE).items():
            for name, values in lines.items():
                polled.setdefault(chart, {}).setdefault(name, []).extend(values)
    assert polled.keys() == whole.keys()
    for chart, lines in whole.items():
        for name, values in lines.items():
            assert polled[chart][name] == pytest.approx(values)


def test_steps_are_shown_when_everybody_who_lives_has_reported_them() -> None:
    reports = [
        report("living", 58, 1),
        report("late", 51, 1),
        report("silent", 40, 1),
        report("ended", 20, 1, ended=True),
    ]
    assert reported_until(reports, START + 60, PATIENCE) == START + 51
    assert reported_until(reports[2:], START + 60, PATIENCE) == START + 45
    assert reported_until([], START + 60, PATIENCE) == START + 45


def test_latencies_come_from_the_buckets_of_all_workers_together() -> None:
    slow = {"sent_to_durable": distribution(BOUNDS, 8, 1)}
    fast = {"sent_to_durable": distribution(BOUNDS, 1.5, 9)}
    lines = charts([report("a", 5, 0, **slow), report("b", 5, 0, **fast)], Steps.between(START, START + 5, 5), PATIENCE)
    ((median,), (high,)) = lines["sent"].values()
    assert median is not None
    assert high is not None
    assert 1000 <= median <= 2000
    assert 5000 <= high <= 10_000


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(0, 20), min_size=1), st.floats(0.01, 1))
def test_a_quantile_lies_in_the_bucket_that_the_value_lies_in(values: list[float], quantile: float) -> None:
    buckets: Mapping[str, float] = {
        **{str(bound): sum(value <= bound for value in values) for bound in BOUNDS},
        "+Inf": len(values),
    }
    estimate = quantile_of(buckets, quantile)
    exact = sorted(values)[max(0, -(-int(quantile * 1e9) * len(values) // 10**9) - 1)]
    assert estimate is not None
    low = max((bound for bound in BOUNDS if bound < exact), default=0)
    assert low <= estimate <= min((bound for bound in BOUNDS if bound >= exact), default=BOUNDS[-1])


def test_without_values_there_is_no_quantile() -> None:
    assert quantile_of({}, 0.5) is None
    assert quantile_of({"1": 0, "+Inf": 0}, 0.5) is None


def test_batches_have_an_average() -> None:
    lines = charts([report("a", 5, 300, batch=30)], Steps.between(START, START + 5, 5), PATIENCE)["sizes"]
    assert lines["average"] == [30]


def test_a_backlog_that_several_have_asked_for_counts_once_and_a_lag_is_that_of_the_last() -> None:
    mine = {"backlog": {"commands": {"processors": 70}}, "subscribers": {"bank.Ledger": followed(1.5)}}
    theirs = {"backlog": {"commands": {"processors": 60}}, "subscribers": {"bank.Ledger": followed(4.0)}}
    found = charts([report("a", 4, 0, **mine), report("b", 5, 0, **theirs)], Steps.between(START, START + 5, 5), 15)
    assert found["backlog"] == {"commands → processors": [70]}
    assert found["lag"] == {"bank.Ledger": [4.0]}


def test_who_has_ended_has_no_lag_any_more() -> None:
    reports = [report("a", at, 0, ended=at == 10, subscribers={"x": followed(3)}) for at in (5, 10)]
    assert charts(reports, Steps.between(START, START + 15, 5), PATIENCE)["lag"] == {"x": [3, None, None]}


def test_figures_that_an_older_version_did_not_report_are_missing_and_not_wrong() -> None:
    reports = [Report("a", START, START + at, False, {"finished": at * 2, "workers": 1}) for at in (5, 10)]
    found = charts(reports, Steps.between(START, START + 10, 5), PATIENCE)
    assert found["commands"]["finished"] == [2, 2]
    assert found["sent"] == {"p50": [None, None], "p99": [None, None]}
    assert found["backlog"] == found["lag"] == {}
