"""What a worker does on timers: leases, offsets, trimming, old refusals."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from django.db import close_old_connections

from enode_django.conf import Conf
from enode_django.equeue.consumer import QueueConsumer
from enode_django.eventstore.base import EventStore
from enode_django.exceptions import EnodeError

logger = logging.getLogger("enode_django.worker")

TRIM_INTERVAL = 5.0
PRUNE_INTERVAL = 600.0


class Housekeeper:
    """`tick` is called by one thread, every ``pause`` seconds. What fails for the moment is tried at its next turn."""

    def __init__(
        self, conf: Conf, consumer: QueueConsumer, store: EventStore, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._consumer = consumer
        self._store = store
        self._retention = conf.REFUSAL_RETENTION_DAYS
        self._clock = clock
        self._duties: list[tuple[float, Callable[[], None]]] = [
            (conf.LEASE / 4, consumer.renew),
            (conf.COMMIT_INTERVAL, consumer.commit),
            (TRIM_INTERVAL, consumer.trim),
            (PRUNE_INTERVAL, self._prune),
        ]
        self._due = [clock() + interval for interval, _ in self._duties]
        self.pause = min(0.5, *(interval for interval, _ in self._duties))

    def tick(self) -> None:
        now = self._clock()
        for number, (interval, duty) in enumerate(self._duties):
            if self._due[number] <= now:
                self._due[number] = now + interval
                try:
                    duty()
                except EnodeError as error:
                    if not error.retriable:
                        raise
                    logger.warning("%s: %s", duty.__name__, error)

    def _prune(self) -> None:
        """One worker of all does it: the one that owns the first queue."""
        if self._retention is None or 0 not in self._consumer.owned:
            return
        close_old_connections()
        before = datetime.now(UTC) - timedelta(days=self._retention)
        while self._store.prune_refusals(before):
            pass
