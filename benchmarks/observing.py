"""The cost of observing the processors: rows of figures, a scraped page, an open dashboard."""

from __future__ import annotations

import re

from benchmarks import loads
from benchmarks.children import Asked
from benchmarks.figures import Figure, median
from benchmarks.processors import BenchmarkError, Processors, timed_run
from benchmarks.throughput import ACCOUNTS, check_stored
from benchmarks.workspace import Services, Workspace

METRICS = re.compile(r"/metrics at (http://\S+)")


def run(services: Services, quick: bool) -> list[Figure]:
    """Measure with and without observation in turn. A round lasts for several refreshes of the dashboard."""
    count, rounds = (50_000, 1) if quick else (400_000, 5)
    accounts = loads.account_ids(ACCOUNTS)
    opening, messages = loads.opens(accounts), loads.deposits(accounts, count)
    alone, watched = [], []
    for _ in range(rounds):
        with services.workspace(REPORTS={"INTERVAL": None}) as workspace:
            alone.append(count / _seconds(workspace, opening, messages, is_watched=False))
        with services.workspace() as workspace:
            watched.append(count / _seconds(workspace, opening, messages, is_watched=True))
    return [
        median("unwatched", alone, "commands/s", f"{count:,} deposits, no reports"),
        median("watched", watched, "commands/s", "reports, a scrape a second, a dashboard with its web server"),
    ]


def _seconds(workspace: Workspace, opening: loads.Messages, messages: loads.Messages, *, is_watched: bool) -> float:
    with Processors(workspace, options=("--metrics-port", "0") if is_watched else ()) as processors:
        workspace.send(opening)
        processors.wait_published(len(opening))
        if is_watched:
            with Asked("benchmarks.onlooker", _metrics_of(processors), env=workspace.environment) as onlooker:
                onlooker.answer()
                seconds = timed_run(workspace, processors, messages, len(messages))
        else:
            seconds = timed_run(workspace, processors, messages, len(messages))
    check_stored(workspace, len(opening) + len(messages))
    return seconds


def _metrics_of(processors: Processors) -> str:
    found = METRICS.search(processors.log())
    if found is None:
        raise BenchmarkError(f"no page of metrics is told of:\n{processors.log()}")
    return f"{found[1]}/metrics"
