"""The databases of an event store, and how long a caller waits for them."""

from __future__ import annotations

from collections.abc import Sequence

from django.db import connections

from enode_django.concurrency.backoff import Persist, once, within
from enode_django.eventstore.base import EventStore

PATIENCE = 1.0
"""Seconds for trying again what a database has refused for a passing reason, as a deadlock, with the caller waiting."""


def aliases_of(store: EventStore) -> Sequence[str]:
    """Return the aliases of its databases; none of a store in memory."""
    return [shard.alias for shard in store.shards if hasattr(shard, "alias")]


def patience(store: EventStore) -> Persist:
    """Return what tries again for `PATIENCE`; only once inside a transaction of the caller's, which may be lost."""
    return once if any(connections[alias].in_atomic_block for alias in aliases_of(store)) else within(PATIENCE)
