"""Run a subscriber's handlers over a batch, in spite of failing databases and handlers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import TypeVar

from django.db import transaction

from enode_django.concurrency.backoff import Persist
from enode_django.databases import end_left_transactions, execute, heal_connections, left_transactions
from enode_django.eventing import checkpoints, event_types, parking
from enode_django.eventing.code import code_fingerprint
from enode_django.eventing.erased_events import take_up
from enode_django.eventing.event_processors import EventProcessor, reached
from enode_django.eventing.failover_guard import StoreMovedOn
from enode_django.eventing.failures import HandlerInterrupted
from enode_django.eventing.in_flight import InFlight
from enode_django.eventing.pending import Failure, PendingAggregate, Progress, next_streams
from enode_django.eventing.subscribers import running
from enode_django.eventstore.base import StreamRecord
from enode_django.eventstore.sqlstates import (
    DATABASE_ERRORS,
    help_for,
    is_transient,
    is_unprepared,
    message,
)
from enode_django.exceptions import EventKilledWorker, SubscriberUnavailable

Value = TypeVar("Value")


class Runner:
    """Runs the handlers of a subscriber. All methods are called by one thread. ``persist`` decides how long to try
    while the databases are unavailable; ``in_flight`` notes what is being handled. With ``singles_out``, an aggregate
    whose handler meets a database error, while the subscriber's database answers, has failed alone; else the error is
    raised. ``tells_of_parked`` is the text for the log when an aggregate was parked, with places for the name, its id
    and where it failed."""

    tells_of_parked = "%s parked %s at %s: its later events wait; see manage.py enode parked"

    def __init__(
        self,
        processor: EventProcessor,
        persist: Persist,
        in_flight: InFlight | None = None,
        *,
        singles_out: bool = False,
    ) -> None:
        self.processor = processor
        self.in_flight = processor.in_flight = in_flight or InFlight()
        self.subscriber = processor.subscriber
        self.alias, self.key = processor.alias, processor.key
        self._persist = persist
        self._singles_out = singles_out

    def run(
        self, works: Sequence[PendingAggregate], portion: int, *, even_parked: bool = False
    ) -> Mapping[str, Progress]:
        """Apply works as `EventProcessor.apply` does. An error that no handler raised is an aggregate's failure, too. A
        suspect must be the only work. If too many workers have died at it, it is not handled, but fails."""
        if not works[0].suspect:
            return self.persisted(partial(self._run, works, portion, even_parked))
        if works[0].deaths >= self.in_flight.max_deaths:
            return self.persisted(partial(self._condemn, works[0], even_parked))
        return self.persisted(partial(self._run_alone, works, portion, even_parked))

    def _run_alone(self, works: Sequence[PendingAggregate], portion: int, even_parked: bool) -> Mapping[str, Progress]:
        with self.in_flight.suspects:
            return self._run(works, portion, even_parked)

    def _condemn(self, work: PendingAggregate, even_parked: bool) -> Mapping[str, Progress]:
        id = work.aggregate_root_id
        parked = self.processor.parked([id], even_parked)
        position = self.processor.positions([id]).get(id, 0)
        if id in parked:
            return {id: Progress(position, parked=parked[id])}
        streams = next_streams(self.processor.store, [work], {id: position}, 1)[id]
        guilty = next(iter([*streams, *self._open_refusals(work)]), None)
        if guilty is None:
            return {id: reached(work, position, streams, 1)}
        error = EventKilledWorker(f"{work.deaths} workers died or hung while they handled it")
        return {id: Progress(position, Failure(guilty.version, guilty.command_id, error, datetime.now(UTC)))}

    def _open_refusals(self, work: PendingAggregate) -> Iterator[StreamRecord]:
        keys = [(work.aggregate_root_id, command_id) for command_id in work.refusals]
        handled = checkpoints.handled_refusals(self.alias, self.key, keys) if keys else ()
        return (work.refusals[command_id] for id, command_id in keys if (id, command_id) not in handled)

    def persisted(self, call: Callable[[], Value]) -> Value:
        """Return what ``call`` returns. Block while the databases are unavailable; raise its other errors."""

        def guarded() -> Value:
            heal_connections()
            before = left_transactions()
            try:
                with running(self.subscriber):
                    return call()
            except Exception as error:  # a database error, or a bug
                if not is_transient(error):
                    raise
                raise self._unavailable(error) from error
            finally:
                self.in_flight.end()
                end_left_transactions(before)

        return self._persist(guarded)

    def _unavailable(self, error: Exception) -> SubscriberUnavailable:
        name = self.subscriber.name
        if not is_unprepared(error):
            return SubscriberUnavailable(f"{name} cannot go on: {error}")
        unavailable = SubscriberUnavailable(f"{name} cannot go on: {message(error)}; {help_for(error)}")
        unavailable.waiting = name
        return unavailable

    def _run(self, works: Sequence[PendingAggregate], portion: int, even_parked: bool) -> Mapping[str, Progress]:
        """Apply works. Those that failed at an unknown type are applied again if the subscriber may pass over it."""
        progress = self._run_uninterrupted(works, portion, even_parked)
        failed = {id for id, one in progress.items() if one.failure is not None and one.failure.is_of_unknown_type}
        if failed and event_types.recall(self.alias, self.subscriber):
            again = [work for work in works if work.aggregate_root_id in failed]
            return {**progress, **self._run(again, portion, even_parked)}
        return progress

    def _run_uninterrupted(
        self, works: Sequence[PendingAggregate], portion: int, even_parked: bool
    ) -> Mapping[str, Progress]:
        """Apply works. Those whose handlers were interrupted have failed, and the others are applied without them."""
        interrupted: dict[str, Progress] = {}
        left = list(works)
        while left:
            try:
                return {**interrupted, **self._run_all(left, portion, even_parked)}
            except HandlerInterrupted as stop:
                id, failure = stop.aggregate_root_id, stop.failure
            self.in_flight.end()
            if not (self._singles_out and self._answers()):
                raise failure.error
            interrupted[id] = Progress(self.processor.positions([id]).get(id, 0), failure)
            left = [work for work in left if work.aggregate_root_id != id]
        return interrupted

    def _answers(self) -> bool:
        """Return True if the subscriber's database answers."""
        heal_connections()
        try:
            execute(self.alias, "SELECT 1", ())
        except DATABASE_ERRORS:
            return False
        return True

    def _run_all(self, works: Sequence[PendingAggregate], portion: int, even_parked: bool) -> Mapping[str, Progress]:
        """Apply works. If the database refuses them as a whole (a value too long, a constraint), try them in halves,
        until the failing aggregate, and then its failing version, stands alone."""
        self.processor.attempted = {}
        try:
            return self._apply(works, portion, even_parked)
        except HandlerInterrupted:
            raise
        except Exception as error:
            self.in_flight.end()
            if is_transient(error):
                raise
            if len(works) == 1 and portion <= 1:
                return self._unexplained(works[0], error)
        # Behind the handler: else the error of each attempt would be shown as the context of the next one's.
        if len(works) == 1:
            return self._run_all(works, 1, even_parked)
        half = len(works) // 2
        first = self._run_all(works[:half], portion, even_parked)
        return {**first, **self._run_all(works[half:], portion, even_parked)}

    def _apply(self, works: Sequence[PendingAggregate], portion: int, even_parked: bool) -> Mapping[str, Progress]:
        while True:
            try:
                return self.processor.apply(works, portion, even_parked=even_parked)
            except StoreMovedOn as news:
                self.in_flight.end()
                take_up(self.processor, news)

    def _unexplained(self, work: PendingAggregate, error: Exception) -> Mapping[str, Progress]:
        id = work.aggregate_root_id
        if id not in self.processor.attempted:
            raise error  # not caused by an event
        position = self.processor.positions([id]).get(id, 0)
        return {id: Progress(position, Failure(*self.processor.attempted[id], error, datetime.now(UTC)))}

    def park(
        self,
        work: PendingAggregate,
        failure: Failure,
        instead_of: Iterable[parking.Parked] = (),
        *,
        pause: float | None = None,
    ) -> bool:
        """Park the aggregate at ``failure``; the other refusals of ``work`` wait behind it. It is tried again in
        ``pause`` seconds (None: by itself only when the code has changed). Return False, and park nothing, if the
        version has been handled meanwhile: by another worker, or in the tables of a rebuild."""
        first = work.failure or failure
        parked = parking.Parked(
            self.key,
            work.aggregate_root_type,
            work.aggregate_root_id,
            failure.version,
            failure.command_id,
            type(failure.error).__name__,
            failure.traceback,
            work.failures,
            first.failed_at,
            failure.failed_at,
            fingerprint=code_fingerprint(self.subscriber),
        )
        waiting = [refusal for command_id, refusal in work.refusals.items() if command_id != failure.command_id]
        return self.persisted(partial(self._park, parked, waiting, instead_of, pause))

    def _park(
        self,
        parked: parking.Parked,
        waiting: Iterable[StreamRecord],
        instead_of: Iterable[parking.Parked],
        pause: float | None,
    ) -> bool:
        id = parked.aggregate_root_id
        with transaction.atomic(using=self.alias):
            if parked.version is not None and self.processor.claimed([id]).get(id, 0) >= parked.version:
                return False
            parking.park(self.alias, parked, waiting, instead_of=instead_of, pause=pause)
        return True
