"""Other libraries' projections of the same deposits: each run in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys

from benchmarks.figures import Figure, best
from benchmarks.peer import BEST, connection_settings
from benchmarks.workspace import PROJECT, Services


def run(services: Services, quick: bool) -> list[Figure]:
    """The best of its rounds."""
    rounds, count = (1, 4_000) if quick else (3, 10_000)
    rates = [_runner_rate(services, count) for _ in range(rounds)]
    return [best("peer projection", rates, "events/s", f"{count:,} events, ProjectionRunner, exactly once")]


def _runner_rate(services: Services, count: int) -> float:
    with services.database(migrated=False) as url:
        settings = json.dumps({**connection_settings(url), **BEST})
        command = [sys.executable, "-m", "benchmarks.peer_projection_process", str(count), settings]
        done = subprocess.run(command, cwd=PROJECT, stdout=subprocess.PIPE, check=True, text=True)
        return float(done.stdout)
