"""Other libraries' projections of the same deposits, each run in a separate process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.figures import Figure, best
from benchmarks.peer import BEST, connection_settings
from benchmarks.workspace import PROJECT, Services

BATCH_PEER = "eventsource-py[postgresql]==0.15.1"
BATCH_PEER_HOME = PROJECT / "build" / "batch-peer"
BATCH_PEER_PYTHONS = (sys.executable, "python3.14", "python3.13")
"""It needs Python 3.13. ``PEER_PYTHON`` names another interpreter."""
SECONDS_TO_INSTALL = 300


def run(services: Services, quick: bool) -> list[Figure]:
    """Measure the best of its rounds."""
    rounds, count = (1, 4_000) if quick else (3, 10_000)
    rates = [_runner_rate(services, count) for _ in range(rounds)]
    figures = [best("peer projection", rates, "events/s", f"{count:,} events, ProjectionRunner, exactly once")]
    python = _batch_peer()
    if python is not None:
        rates = [_batch_rate(services, python, 2 * count) for _ in range(rounds)]
        note = f"{2 * count:,} events, handle_batch of 500, not exactly once"
        figures.append(best("batch peer projection", rates, "events/s", note))
    return figures


def _runner_rate(services: Services, count: int) -> float:
    with services.database(migrated=False) as url:
        settings = json.dumps({**connection_settings(url), **BEST})
        return _printed([sys.executable, "-m", "benchmarks.peer_projection_process", str(count), settings])


def _batch_rate(services: Services, python: Path, count: int) -> float:
    with services.database(migrated=False) as url:
        return _printed([str(python), "benchmarks/batch_peer_process.py", str(count), url])


def _printed(command: Sequence[str]) -> float:
    done = subprocess.run(command, cwd=PROJECT, stdout=subprocess.PIPE, check=True, text=True)
    return float(done.stdout)


def _batch_peer() -> Path | None:
    """Return an interpreter with the library, in a virtualenv that is made once; or print why there is none, and return
    None."""
    python = BATCH_PEER_HOME / "bin" / "python"
    installed = BATCH_PEER_HOME / BATCH_PEER
    if not installed.exists():
        base = next(filter(_is_new_enough, (os.environ.get("PEER_PYTHON", sys.executable), *BATCH_PEER_PYTHONS)), None)
        if base is None:
            print(f"  {BATCH_PEER} is left out: it needs Python 3.13 (PEER_PYTHON=… names one)")
            return None
        try:
            _run([base, "-m", "venv", "--clear", str(BATCH_PEER_HOME)])
            _run([str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", BATCH_PEER])
        except (OSError, subprocess.SubprocessError) as error:
            print(f"  {BATCH_PEER} is left out: it cannot be installed ({error})")
            return None
        installed.touch()
    return python


def _is_new_enough(python: str) -> bool:
    try:
        return not subprocess.run(
            [python, "-c", "import sys; sys.exit(sys.version_info < (3, 13))"], capture_output=True
        ).returncode
    except OSError:
        return False


def _run(command: Sequence[str]) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=SECONDS_TO_INSTALL)
