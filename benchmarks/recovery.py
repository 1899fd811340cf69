"""Recovery after a kill -9 of the workers when all their work is stored and nothing is committed to the queue."""

from __future__ import annotations

import signal
import time

from benchmarks import loads
from benchmarks.figures import Figure
from benchmarks.processors import Processors, timed_run, wait_for
from benchmarks.throughput import check_stored
from benchmarks.workspace import Services

NEVER = 100_000.0


def run(services: Services, quick: bool) -> list[Figure]:
    count = 20_000 if quick else 100_000
    accounts = loads.account_ids(1)
    messages = loads.deposits(accounts, count)
    with services.workspace(WORKERS={"COMMIT_INTERVAL": NEVER}) as workspace, Processors(workspace) as processors:
        workspace.send(loads.opens(accounts))
        processors.wait_published(1)
        anew = timed_run(workspace, processors, messages, count)
        killed = time.perf_counter()
        processors.signal(signal.SIGKILL)
        wait_for("the restarted workers go on", lambda: workspace.published() > count + 1)
        begun = time.perf_counter() - killed
        again = processors.wait_published(2 * (count + 1)) - killed
        check_stored(workspace, count + 1)
    return [
        Figure("recovery: the same anew", anew, "s", note=f"{count:,} deposits to one account"),
        Figure("recovery: workers are back", begun, "s", note="from kill -9 to the first stream published again"),
        Figure("recovery", again, "s", note="from kill -9 to the last stream published again"),
    ]
