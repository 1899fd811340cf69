"""The databases of an event store, and the time that callers retry them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from math import inf
from typing import TypeVar

from django.db import connections

from enode_django.concurrency.backoff import Persist, once, within
from enode_django.eventstore.base import EventStore
from enode_django.eventstore.sqlstates import is_conflict_of_transactions, is_stale_statement
from enode_django.exceptions import SubscriberUnavailable

Value = TypeVar("Value")

PATIENCE = 1.0
"""Seconds for retries after an error that passes, such as a deadlock, while the caller waits."""


def aliases_of(store: EventStore) -> Sequence[str]:
    """Return the aliases of the store's databases; empty for a store in memory."""
    return [shard.alias for shard in store.shards if hasattr(shard, "alias")]


def patience(store: EventStore) -> Persist:
    """Return a function that retries for `PATIENCE`, but calls once inside a transaction of the caller."""
    return once if any(connections[alias].in_atomic_block for alias in aliases_of(store)) else within(PATIENCE)


class SharedPatience:
    """The patience of all subscribers with each of their databases. One that was away less than `PATIENCE` ago is
    called once: a caller with many subscribers must not wait for each of them. A deadlock, or a statement that has to
    be prepared again, does not count: there another try helps. Thread-safe."""

    def __init__(self, store: EventStore) -> None:
        self._store = store
        self._away: dict[str, float] = {}

    def of(self, alias: str) -> Persist:
        """Return a function that retries as that of `patience` does, unless the database was just away."""

        def persist(call: Callable[[], Value], /) -> Value:
            was_away = time.monotonic() - self._away.get(alias, -inf) < PATIENCE
            try:
                return (once if was_away else patience(self._store))(call)
            except SubscriberUnavailable as error:
                if not error.waiting and _is_away(error.__cause__ or error):
                    self._away[alias] = time.monotonic()
                raise

        return persist


def _is_away(error: BaseException) -> bool:
    return not (is_conflict_of_transactions(error) or is_stale_statement(error))
