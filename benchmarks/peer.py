"""Other libraries under the same two loads, each configuration in a separate process: ``eventsourcing`` with its
Postgres module, and ``eventsource-py`` with its PostgreSQL event store."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from urllib.parse import unquote, urlsplit

from benchmarks.figures import Figure, best
from benchmarks.peer_environments import EVENTSOURCE_PY, printed
from benchmarks.workspace import Services

CACHE = {"AGGREGATE_CACHE_MAXSIZE": "20000"}
"""More than the accounts, so that every load runs on cached aggregates."""

DEFAULTS: dict[str, str] = {}
BEST = {
    "POSTGRES_ENABLE_DB_FUNCTIONS": "yes",
    "DEEPCOPY_FROM_AGGREGATE_CACHE": "no",
    # Only one process writes, so the cache is always current: no query before each command.
    "AGGREGATE_CACHE_FASTFORWARD": "no",
    "POSTGRES_POOL_SIZE": "8",
}


def run(services: Services, quick: bool) -> list[Figure]:
    """Measure the best of its rounds, where ours are medians, so that it does not suffer from other work."""
    rounds = 1 if quick else 3
    scale = 1 if quick else 2
    cases = (
        ("defaults, spread", DEFAULTS, "spread", 2_000 * scale),
        ("best, spread", BEST, "spread", 6_000 * scale),
        ("defaults, one account", DEFAULTS, "hot", 500 * scale),
        ("best, one account", BEST, "hot", 2_000 * scale),
    )
    figures = [
        best(
            f"peer {name}",
            [_rate(services, settings, load, count) for _ in range(rounds)],
            "commands/s",
            f"{count:,} deposits, 8 threads",
        )
        for name, settings, load, count in cases
    ]
    python = EVENTSOURCE_PY.python()
    if python is not None:
        figures += _of_eventsource_py(services, python, quick)
    return figures


def _of_eventsource_py(services: Services, python: Path, quick: bool) -> list[Figure]:
    rounds = 1 if quick else 3
    accounts, deposits, to_one = (2_000, 2_000, 500) if quick else (10_000, 6_000, 2_000)
    figures = []
    for name, load, count in (("spread", "spread", deposits), ("one account", "hot", to_one)):
        rates = []
        for _ in range(rounds):
            with services.database(migrated=False) as url:
                rates.append(printed([python, "-m", "benchmarks.eventsource_py_process", load, count, accounts, url]))
        figures.append(best(f"eventsource-py, {name}", rates, "commands/s", f"{count:,} deposits, 8 tasks"))
    return figures


def _rate(services: Services, settings: dict[str, str], load: str, count: int) -> float:
    with services.database(migrated=False) as url:
        environment = {**connection_settings(url), **CACHE, **settings}
        return printed([sys.executable, "-m", "benchmarks.peer_process", load, count, json.dumps(environment)])


def connection_settings(url: str) -> dict[str, str]:
    parts = urlsplit(url)
    return {
        "PERSISTENCE_MODULE": "eventsourcing.postgres",
        "POSTGRES_DBNAME": parts.path.removeprefix("/"),
        "POSTGRES_HOST": parts.hostname or "127.0.0.1",
        "POSTGRES_PORT": str(parts.port or 5432),
        "POSTGRES_USER": unquote(parts.username or ""),
        "POSTGRES_PASSWORD": unquote(parts.password or ""),
    }
