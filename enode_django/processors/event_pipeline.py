"""The threads of one event worker.

    subscriber s: pulls for subscriber s alone, and handles what it pulled (one thread per subscriber)
    keepers: keep leases and memberships, and commit the offsets, of all of them, on timers

Subscribers share nothing: each is a consumer group with its own division of the queues, offsets and pace.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from math import inf
from types import MappingProxyType
from typing import TypeVar

from enode_django.bus.messages import decode_published
from enode_django.concurrency.backoff import delays
from enode_django.concurrency.in_flight import InFlightMarker
from enode_django.concurrency.outages import Attempts
from enode_django.concurrency.threads import join_threads, join_until
from enode_django.conf.groups import Conf
from enode_django.databases import end_sessions, heal_connections
from enode_django.equeue.consumer.queue_consumer import Acquired, PulledMessages, QueueConsumer
from enode_django.equeue.transport import Transport
from enode_django.eventing.in_flight import InFlight
from enode_django.eventing.subscribers import Subscriber, key_of
from enode_django.eventing.sweep import SweepingSubscription
from enode_django.eventstore.base import EventStore, Shard
from enode_django.eventstore.sqlstates import DATABASE_ERRORS, is_transient
from enode_django.exceptions import (
    EnodeError,
    MalformedMessage,
    PartlyUnavailable,
    StoreUnavailable,
    SubscriberUnavailable,
    TransportUnavailable,
)
from enode_django.processors.exit_statuses import handler_died
from enode_django.processors.housekeeping import Housekeeper, queue_keepers
from enode_django.processors.statistics import Statistics
from enode_django.processors.threads import start_worker_thread
from enode_django.runtime import make_subscription, running_subscribers, time_limits

logger = logging.getLogger("enode_django.worker")

Value = TypeVar("Value")
JOIN_TIMEOUT = 4.0
"""Seconds for all stopped threads to end: less than the supervisor waits beyond the grace time."""


MakeSubscription = Callable[..., SweepingSubscription]
"""Takes the arguments of `enode_django.runtime.make_subscription`. One thread uses all of what it returns."""


class SubscriberThread:
    """One subscriber of a worker: its consumer, its subscription, and their thread."""

    def __init__(
        self,
        conf: Conf,
        subscriber: Subscriber,
        transport: Transport,
        store: EventStore,
        *,
        owner: str,
        statistics: Statistics,
        in_flight: InFlight,
        time_limit: float,
        make_subscription: MakeSubscription,
    ) -> None:
        self.name = subscriber.name
        self.consumer = QueueConsumer(
            transport,
            group=key_of(subscriber),
            topic=conf.SUBSCRIBERS.TOPIC,
            owner=owner,
            lease=conf.WORKERS.LEASE,
            long_poll=conf.WORKERS.LONG_POLL,
        )
        self._subscriber = subscriber
        self._limit = conf.SUBSCRIBERS.PULL_MAX_BATCH
        self._store = store
        self._statistics = statistics
        self.time_limit = time_limit
        self._busy_since: float | None = None
        self._behind_since: float | None = None
        self._draining = threading.Event()
        self._stopping = threading.Event()
        self._subscription = make_subscription(
            subscriber,
            transport,
            store,
            persist=self._until_it_works,
            in_flight=in_flight,
            hand_over=self._hand_over,
        )

    # -- called by the main thread --------------------------------------------------------------------------------

    def drain(self) -> None:
        """Let the thread end when the portion in hand is handled, and its queues are released."""
        try:
            self.consumer.leave()
        except EnodeError as error:
            logger.warning("%s: %s; the group learns it when the session ends", self.name, error)
        self._draining.set()  # set after leaving the group: once the thread sees it, it pulls nothing more

    def stop(self) -> None:
        """Let the thread end after its current work, without retrying transient failures."""
        self._stopping.set()

    # -- called by a keeper ---------------------------------------------------------------------------------------

    def complain(self) -> None:
        """Log a warning if one batch takes very long. The supervisor kills a worker whose handler hangs, but not one
        that waits for a database, or for locks."""
        since = self._busy_since
        if since is not None and (seconds := time.monotonic() - since) > self.time_limit:
            logger.warning("%s has been busy with one batch for %.1f s; does a handler hang?", self.name, seconds)

    # -- the thread -----------------------------------------------------------------------------------------------

    def run(self) -> None:
        waits, attempts = delays(), Attempts()
        while not self._stopping.is_set():
            try:
                self._round()
            except EnodeError as error:
                self._wait_after(error, next(waits), attempts)
                continue
            waits = delays()
            attempts.worked()
            if self._draining.is_set() and self.consumer.is_idle:
                return  # its queues are released; other subscribers may still be at work

    def _round(self) -> None:
        heal_connections()
        self._succeed(self.consumer.acquire_missing())
        self.consumer.release_drained(self._subscription.held_in)
        self._work(self._subscription.retry_due)
        self._work(partial(self._subscription.tick, self.consumer.owned))
        self._report()  # of what was retried: the pull may take long
        pulled = self.consumer.pull(self._limit, self._pull_wait())
        self._behind_since = oldest_of(pulled)
        self._report()
        if pulled:
            self._work(partial(self._subscription.handle, pulled))
            if all(len(one.offsets) < self._limit for one in pulled):  # else there may be more
                self._behind_since = None
            self._report()

    def _hand_over(self) -> None:
        """Release the queues that others are to have, with all that is unfinished. Called between portions of a batch,
        when nothing is being handled. If that fails for the moment, it is done after the batch."""
        try:
            self._succeed(self.consumer.acquire_missing())
            self.consumer.release_drained(lambda window: window.unfinished)
        except EnodeError as error:
            if not error.retriable:
                raise
            logger.debug("%s hands over later: %s", self.name, error)

    def _report(self) -> None:
        subscription = self._subscription
        self._statistics.set_subscriber(self.name, subscription.handled, subscription.parked, self._behind_since)

    def _work(self, call: Callable[[], None]) -> None:
        self._busy_since = time.monotonic()
        try:
            self._until_it_works(call)
        finally:
            self._busy_since = None

    def _succeed(self, acquired: Sequence[Acquired]) -> None:
        """End the sessions of owners whose leases ran out, which may still be at work, and note what owners died at."""
        queues: dict[str, list[str]] = {}
        for window, previous_owner, deaths in acquired:
            self._subscription.suspect(window.queue, deaths)
            if previous_owner is not None:
                queues.setdefault(previous_owner, []).append(str(window.queue))
        for owner, taken in queues.items():
            ended = self._until_it_works(partial(self._end_sessions, owner))
            topic = acquired[0].window.topic
            logger.warning(
                "%s took %s/%s from %s, ending %d of its sessions", self.name, topic, ", ".join(taken), owner, ended
            )

    def _end_sessions(self, owner: str) -> int:
        """End the sessions in the event store, and in the database of the subscriber's tables. Raises `EnodeError`."""
        ended = sum(self._end_sessions_in(shard, owner) for shard in self._store.shards)
        alias = self._subscriber.database
        try:
            return ended + end_sessions(alias, owner)
        except DATABASE_ERRORS as error:
            if not is_transient(error):
                raise
            raise SubscriberUnavailable(f"the database {alias!r} of {self.name} cannot be reached: {error}") from error

    def _end_sessions_in(self, shard: Shard, owner: str) -> int:
        """End the sessions in one shard. If it is unavailable, the other shards are still used: of what is done there,
        only storing a snapshot could cause a wait."""
        try:
            return shard.end_sessions(owner)
        except StoreUnavailable as error:
            if len(self._store.shards) == 1:
                raise
            logger.warning("%s cannot end the sessions of %s: %s", self.name, owner, error)
            return 0

    def _pull_wait(self) -> float:
        due, wait = self._subscription.next_retry, self.consumer.pull_wait
        return wait if due is None else min(wait, max(0.0, due - time.monotonic()))

    def _until_it_works(self, call: Callable[[], Value]) -> Value:
        """Repeat a call that must not be left half done: the same messages are not pulled again while this worker
        lives. Raises errors that are not retriable, and the last error when the thread is told to stop."""
        with Attempts() as attempts:
            for delay in delays():
                try:
                    return call()
                except EnodeError as error:
                    if self._stopping.is_set():
                        raise
                    self._wait_after(error, delay, attempts)
        raise AssertionError("delays() ends")

    def _wait_after(self, error: EnodeError, delay: float, attempts: Attempts) -> None:
        if not error.retriable:
            raise error
        attempts.failed(error)
        self._stopping.wait(delay)


