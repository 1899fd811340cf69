"""Replay of stored streams into the tables of a shadow, by the projection's handlers.

A part of the work is all streams of some aggregates, sorted by aggregate and version. It can be repeated after a crash,
or run twice at the same time: checkpoints show what was done already. Streams are handled as they are read, so memory
does not depend on the length of a history.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import chain, islice
from typing import Any, NamedTuple, NoReturn, TypeVar

from django.db import connections

from enode_django.concurrency.backoff import Persist, within
from enode_django.databases import heal_connections
from enode_django.eventing import checkpoints, event_types
from enode_django.eventing.base_projections import RowProjection
from enode_django.eventing.event_subscription import EventSubscription
from enode_django.eventing.parking import parked_among
from enode_django.eventing.pending import PendingAggregate
from enode_django.eventing.projections import ModelProjection
from enode_django.eventing.read_models.rows import RowTable
from enode_django.eventing.registry import subscribers
from enode_django.eventing.retry_decisions import RetryPolicy
from enode_django.eventing.retry_policy import Retries
from enode_django.eventing.subscribers import Subscriber, key_of, running
from enode_django.eventing.sweep import behind
from enode_django.eventstore.base import Settled, StreamRecord
from enode_django.eventstore.fetched import Row, TimeOf, decoded, itself
from enode_django.eventstore.sqlstates import DATABASE_ERRORS, is_transient, sqlstate
from enode_django.exceptions import RebuildError, SubscriberUnavailable
from enode_django.rebuilding.folding import Folded, fold
from enode_django.rebuilding.shadow import ReachesOutside, Shadow, hooks_forgotten
from enode_django.rebuilding.shadow_processor import ShadowRunner
from enode_django.runtime import make_processor, store_on_separate_connection

Value = TypeVar("Value")
logger = logging.getLogger("enode_django.rebuilding")

ROWS_AT_ONCE = 5_000
STREAMS_AT_ONCE = 1_000
DATABASE_MAY_BE_AWAY = 120.0
"""Seconds to wait for a server that restarts: beginning a part of the work again costs more."""
_UNDEFINED = ("42P01", "42703")
"""A table or a column does not exist."""


class Replayed(NamedTuple):
    """The amount of work done; ``parked`` are the ids of the aggregates that were parked."""

    streams: int = 0
    aggregates: int = 0
    parked: tuple[str, ...] = ()

    def __add__(self, other: object) -> Replayed:
        assert isinstance(other, Replayed)
        return Replayed(self.streams + other.streams, self.aggregates + other.aggregates, (*self.parked, *other.parked))


def total_of(done: Iterable[Replayed]) -> Replayed:
    return sum(done, Replayed())


class Todo(NamedTuple):
    """An aggregate, and the version up to which it is to be handled."""

    aggregate_root_id: str
    aggregate_root_type: str
    until: int


class Replayer:
    """Replays streams into a shadow. All methods block. Not thread-safe.

    Methods raise `RebuildError` if the projection uses tables or databases that it does not declare, and
    `SubscriberUnavailable` if a database is unavailable for too long.
    """

    def __init__(self, shadow: Shadow, runner: ShadowRunner, persist: Persist) -> None:
        self.shadow = shadow
        self.runner = runner
        most_parked = (runner.subscriber.retry or Retries()).most_parked
        policy = RetryPolicy(1, 0.0, most_parked=most_parked, parks_at_once=True)
        self.subscription = EventSubscription(runner, policy=policy, notify=lambda notices: None)
        self._persist = persist

    def replay(self, rows: Iterable[Row], time_of: TimeOf = itself) -> Replayed:
        """Replay sorted streams of aggregates, from each first stream on. ``time_of`` reads the time of a row."""
        subscriber = self.subscription.subscriber
        if isinstance(subscriber, ModelProjection):
            return _Reducing(self, subscriber, time_of).replay(rows)
        return self._handle(decoded(row, time_of) for row in rows)

    def _handle(self, records: Iterator[StreamRecord]) -> Replayed:
        total, last = Replayed(), ""
        while some := list(islice(records, STREAMS_AT_ONCE)):
            works: dict[str, PendingAggregate] = {}
            for record in some:
                id = record.aggregate_root_id
                works.setdefault(id, PendingAggregate(id, record.aggregate_root_type)).add(record)
            begun = len(works) - (last in works)
            total += Replayed(len(some), begun, self._drive(list(works.values())))
            last = some[-1].aggregate_root_id
        return total

    def catch_up(self, todo: Iterable[Todo]) -> Replayed:
        """Bring aggregates from their versions in the shadow up to these, as far as they are stored. An aggregate may
        occur several times, since each part of a range of the store names its own version of it."""
        todo, total = iter(todo), Replayed()
        while some := list(islice(todo, STREAMS_AT_ONCE)):
            works: dict[str, PendingAggregate] = {}
            for id, type_name, until in some:  # handlers must not be called twice in one transaction
                works.setdefault(id, PendingAggregate(id, type_name)).merge(PendingAggregate(id, type_name, until))
            total += Replayed(0, len(works), self._drive(list(works.values())))
        return total

    def behind(self, settled: Settled) -> list[Todo]:
        """Return the settled aggregates that the shadow has not handled yet."""
        return self.persisted(lambda: [_todo(work) for work in behind(self.subscription, settled)])

    def _drive(self, works: Sequence[PendingAggregate]) -> tuple[str, ...]:
        """Return the aggregates that were parked."""

        def drive() -> tuple[str, ...]:
            parked = self.subscription.parked
            self.subscription.catch_up([PendingAggregate(*_todo(work), dict(work.streams)) for work in works])
            return self._parked_among(works) if self.subscription.parked > parked else ()

        return self.persisted(drive)

    def _parked_among(self, works: Sequence[PendingAggregate]) -> tuple[str, ...]:
        ids = [work.aggregate_root_id for work in works]
        with self.shadow.opened():
            return tuple(parked_among(self.shadow.alias, self.shadow.subscriber, ids))

    def persisted(self, call: Callable[[], Value]) -> Value:
        """Return the result of ``call``. Repeat it, with its own transaction, while the database is unavailable."""

        def guarded() -> Value:
            heal_connections()
            try:
                return call()
            except (SubscriberUnavailable, ReachesOutside, *DATABASE_ERRORS) as error:
                explained = self._explained(error)
                if explained is None:
                    raise
                raise explained from error

        return self._persist(guarded)

    def _explained(self, error: Exception) -> Exception | None:
        """Return an error that explains this one; None if it needs no explanation."""
        for cause in _causes(error):
            if isinstance(cause, ReachesOutside) or sqlstate(cause) in _UNDEFINED:
                what = str(cause).partition("\n")[0]
                return RebuildError(
                    f"{self.shadow.subscriber} needs what it does not declare: {what}; {self._advice()}"
                )
        if isinstance(error, DATABASE_ERRORS) and is_transient(error):
            return SubscriberUnavailable(f"{self.shadow.subscriber} cannot be rebuilt now: {error}")
        return None

    def _advice(self) -> str:
        models = "models all that its handlers read or write"
        if isinstance(self.subscription.subscriber, RowProjection):
            return f"it keeps its own rows alone; make it a Projection that lists in {models}"
        return f"list in its {models}"


def _causes(error: BaseException) -> Iterator[BaseException]:
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__


class _Reducing:
    """Replays for a `ModelProjection`: folds the streams of each aggregate into one row, and copies the rows.

    Aggregates that fail in any way are left to the subscription, which finds the cause: a handler that raises or
    queries a database, a value that the database refuses or computes, rows that exist already.
    """

    def __init__(self, replayer: Replayer, subscriber: ModelProjection[Any], time_of: TimeOf) -> None:
        self._replayer = replayer
        self._time_of = time_of
        self._subscriber = subscriber
        self._alias = replayer.shadow.alias
        self._table: RowTable[Any] = RowTable(subscriber.model, self._alias)

    def replay(self, rows: Iterable[Row]) -> Replayed:
        total, rows = Replayed(), iter(rows)
        # Outside of `_take`: to read may open a connection, and a new one asks its server for types.
        first = list(islice(rows, 1))
        folded = self._folded(chain(first, rows))
        while some := self._take(folded):
            failed = [_todo(one) for one in some if one.failed]
            copied = [one for one in some if not one.failed]
            if not self._copy(copied):
                failed += map(_todo, copied)
            parked = self._replayer.catch_up(failed).parked if failed else ()
            total += Replayed(sum(one.streams for one in some), len(some), parked)
        return total

    def _take(self, folded: Iterator[Folded]) -> list[Folded]:
        with hooks_forgotten(), ExitStack() as stack:
            for connection in connections.all():
                stack.enter_context(connection.execute_wrapper(_refuse))
            return list(islice(folded, ROWS_AT_ONCE))

    def _folded(self, rows: Iterable[Row]) -> Iterator[Folded]:
        with running(self._subscriber):
            yield from fold(self._subscriber, rows, self._time_of, self._table.normalise_in_memory)

    def _copy(self, folded: Sequence[Folded]) -> bool:
        rows = [one.row for one in folded if one.row is not None]
        rowless = {one.aggregate_root_id: one.until for one in folded if one.row is None}

        def copy() -> bool:
            try:
                with self._replayer.shadow.opened():
                    if rows:
                        self._table.copy(rows)
                    checkpoints.save(self._alias, key_of(self._subscriber), rowless)
                    self._check_nobody_came_first(rows, rowless)
            except Exception as error:
                if is_transient(error):
                    raise
                logger.info("%s: rows are stored one by one: %s", self._subscriber.name, error)
                return False
            return True

        return self._replayer.persisted(copy)

    def _check_nobody_came_first(self, rows: Sequence[Any], rowless: Mapping[str, int]) -> None:
        """Raise `_CameLate` if an aggregate has both a row and a checkpoint.

        A task may stall before it writes, and is then run again elsewhere. The aggregates of the other run may have
        been caught up since: a row that was deleted then would come back, and nothing would delete it.
        """
        made = [row.aggregate_root_id for row in rows]
        known = checkpoints.read(self._alias, key_of(self._subscriber), made) if made else {}
        if known or (rowless and self._table.versions(list(rowless))):
            raise _CameLate("another run of the same task has handled these aggregates, and more was handled since")


class _CameLate(Exception):
    """Raised to roll the transaction back."""


def _refuse(*arguments: object) -> NoReturn:
    raise RebuildError("outside of its shadow a handler would reach the tables in use")


def _todo(one: Folded | PendingAggregate) -> Todo:
    return Todo(one.aggregate_root_id, one.aggregate_root_type, one.until)


_patiently = within(DATABASE_MAY_BE_AWAY)


@contextmanager
def replayer(shadow: Shadow, persist: Persist = _patiently) -> Iterator[Replayer]:
    """Open a replayer for this thread. ``persist`` decides how long to wait for an unavailable database. An aggregate
    that fails is parked at once: it has failed before, or will again after the swap."""
    subscriber: Subscriber = subscribers.get(shadow.subscriber)
    with store_on_separate_connection() as store:
        runner = ShadowRunner(shadow, make_processor(subscriber, store, _send_nothing))
        replaying = Replayer(shadow, runner, persist)
        replaying.persisted(partial(event_types.recall, shadow.alias, subscriber))
        yield replaying


def _send_nothing(commands: object) -> None:
    raise AssertionError("a projection sends no commands")
