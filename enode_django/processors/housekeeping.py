"""The duties of a worker on timers: membership, leases, offsets, trimming, old refusals and dead letters."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial

from django.db import close_old_connections

from enode_django.commanding.uniqueness import Uniqueness
from enode_django.concurrency.outages import Attempts
from enode_django.conf.groups import Conf
from enode_django.equeue.consumer.queue_consumer import QueueConsumer
from enode_django.equeue.transport import Transport
from enode_django.eventstore.base import EventStore, Shard
from enode_django.eventstore.dead_letters import DeadLetters
from enode_django.exceptions import EnodeError, UnknownTopic
from enode_django.repository.loading import AggregateLoader
from enode_django.repository.unique_keys import declaring_classes

logger = logging.getLogger("enode_django.worker")

JOIN_INTERVAL = 1.0
"""The most seconds between two calls of `QueueConsumer.join`, which say which queues a worker must release or gets."""
TRIM_INTERVAL = 5.0
PRUNE_INTERVAL = 600.0
OFTEN = 2.0
"""Duties with a longer interval in seconds are rare: the log of an outage's end does not wait for them."""


Duty = tuple[float, Callable[[], None]]
"""An interval in seconds, and the function to call at the beginning of each interval."""


class Housekeeper:
    """Does duties on timers. `tick` is called by one thread, at once and then after ``pause`` seconds. A duty that
    fails for the moment is tried at its next turn."""

    def __init__(self, duties: Sequence[Duty]) -> None:
        self._duties = duties
        self._due = [time.monotonic()] * len(duties)
        self._attempts = [Attempts(is_rare=interval > OFTEN) for interval, _ in duties]

    @property
    def pause(self) -> float:
        """Seconds until the next duty is due."""
        return max(0.0, min(self._due) - time.monotonic())

    def run(self, stopping: threading.Event) -> None:
        """Do the duties until ``stopping`` is set."""
        while not stopping.wait(self.pause):
            self.tick()

    def tick(self) -> None:
        now = time.monotonic()
        for number, (interval, duty) in enumerate(self._duties):
            if self._due[number] <= now:
                self._due[number] = now + interval
                try:
                    duty()
                    self._attempts[number].worked()
                except EnodeError as error:
                    if not error.retriable:
                        raise
                    self._attempts[number].failed(error)


def queue_keepers(
    conf: Conf, consumers: Sequence[QueueConsumer], *, trim_more: Callable[[], None] = lambda: None
) -> Mapping[str, Housekeeper]:
    """Return housekeepers for consumers of one topic, by names of threads. Each needs a thread of its own: leases and
    sessions run out while a call waits for its answer, so they must not wait for other calls. One consumer trims for
    all, and then calls ``trim_more``."""
    duties: dict[str, list[Duty]] = {
        "enode-keeper-offsets": [
            *[(conf.WORKERS.COMMIT_INTERVAL, consumer.commit) for consumer in consumers],
            *[(TRIM_INTERVAL, trim) for consumer in consumers[:1] for trim in (consumer.trim, trim_more)],
        ],
    }
    for consumer in consumers:
        duties[f"enode-keeper-leases-{consumer.group}"] = [(conf.WORKERS.LEASE / 4, consumer.renew)]
        duties[f"enode-keeper-members-{consumer.group}"] = [(min(JOIN_INTERVAL, conf.WORKERS.LEASE / 4), consumer.join)]
    return {name: Housekeeper(of_thread) for name, of_thread in duties.items() if of_thread}


def trimming(consumer: QueueConsumer, transport: Transport, topic: str) -> Callable[[], None]:
    """Return a duty that trims another topic than the consumer's, which may have no consumer to trim it. The worker
    that owns the first queue does it for all."""

    def trim_topic() -> None:
        if 0 in consumer.owned:
            with suppress(UnknownTopic):  # nothing was sent to the topic yet
                transport.trim(topic)

    return trim_topic


def store_duties(
    conf: Conf, consumer: QueueConsumer, store: EventStore, dead_letters: Sequence[DeadLetters]
) -> Sequence[Duty]:
    """Return duties that wait for the store. They need another thread than those of `queue_keepers`."""

    def age(seconds: float | None) -> timedelta | None:
        """Return the age from which to delete, or None. Only the worker that owns the first queue deletes, for all."""
        if seconds is None or 0 not in consumer.owned:
            return None
        close_old_connections()
        return timedelta(seconds=seconds)

    def prune_refusals(shard: Shard) -> None:
        if (oldest := age(conf.COMMANDS.REFUSAL_RETENTION)) is not None:
            before = datetime.now(UTC) - oldest  # workers have dated them
            while shard.prune_refusals(before):
                pass

    def prune_dead_letters(letters: DeadLetters) -> None:
        if (oldest := age(conf.COMMANDS.DEAD_LETTER_RETENTION)) is not None:
            while pruned := letters.prune(oldest):
                logger.warning("deleted %d dead letters older than %s that nobody settled", pruned, oldest)

    uniqueness = Uniqueness(AggregateLoader(store), conf.COMMANDS.CLAIM_DEADLINE)

    def settle_claims() -> None:
        if 0 in consumer.owned and declaring_classes():
            close_old_connections()
            uniqueness.settle_old()

    return [
        (conf.COMMANDS.CLAIM_DEADLINE, settle_claims),
        *((PRUNE_INTERVAL, partial(prune_refusals, shard)) for shard in store.shards),
        *((PRUNE_INTERVAL, partial(prune_dead_letters, letters)) for letters in dead_letters),
    ]
