"""What a worker does on timers: membership, leases, offsets, trimming, old refusals."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial

from django.db import close_old_connections

from enode_django.conf import Conf
from enode_django.equeue.consumer import QueueConsumer
from enode_django.eventstore.base import EventStore, Shard
from enode_django.exceptions import EnodeError

logger = logging.getLogger("enode_django.worker")

JOIN_INTERVAL = 1.0
"""At most: so long it may take until a worker hears that it shall give up a queue, or have one."""
TRIM_INTERVAL = 5.0
PRUNE_INTERVAL = 600.0


Duty = tuple[float, Callable[[], None]]
"""An interval in seconds, and what is to be done at the beginning of each."""


class Housekeeper:
    """`tick` is called by one thread, every ``pause`` seconds. What fails for the moment is tried at its next turn."""

    def __init__(self, duties: Sequence[Duty], clock: Callable[[], float] = time.monotonic) -> None:
        self._duties = duties
        self._clock = clock
        self._due = [clock()] * len(duties)
        self.pause = min(0.5, min(interval for interval, _ in duties))

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
                    logger.warning("%s: %s", getattr(duty, "func", duty).__name__, error)


def queue_duties(conf: Conf, consumer: QueueConsumer) -> Sequence[Duty]:
    return [
        (_join_interval(conf), consumer.join),
        (conf.LEASE / 4, consumer.renew),
        (conf.COMMIT_INTERVAL, consumer.commit),
        (TRIM_INTERVAL, consumer.trim),
    ]


def follower_duties(conf: Conf, consumers: Sequence[QueueConsumer]) -> Sequence[Duty]:
    """For several consumers of one topic: the leases of all come first, and one trims for all."""
    joins: list[Duty] = [(_join_interval(conf), consumer.join) for consumer in consumers]
    renewals: list[Duty] = [(conf.LEASE / 4, consumer.renew) for consumer in consumers]
    commits: list[Duty] = [(conf.COMMIT_INTERVAL, consumer.commit) for consumer in consumers]
    return [*joins, *renewals, *commits, *[(TRIM_INTERVAL, consumer.trim) for consumer in consumers[:1]]]


def store_duties(conf: Conf, consumer: QueueConsumer, store: EventStore) -> Sequence[Duty]:
    """For another thread than that of the `queue_duties`: a lease must not wait for the store."""
    retention = conf.REFUSAL_RETENTION_DAYS

    def prune(shard: Shard) -> None:
        # One worker of all does it: the one that owns the first queue.
        if retention is None or 0 not in consumer.owned:
            return
        close_old_connections()
        before = datetime.now(UTC) - timedelta(days=retention)
        while shard.prune_refusals(before):
            pass

    return [(PRUNE_INTERVAL, partial(prune, shard)) for shard in store.shards]


def _join_interval(conf: Conf) -> float:
    return min(JOIN_INTERVAL, conf.LEASE / 4)
