"""The databases of an event store, and the time that callers retry them."""

from __future__ import annotations

from collections.abc import Sequence

from django.db import connections

from enode_django.concurrency.backoff import Persist, once, within
from enode_django.eventstore.base import EventStore

PATIENCE = 1.0
"""Seconds for retries after an error that passes, such as a deadlock, while the caller waits."""


def aliases_of(store: EventStore) -> Sequence[str]:
    """Return the aliases of the store's databases; empty for a store in memory."""
    return [shard.alias for shard in store.shards if hasattr(shard, "alias")]


def patience(store: EventStore) -> Persist:
    """Return a function that retries for `PATIENCE`, but calls once inside a transaction of the caller."""
    return once if any(connections[alias].in_atomic_block for alias in aliases_of(store)) else within(PATIENCE)
