"""``eventsourcing`` with its Postgres module under the same two loads, each configuration in a separate process."""

from __future__ import annotations

import json
import subprocess
import sys
from urllib.parse import unquote, urlsplit

from benchmarks.figures import Figure, best
from benchmarks.workspace import PROJECT, Services

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
    return [
        best(
            f"peer {name}",
            [_rate(services, settings, load, count) for _ in range(rounds)],
            "commands/s",
            f"{count:,} deposits, 8 threads",
        )
        for name, settings, load, count in cases
    ]


def _rate(services: Services, settings: dict[str, str], load: str, count: int) -> float:
    with services.database(migrated=False) as url:
        environment = {**connection_settings(url), **CACHE, **settings}
        command = [sys.executable, "-m", "benchmarks.peer_process", load, str(count), json.dumps(environment)]
        done = subprocess.run(command, cwd=PROJECT, stdout=subprocess.PIPE, check=True, text=True)
        return float(done.stdout)


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
