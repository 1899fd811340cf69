"""A subscriber's way through the events: pulled messages in, handled in order, each aggregate on its own.

The queue wakes the subscriber, and the store is the truth. A message announces a version; the streams between the
checkpoint and that version are read from the event store. An aggregate whose handler fails is set aside and tried again
alone, as its `RetryPolicy` says, while the others go on. After enough failures it is parked.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from math import inf
from operator import attrgetter

from enode_django.bus.messages import PublishedStream, decode_published
from enode_django.bus.notices import Notice, SendNotices
from enode_django.equeue.consumer.queue_consumer import PulledMessages
from enode_django.equeue.offsets import OffsetWindow
from enode_django.eventing import parking
from enode_django.eventing.event_processors import EventProcessor
from enode_django.eventing.in_flight import FIRST_QUEUE, is_of_a_sweep, suspect_swept
from enode_django.eventing.logged_steps import log_handled
from enode_django.eventing.pending import (
    STORED,
    Failure,
    Message,
    PendingAggregate,
    Progress,
    follows_events,
    follows_refusal,
)
from enode_django.eventing.retry_decisions import NextTry, RetryPolicy
from enode_django.eventing.runner import Runner
from enode_django.eventing.subscribers import follows
from enode_django.eventing.unknown_types import is_passed_over
from enode_django.eventstore.base import StreamRecord
from enode_django.exceptions import MalformedMessage, Retry, shown
from enode_django.signals import aggregate_parked
from enode_django.telemetry import steplog

logger = logging.getLogger("enode_django.subscribers")

PORTION = 1_000
"""The most versions of one aggregate that are handled in one transaction."""
MOST_ASIDE = 10_000
"""The most aggregates that are set aside in memory, since the queue keeps their messages. Further ones are parked."""
MOST_MESSAGES = 5_000
"""The most messages of an aggregate that is set aside, more than are pulled at once. One with more is parked."""
TRACEBACK_INTERVAL = 60.0
"""Seconds in which the traceback of an error that passes is logged once for each class."""
RETRYING_AT_ONCE = 1.0
"""The most seconds for retries before new messages have their turn."""


class EventSubscription:
    """Handles the events of a subscriber. All methods are called by one thread and block on the databases.
    ``hand_over`` is called between portions of the work; it may close windows, whose messages are then left to
    others."""

    def __init__(
        self,
        runner: Runner,
        *,
        policy: RetryPolicy,
        notify: SendNotices,
        hand_over: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.runner = runner
        self.subscriber = runner.subscriber
        self.policy = policy
        self._notify = notify
        self._clock = clock
        self._hand_over = hand_over
        self._aside: dict[str, PendingAggregate] = {}
        self._deaths: dict[int, Mapping[int, int]] = {}
        self._unknown: set[str] = set()
        self._traced: dict[type[BaseException], float] = {}
        self.handled = 0
        self.parked = 0

    # -- what is pulled -------------------------------------------------------------------------------------------

    def suspect(self, queue: int, deaths: Mapping[int, int]) -> None:
        """Note how many workers died at which offset of an acquired queue: their aggregates are handled alone."""
        self._deaths[queue] = deaths

    def handle(self, pulled: Sequence[PulledMessages]) -> None:
        """Handle messages. Return when each is finished, its aggregate is set aside, or its window is closed."""
        works: dict[str, PendingAggregate] = {}
        for window, offsets, bodies in pulled:
            skipped = []
            deaths = self._deaths.get(window.queue) or {}
            for offset, body in zip(offsets, bodies, strict=True):
                published = self._decode(window, offset, body)
                if published is None or not self._concerns(published.record):
                    skipped.append(offset)
                    continue
                record, reply_to, generation = published
                work = self._work_of(works, record)
                work.add(record, generation)
                work.messages.append(self._message(window, offset, record, reply_to))
                if offset in deaths:
                    work.suspect, work.deaths = True, max(work.deaths, deaths[offset])
            window.finish_many(skipped)
        self._drive_new(works.values())

    def follow(self, records: Iterable[StreamRecord], generation: int = STORED) -> None:
        """Handle streams as `handle` does, from a source other than a queue, stored in this ``generation`` or later."""
        works: dict[str, PendingAggregate] = {}
        for record in records:
            if self._concerns(record):
                self._work_of(works, record).add(record, generation)
        self.catch_up(works.values())

    def catch_up(self, works: Iterable[PendingAggregate]) -> bool:
        """Handle the stored streams of these aggregates up to their ``until``. Return False if one is set aside."""
        works = list(works)
        self.suspect_swept(works)
        self._drive_new(works)
        return not any(work.aggregate_root_id in self._aside for work in works)

    def suspect_swept(self, works: Sequence[PendingAggregate]) -> None:
        """Make suspects of swept works at which a worker died."""
        deaths = {at: count for at, count in self._deaths.get(FIRST_QUEUE, {}).items() if is_of_a_sweep(at)}
        if deaths and works:
            ids = [work.aggregate_root_id for work in works]
            positions = self.runner.persisted(partial(self.runner.processor.positions, ids))
            for work in works:
                suspect_swept(work, positions.get(work.aggregate_root_id, 0) + 1, deaths)

    @staticmethod
    def _decode(window: OffsetWindow, offset: int, body: bytes) -> PublishedStream | None:
        try:
            return decode_published(body)
        except MalformedMessage as error:
            logger.error("%s/%d, offset %d: %s", window.topic, window.queue, offset, error)
            return None

    def _message(self, window: OffsetWindow, offset: int, record: StreamRecord, reply_to: str) -> Message:
        """Return the message. Its sender is notified only by subscribers that handle one of the events."""
        reply_to = reply_to if reply_to and follows_events(self.subscriber, record) else ""
        return Message(window, offset, record.aggregate_root_id, record.version, record.command_id, reply_to)

    def _concerns(self, record: StreamRecord) -> bool:
        if is_passed_over(self.subscriber, record):
            return False  # the sweep notes the type, and comes back when code knows it
        if record.version is None:
            return follows_refusal(self.subscriber, record)
        return follows(self.subscriber, record.aggregate_root_type)

    @staticmethod
    def _work_of(works: dict[str, PendingAggregate], record: StreamRecord) -> PendingAggregate:
        id = record.aggregate_root_id
        work = works.get(id)
        if work is None:
            work = works[id] = PendingAggregate(id, record.aggregate_root_type)
        return work

    def _joins_what_is_aside(self, work: PendingAggregate) -> bool:
        aside = self._aside.get(work.aggregate_root_id)
        if aside is not None:
            aside.merge(work)
        return aside is not None

    # -- what is to be tried again --------------------------------------------------------------------------------

    @property
    def next_retry(self) -> float | None:
        """The time of the clock at which `retry_due` has something to do next; None if nothing is set aside."""
        return min((work.next_try for work in self._aside.values()), default=None)

    def held_in(self, window: OffsetWindow) -> int:
        """Return the number of the window's messages that are set aside: they are not finished."""
        return sum(message.window is window for work in self._aside.values() for message in work.messages)

    def retry_due(self) -> None:
        """Retry the due aggregates, each alone and with one version first, so that the failing event stands alone.
        Those left after `RETRYING_AT_ONCE` stay due: handlers that wait in vain must not hold up others."""
        now = self._clock()
        due = sorted((work for work in self._aside.values() if work.next_try <= now), key=attrgetter("next_try"))
        for work in due:
            if self._clock() - now > RETRYING_AT_ONCE:
                break
            del self._aside[work.aggregate_root_id]
            if not work.is_given_away:
                self._drive([work], 1)

    # -- the work itself ------------------------------------------------------------------------------------------

    def _drive_new(self, works: Iterable[PendingAggregate]) -> None:
        """Drive the works whose aggregates are not set aside: suspects last, each alone, one version at a time."""
        new = [work for work in works if not self._joins_what_is_aside(work)]
        self._drive([work for work in new if not work.suspect], PORTION)
        for work in new:
            if work.suspect:
                self._drive([work], 1)

    def _drive(self, works: Sequence[PendingAggregate], portion: int) -> None:
        for part in _parts(works, self.runner.processor):
            some: Sequence[PendingAggregate] = part
            while some := self._still_ours(some):
                begun = time.perf_counter()
                progress = self.runner.run(some, portion)
                if steplog.enabled():
                    log_handled(self.subscriber, some, progress, time.perf_counter() - begun)
                finished: list[tuple[Message, str]] = []
                blamed, behind = [], []
                for work in some:
                    one = progress[work.aggregate_root_id]
                    if one.skips_ahead:
                        blamed.append(work)
                    elif self._settle(work, one, finished):
                        behind.append(work)
                self._finish(finished)
                if any(one.failure is None and one.parked is None for one in progress.values()):
                    self._hasten_conflicts()
                for work in blamed:
                    self._drive([work], 1)  # in small portions, so that versions before the failure are kept
                portion = 1 if some[0].suspect else min(portion * 2, PORTION)
                if len(behind) > self.runner.processor.limit:
                    self._drive(behind, portion)  # in smaller parts, since their events are large
                    break
                some = behind

    def _still_ours(self, works: Sequence[PendingAggregate]) -> list[PendingAggregate]:
        """Call ``hand_over``. Return the works that are left to this worker."""
        self._hand_over()
        return [work for work in works if not work.is_given_away]

    def _settle(self, work: PendingAggregate, progress: Progress, finished: list[tuple[Message, str]]) -> bool:
        """Note what is finished. Return True if there is more to do for the aggregate at once."""
        if progress.parked is not None:
            if work.refusals and not self.runner.persisted(partial(self._let_wait, work)):
                return True  # it was unparked meanwhile
            finished.extend((one, "" if one.is_handled(progress) else progress.parked) for one in work.messages)
            return False
        failure = progress.failure
        left = []
        for message in work.messages:
            if message.is_done(progress):
                finished.append((message, ""))
            else:
                left.append(message)
        self.handled += len(work.messages) - len(left)
        work.messages = left
        if failure is None:
            work.refusals = {}
            work.streams = {version: record for version, record in work.streams.items() if version > progress.version}
            if progress.version < work.until:
                return True
            finished.extend(self._given_up_on(work))
            return False
        next_try = self._next_try(work, failure)
        if next_try.is_parked:
            if not self._park(work, failure, next_try.seconds):
                return True
            finished.extend((message, type(failure.error).__name__) for message in work.messages)
        else:
            work.next_try = self._clock() + (next_try.seconds or 0.0)
            self._aside[work.aggregate_root_id] = work
        return False

    def _given_up_on(self, work: PendingAggregate) -> Iterator[tuple[Message, str]]:
        """Finish messages of versions that are not stored, in a store restored from a dump, without notices."""
        for message in work.messages:
            name, id, version = self.subscriber.name, message.aggregate_root_id, message.version
            extra = _extra(name, id)
            logger.error("%s heard of version %s of %s, which is not stored", name, version, id, extra=extra)
            yield message._replace(reply_to=""), ""

    def _next_try(self, work: PendingAggregate, failure: Failure) -> NextTry:
        """Count the failure. Return when the aggregate is tried again, and whether it is parked until then. Raises the
        error if the policy allows no attempts."""
        if not self.policy.attempts:
            raise failure.error
        if work.failure is None or not failure.is_same(work.failure):
            work.failure, work.failures, work.failing_since = failure.to_be_kept(), 0, self._clock()
        work.failures += 1
        self._log_failure(work, failure)
        next_try = self.policy.next_try(failure.error, work.failures, self._clock() - work.failing_since)
        work.waits_for_others = self.policy.waits_for_others(failure.error, work.failures)
        is_too_much = len(self._aside) >= MOST_ASIDE or len(work.messages) > MOST_MESSAGES
        return NextTry(next_try.seconds, next_try.is_parked or is_too_much)

    def _log_failure(self, work: PendingAggregate, failure: Failure) -> None:
        if failure.is_of_unknown_type:
            self._log_unknown_type(failure)
            return
        who, where, id = self.subscriber.name, failure.place, work.aggregate_root_id
        tries = self.policy.tries(failure.error, work.failures)
        first = failure.error if work.failures == 1 and self._has_news(failure.error) else None
        told = "%s failed at %s of %s (%s): %s"
        logger.warning(told, who, where, id, tries, failure.text, exc_info=first, extra=_extra(who, id))

    def _has_news(self, error: BaseException) -> bool:
        """Return False for an error that passes if the traceback of such a one was just logged: an outage of another
        server meets many aggregates. A `Retry` without a cause is no error, but what the handler asks for."""
        if isinstance(error, Retry) and error.__cause__ is None:
            return False
        if not self.policy.passes(error):
            return True
        now, kind = self._clock(), type(error)
        if now - self._traced.get(kind, -inf) < TRACEBACK_INTERVAL:
            return False
        self._traced[kind] = now
        return True

    def _log_unknown_type(self, failure: Failure) -> None:
        """Log a type once: it is unknown in many aggregates, and each that is parked is logged."""
        text = shown(failure.error)
        if text not in self._unknown:
            self._unknown.add(text)
            logger.warning(
                "%s waits for code that knows more, with what has such events: %s", self.subscriber.name, text
            )

    def _hasten_conflicts(self) -> None:
        """Make aggregates that wait for others to move on due at once."""
        for work in self._aside.values():
            if work.waits_for_others:
                work.next_try = self._clock()

    def _let_wait(self, work: PendingAggregate) -> bool:
        refusals = list(work.refusals.values())
        return parking.wait_behind(self.runner.alias, self.runner.key, work.aggregate_root_id, refusals)

    def _park(self, work: PendingAggregate, failure: Failure, pause: float | None) -> bool:
        """Park the aggregate. Return False if there is nothing left to park."""
        if not self.runner.park(work, failure, pause=pause):
            work.failure, work.failures = None, 0
            return False
        self.parked += 1
        who, where, id = self.subscriber.name, failure.place, work.aggregate_root_id
        told = f"{self.runner.tells_of_parked}%s"
        why = f" ({failure.text})" if failure.is_of_unknown_type else ""  # the tries of such an event are not logged
        logger.error(told, who, id, where, why, extra=_extra(who, id))
        about = {"subscriber": who, "aggregate_root_id": id, "error": failure.error}
        aggregate_parked.send_robust(type(self.subscriber), **about)
        return True

    def _finish(self, finished: Sequence[tuple[Message, str]]) -> None:
        """Notify the waiting senders, then move the windows."""
        key = self.runner.key
        notices = [
            (message.reply_to, Notice(message.command_id, message.aggregate_root_id, key, error))
            for message, error in finished
            if message.reply_to
        ]
        if notices:
            self._notify(notices)
        offsets: dict[OffsetWindow, list[int]] = {}
        for message, _ in finished:
            offsets.setdefault(message.window, []).append(message.offset)
        for window, done in offsets.items():
            window.finish_many(done)


def _extra(subscriber: str, id: str) -> dict[str, str]:
    return {"subscriber": subscriber, "aggregate_root_id": id}


def _parts(works: Sequence[PendingAggregate], processor: EventProcessor) -> Iterator[Sequence[PendingAggregate]]:
    """Divide the works into parts of up to the processor's ``limit`` of streams and refusals each, as it is when a part
    is made; a larger work stands alone."""
    part: list[PendingAggregate] = []
    size = 0
    for work in works:
        more = max(1, len(work.streams) + len(work.refusals))
        if part and size + more > processor.limit:
            yield part
            part, size = [], 0
        part.append(work)
        size += more
    if part:
        yield part