def oldest_of(pulled: Sequence[PulledMessages]) -> float | None:
    """Return when the oldest of these streams was stored, in seconds since 1970; each window's first is its oldest."""
    times = []
    for _, _, bodies in pulled:
        with suppress(MalformedMessage):
            stored_at = decode_published(bodies[0]).record.created_at
            if isinstance(stored_at, datetime):
                times.append(stored_at.timestamp())
    return min(times, default=None)


class EventPipeline:
    """An event worker's threads. Its main thread calls `start`, `drain` and `close`; the rest runs in the threads.

    ``notes`` has a marker for each subscriber, by key, where it notes its work in hand.
    """

    def __init__(
        self,
        conf: Conf,
        transport: Transport,
        store: EventStore,
        *,
        owner: str,
        statistics: Statistics,
        notes: Mapping[str, InFlightMarker] = MappingProxyType({}),
        make_subscription: MakeSubscription = make_subscription,
    ) -> None:
        suspects, limits = threading.Lock(), time_limits(conf)
        self._subscribers = [
            SubscriberThread(
                conf,
                subscriber,
                transport,
                store,
                owner=owner,
                statistics=statistics,
                in_flight=InFlight(notes.get(key_of(subscriber)), suspects, max_deaths=conf.WORKERS.MAX_ABNORMAL_ENDS),
                time_limit=limits[key_of(subscriber)],
                make_subscription=make_subscription,
            )
            for subscriber in running_subscribers()
        ]
        self._consumers = [subscriber.consumer for subscriber in self._subscribers]
        self._keepers = dict(queue_keepers(conf, self._consumers))
        complaints = [(one.time_limit, one.complain) for one in self._subscribers if one.time_limit < inf]
        if complaints:
            self._keepers["enode-keeper-handlers"] = Housekeeper(complaints)
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []
        self._keeping: list[threading.Thread] = []

    def start(self) -> None:
        self._threads = [
            start_worker_thread(f"enode-follow-{subscriber.name}", subscriber.run, handler_died)
            for subscriber in self._subscribers
        ]
        self._keeping = [
            start_worker_thread(name, partial(keeper.run, self._stopping)) for name, keeper in self._keepers.items()
        ]

    def drain(self, timeout: float) -> bool:
        """Stop pulling, finish the portions in hand, release the queues. Return True if all of it was done in time.

        Other pulled messages, and those that have failed and are to be tried again, stay in the queue.
        """
        for subscriber in self._subscribers:
            subscriber.drain()
        drained = join_until(time.monotonic() + timeout, self._threads)
        for subscriber in self._subscribers:
            subscriber.stop()
        self._stopping.set()
        join_until(time.monotonic() + JOIN_TIMEOUT, [*self._threads, *self._keeping])
        return self._abandon() and drained

    def _abandon(self) -> bool:
        is_done = True
        for consumer in self._consumers:
            try:
                consumer.abandon()
            except TransportUnavailable as error:
                logger.warning("%s; the queues are kept until their leases end", error)
                is_done = False
                if not isinstance(error, PartlyUnavailable):
                    break
        return is_done

    def close(self, timeout: float) -> None:
        """Wait up to ``timeout`` seconds for each thread of a drained pipeline to end."""
        join_threads([*self._threads, *self._keeping], timeout)
