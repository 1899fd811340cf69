"""Subscribers that follow events in the thread that stored them, with the checkpoints of event workers.

Events that a subscriber has missed are handled with the aggregate's next event, or after a comparison with the store.
The first command of each process makes that comparison, and then a command after each ``SWEEP_INTERVAL``.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import count
from math import inf
from typing import TYPE_CHECKING

from django.db import connections, transaction
from django.db.models.signals import post_migrate

from enode_django.conf import conf
from enode_django.databases import NOTICE_VANISHED_CLIENT, execute, separate_connection
from enode_django.equeue.transports.memory import MemoryTransport
from enode_django.eventing import checkpoints, parking
from enode_django.eventing.effects import EffectProcessor, SendCommands, sending
from enode_django.eventing.event_handlers import EventHandlerGroup
from enode_django.eventing.event_processors import EventProcessor
from enode_django.eventing.in_flight import FIRST_QUEUE
from enode_django.eventing.pending import PendingAggregate, Progress, follows_events, follows_refusal
from enode_django.eventing.registry import subscribers
from enode_django.eventing.runner import Runner
from enode_django.eventing.snapshot_subscriber import snapshot_subscriber
from enode_django.eventing.subscribers import Subscriber, key_of
from enode_django.eventing.sweep import SweepingSubscription
from enode_django.eventing.unowned import unowned_in
from enode_django.eventstore.base import EventStore, StreamRecord
from enode_django.exceptions import ConfigurationError
from enode_django.immediate.memory import has_tables
from enode_django.immediate.patience import SharedPatience, aliases_of
from enode_django.runtime import make_policy, make_processor, make_snapshots, outbox_databases

if TYPE_CHECKING:
    from enode_django.immediate.bus import ImmediateCommandBus

logger = logging.getLogger("enode_django.subscribers")

KEEPING_UP = 1.0
"""The most seconds, approximately, that a caller spends on work left by other callers."""

_ALL = frozenset({FIRST_QUEUE})
_LOCK = "SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))"
_TRY_LOCK = "SELECT pg_try_advisory_xact_lock(hashtextextended(%s, 0))"


class DatabaseSubscribers:
    """The subscribers of a project with a database. A handler's error is logged and never reaches the caller. The
    aggregate is parked at once, because nothing waits in memory here, and is retried after a later command when it is
    due."""

    def __init__(self, bus: ImmediateCommandBus) -> None:
        self._bus = bus
        self._store = bus.store
        self._patience = SharedPatience(bus.store)
        self._nothing = MemoryTransport()
        self._nothing.create_topic(conf().SUBSCRIBERS.TOPIC, 1)
        self._mine = _Mine()
        self._begun: set[Subscriber] = set()
        self._refused: set[Subscriber] = set()
        self._due = 0.0
        self._rounds = count()
        self._keeping_up = threading.Lock()
        post_migrate.connect(self._begin_anew)

    def begin(self) -> None:
        """Begin new subscribers. One that may be a renamed subscriber does not begin until that is settled."""
        for subscriber in self._declared():
            if subscriber not in self._begun and self._run(subscriber.name, partial(self._begin, subscriber)):
                after_commit(partial(self._note_begun, subscriber), subscriber.database)

    def _note_begun(self, subscriber: Subscriber) -> None:
        """Begin the subscriber no more, unless the hooks of a test case run inside its transaction."""
        if not connections[subscriber.database].in_atomic_block:
            self._begun.add(subscriber)

    def _begin_anew(self, **options: object) -> None:
        """Begin all subscribers again after a migration, or the flush of a test, which deletes their subscriptions."""
        self._begun.clear()

    def follow(self, record: StreamRecord) -> None:
        alias = self._open_transaction(record)
        generation = self._store.generation_of(record.aggregate_root_id)
        for subscriber in self._subscribers():
            if not _concerns(subscriber, record):
                continue
            call = partial(self._follow, subscriber, record, generation)
            if alias is None or _is_undone(subscriber, alias):
                call()
            else:
                after_commit(partial(self._bus.run_following, call), alias)

    def keep_up(self) -> None:
        if time.monotonic() < self._due:
            return
        if (alias := self._open()) is None:
            self._keep_up()
        else:
            self._mine.newest = newest = object()
            transaction.on_commit(partial(self._keep_up_after, newest), using=alias)

    def _keep_up_after(self, command: object) -> None:
        """Keep up if the command is the last one of its transaction: once, however many it has."""
        if command is self._mine.newest:
            self._keep_up()

    def _keep_up(self) -> None:
        if self._open() is not None:
            return  # of another shard, or of a test case, whose hooks run inside it: a later command does it
        if self._keeping_up.acquire(blocking=False):  # otherwise another thread does it
            try:
                self._bus.run_following(partial(self._tick, KEEPING_UP))
            finally:
                self._keeping_up.release()

    def catch_up(self) -> None:
        self._tick(inf)
        if self._open() is not None:
            self._mine.subscriptions.clear()  # their progress may be rolled back

    def progress(self, record: StreamRecord, keys: Sequence[str]) -> tuple[list[str], list[str]]:
        parked: list[str] = []
        missing: list[str] = []
        alias = self._open_transaction(record)
        for subscriber in self._declared():
            if key_of(subscriber) in keys and (alias is None or _is_undone(subscriber, alias)):
                look = partial(self._look, subscriber, record, parked, missing)
                if not self._run(subscriber.name, look):
                    missing.append(subscriber.name)
        return parked, missing

    def _look(self, subscriber: Subscriber, record: StreamRecord, parked: list[str], missing: list[str]) -> None:
        id, runner = record.aggregate_root_id, self._subscription(subscriber).runner
        if parking.parked_among(runner.alias, runner.key, [id]):
            parked.append(subscriber.name)
        elif runner.processor.positions([id]).get(id, 0) < (record.version or 0):
            missing.append(subscriber.name)

    # -- the subscribers ------------------------------------------------------------------------------------------

    def _subscribers(self) -> Sequence[Subscriber]:
        """Return the subscribers that follow now."""
        return [one for one in self._declared() if one not in self._refused]

    def _begin(self, subscriber: Subscriber) -> None:
        subscription = self._new_subscription(subscriber)
        alias, key, shard = subscription.runner.alias, subscription.runner.key, self._store.shards[0].number
        is_new = checkpoints.subscription(alias, key, shard) is None
        if is_new and (unowned := [one for one in unowned_in([alias]) if one.kept_since is None]):
            self._refused.add(subscriber)
            raise ConfigurationError("\n".join(one.text for one in unowned))
        self._refused.discard(subscriber)
        subscription.begin()

    def _declared(self) -> Sequence[Subscriber]:
        """Return the subscribers that event workers would run now. A shell session may declare more at any time."""
        ours = [] if make_snapshots(self._store) is None else [snapshot_subscriber]
        return subscribers.running(*ours)

    def _subscription(self, subscriber: Subscriber) -> SweepingSubscription:
        """Return the subscription of the calling thread."""
        subscription = self._mine.subscriptions.get(subscriber)
        if subscription is None:
            subscription = self._mine.subscriptions[subscriber] = self._new_subscription(subscriber)
        return subscription

    def _new_subscription(self, subscriber: Subscriber) -> SweepingSubscription:
        current = conf()
        return SweepingSubscription(
            Runner(self._new_processor(subscriber), self._patience.of(subscriber.database), singles_out=True),
            policy=make_policy(subscriber, current)._replace(parks_at_once=True),
            notify=lambda notices: None,
            transport=self._nothing,
            topic=current.SUBSCRIBERS.TOPIC,
            interval=current.SUBSCRIBERS.SWEEP_INTERVAL,
            hand_over=self._mine.check_time,
        )

    def _new_processor(self, subscriber: Subscriber) -> EventProcessor:
        send = sending(subscriber, lambda: self._bus)
        if isinstance(subscriber, EventHandlerGroup):
            return ExclusiveProcessor(subscriber, self._store, send, waits=lambda: not self._mine.has_limit)
        return make_processor(subscriber, self._store, send)

    # -- the work -------------------------------------------------------------------------------------------------

    def _follow(self, subscriber: Subscriber, record: StreamRecord, generation: int) -> None:
        self._run(subscriber.name, lambda: self._subscription(subscriber).follow([record], generation))

    @staticmethod
    def _run(name: str, call: Callable[[], None]) -> bool:
        """Return False, with the error in the log, if the call fails."""
        try:
            call()
        except Exception as error:  # the command is stored, and the caller must learn that
            told = "%s cannot go on: %s; it is tried again after a later command"
            logger.warning(told, name, error, exc_info=error, extra={"subscriber": name})
            return False
        return True

    def _tick(self, seconds: float) -> None:
        """Do due work for about that many seconds. The rest stays due. Each round begins with the outbox of another
        database, since the first one may take all the time."""
        began, aliases = time.monotonic(), outbox_databases()
        first = next(self._rounds) % max(1, len(aliases))
        for alias in (*aliases[first:], *aliases[:first]):
            left = max(0.0, began + seconds - time.monotonic())
            self._run(f"the outbox of {alias}", partial(self._bus.relay_left, alias, left))
        for subscriber in self._subscribers():
            self._run(subscriber.name, partial(self._do_due, subscriber, began + seconds))
        self._run("the deletion of old refusals", partial(self._prune_refusals, began + seconds))
        is_over = time.monotonic() > began + seconds
        self._due = began if is_over else began + conf().SUBSCRIBERS.SWEEP_INTERVAL

    def _do_due(self, subscriber: Subscriber, until: float) -> None:
        self._mine.begin_until(until)
        try:
            _tick(self._subscription(subscriber), until)
        except _TimeIsOver:
            pass
        finally:
            self._mine.begin_until(inf)

    def _prune_refusals(self, until: float) -> None:
        if (retention := conf().COMMANDS.REFUSAL_RETENTION) is None:
            return
        before = datetime.now(UTC) - timedelta(seconds=retention)
        for shard in self._store.shards:
            while shard.prune_refusals(before) and time.monotonic() < until:
                pass

    # -- the databases --------------------------------------------------------------------------------------------

    def _open(self) -> str | None:
        """Return the alias of a database of the store that has an open transaction; None if none has."""
        return next((alias for alias in aliases_of(self._store) if connections[alias].in_atomic_block), None)

    def _open_transaction(self, record: StreamRecord) -> str | None:
        """Return the alias of the database whose open transaction holds the record; None if it is durable."""
        alias = getattr(self._store.shards[self._store.place_of(record.aggregate_root_id)], "alias", None)
        return alias if alias is not None and connections[alias].in_atomic_block else None


class ExclusiveProcessor(EffectProcessor):
    """An event processor for event handlers, which locks the aggregates that it handles. Other threads and processes
    wait for the lock, so that each event is handled once unless a process dies; no queue with one owner ensures it
    here. While ``waits()`` is False, aggregates that others handle are left to a later command."""

    def __init__(
        self, subscriber: Subscriber, store: EventStore, send: SendCommands, *, waits: Callable[[], bool]
    ) -> None:
        super().__init__(subscriber, store, send)
        self._waits = waits

    def apply(
        self, works: Sequence[PendingAggregate], portion: int, *, even_parked: bool = False
    ) -> dict[str, Progress]:
        """Handle as `EffectProcessor.apply` does. Aggregates that others handle are `_Busy`. If all are, raises
        `_TimeIsOver`: they are left to a later command."""
        names = {f"{self.key} {work.aggregate_root_id}": work for work in works}
        with _alone(self.alias, sorted(names), waits=self._waits()) as locked:
            free = [work for name, work in names.items() if name in locked]
            if not free:
                raise _TimeIsOver
            progress = super().apply(free, portion, even_parked=even_parked)
        return {**dict.fromkeys((work.aggregate_root_id for work in works), _Busy(0)), **progress}


class _Busy(Progress):
    """The progress in an aggregate that others handle. It is tried again alone, after what its batch has reached is
    kept."""

    skips_ahead = True


@contextmanager
def _alone(alias: str, names: Sequence[str], *, waits: bool = True) -> Iterator[set[str]]:
    """Hold locks with these names in a transaction of a separate connection, so that handlers run in none. Yield the
    names; without ``waits`` only those whose locks were free."""
    with separate_connection(alias) as other, transaction.atomic(using=other):
        execute(other, NOTICE_VANISHED_CLIENT, None)
        yield {name for name in names if _lock(other, name, waits)}


def _lock(alias: str, name: str, waits: bool) -> bool:
    found = execute(alias, _LOCK if waits else _TRY_LOCK, (name,)).fetchone()
    return waits or found == (True,)


class _TimeIsOver(BaseException):
    """Raised between two portions of due work, to leave the rest to a later command; also if others are at work on it.
    No ``except Exception`` on its way must take it for an error of the work."""


class _Mine(threading.local):
    """The subscriptions of one thread, its newest command in a transaction, and its time for due work."""

    def __init__(self) -> None:
        self.subscriptions: dict[Subscriber, SweepingSubscription] = {}
        self.newest: object = None
        self._until, self._has_begun = inf, False

    def begin_until(self, until: float) -> None:
        self._until, self._has_begun = until, False

    @property
    def has_limit(self) -> bool:
        return self._until < inf

    def check_time(self) -> None:
        """Raise `_TimeIsOver` if it is, but not before the first portion: each round must get on."""
        if self._has_begun and time.monotonic() > self._until:
            raise _TimeIsOver
        self._has_begun = True


def _concerns(subscriber: Subscriber, record: StreamRecord) -> bool:
    """Return True if the subscriber must be run for the record. Event handlers run only for events that they handle,
    because each run takes a lock."""
    if not isinstance(subscriber, EventHandlerGroup):
        return True
    return follows_events(subscriber, record) or follows_refusal(subscriber, record)


def _is_undone(subscriber: Subscriber, alias: str) -> bool:
    """Return True if a rollback in the database undoes all that the subscriber does: its rows are there."""
    return has_tables(subscriber) and subscriber.database == alias


def after_commit(call: Callable[[], None], alias: str) -> None:
    """Call after the commit of the transaction that is open in the database, or now if there is none."""
    if connections[alias].in_atomic_block:
        transaction.on_commit(call, using=alias)
    else:
        call()


def _tick(subscription: SweepingSubscription, until: float) -> None:
    """Compare the store with the checkpoints, and retry parked aggregates that are due, each once, until the time is
    over."""
    subscription.begin_round()
    while True:
        subscription.tick(_ALL)
        due, now = subscription.next_retry, time.monotonic()
        if due is None or due > now or now > until:
            return
