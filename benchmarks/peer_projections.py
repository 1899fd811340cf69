"""Other libraries' projections of the same deposits, each run in a separate process."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from benchmarks.figures import Figure, best
from benchmarks.peer import BEST, connection_settings
from benchmarks.peer_environments import EVENTSOURCE_PY, printed
from benchmarks.workspace import Services


def run(services: Services, quick: bool) -> list[Figure]:
    """Measure the best of its rounds."""
    rounds, count = (1, 4_000) if quick else (3, 10_000)
    rates = [_runner_rate(services, count) for _ in range(rounds)]
    figures = [best("peer projection", rates, "events/s", f"{count:,} events, ProjectionRunner, exactly once")]
    python = EVENTSOURCE_PY.python()
    if python is not None:
        rates = [_batch_rate(services, python, 2 * count) for _ in range(rounds)]
        note = f"{2 * count:,} events, handle_batch of 500, not exactly once"
        figures.append(best("batch peer projection", rates, "events/s", note))
    return figures


def _runner_rate(services: Services, count: int) -> float:
    with services.database(migrated=False) as url:
        settings = json.dumps({**connection_settings(url), **BEST})
        return printed([sys.executable, "-m", "benchmarks.peer_projection_process", count, settings])


def _batch_rate(services: Services, python: Path, count: int) -> float:
    with services.database(migrated=False) as url:
        return printed([python, "-m", "benchmarks.batch_peer_process", count, url])
