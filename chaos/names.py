"""Names and sizes shared by the parts of a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

QUEUES = 4
TIMEOUT = 3.0
GROUP, COMMANDS, EVENTS = "processors", "commands", "events"
SAMPLES = ("bank.AccountSummaries", "bank.Ledger", "bank.balance_cache", "bank.transfers", "notes.Notes")
OBSERVERS = ("chaos.observer",)
SUBSCRIBERS = (*SAMPLES, *OBSERVERS)

HOSTS = ("first", "second")
"""The supervisors that run all the time."""
GUEST = "guest"
"""A supervisor that is started and stopped."""
CLIENTS, CELERY, BEAT, DRIVER, BROKER = "clients", "celery", "beat", "driver", "broker"
REDIS, CLUSTER = "redis", "redis-cluster"
TRANSPORTS = (BROKER, REDIS, CLUSTER)
NODES = ("node-1", "node-2", "node-3")
"""The masters of a Redis Cluster."""
ONLOOKER = "onlooker"
"""A consumer group that commits nothing, so that all messages are kept to the end."""
PREFIX = "chaos"
"""The prefix of the keys in Redis."""
CELERY_DATABASE = 5
SNAPSHOTS_EVERY = 5.0
"""Seconds between the snapshot tasks of beat."""

ENODE: Mapping[str, Any] = {
    "QUEUE": {"QUEUES_PER_TOPIC": QUEUES},
    "WORKERS": {
        "LEASE": 2.0,
        "GRACE": 8.0,
        "COMMIT_INTERVAL": 0.3,
        "MAX_ABNORMAL_ENDS": 1_000,
    },  # kills at random are not a command's fault
    "COMMANDS": {"TIME_LIMIT": 20.0},
    "SUBSCRIBERS": {"SWEEP_INTERVAL": 3.0},
    "REPORTS": {"INTERVAL": None},
    "JOBS": {"LEASE": 3.0},
    "SPARK": {"MASTER": "none"},
    "BROKER": {"CHUNK_SIZE": 4 * 1024 * 1024},
}


class Setup(NamedTuple):
    """The kind of a world. ``transport`` is one of `TRANSPORTS`, ``faults`` are the kinds switched on."""

    transport: str
    shards: int
    faults: frozenset[str] = frozenset()

    @property
    def postgres(self) -> list[str]:
        """The PostgreSQL servers as targets of faults."""
        return [f"postgres {number}" for number in range(self.shards)]

    @property
    def ways(self) -> tuple[str, ...]:
        """The names of the proxies to the queue that faults may use. In a cluster each leads to a node, for all."""
        return NODES if self.transport == CLUSTER else (*HOSTS, CLIENTS)
