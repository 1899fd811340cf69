"""The threads behind the mailboxes of a worker: command mailboxes, event mailboxes, and the publisher."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from functools import partial

from enode_django.commanding.command_processor import CommandProcessor
from enode_django.commanding.committer import Committer
from enode_django.commanding.dead_letters import crashed_among, keep_crashed
from enode_django.commanding.decisions import Decision, Envelope, Finished
from enode_django.commanding.logged_steps import log_committed
from enode_django.commanding.publisher import EventPublisher
from enode_django.concurrency.backoff import until_it_works
from enode_django.concurrency.lookups import Lookups
from enode_django.databases import end_left_transactions, heal_connections
from enode_django.eventstore.base import Shard
from enode_django.eventstore.dead_letters import DeadLetters
from enode_django.processors.mail import HANDLE_BYTES, Commands, Outcomes, Sized, divided, joined
from enode_django.processors.mailboxes import Mailboxes
from enode_django.processors.measuring import BatchMeter
from enode_django.processors.threads import PULL_WAIT
from enode_django.telemetry import steplog
from enode_django.telemetry.tracing import Tracing

logger = logging.getLogger("enode_django.worker")

HANDLE_AT_ONCE = 250
"""Commands after which a command mailbox hands its decisions over: the event mailbox should not wait for more."""
FLUSH = 0.5
"""Seconds that a command mailbox may take at its end to encode the remaining states for the shared states."""


class CommandMailboxThread:
    """`run` is the thread: it ends when the mailbox is closed and empty. ``shard`` has the mailbox's aggregates."""

    def __init__(
        self, number: int, mailboxes: Mailboxes, processor: CommandProcessor, shard: Shard, lookups: Lookups
    ) -> None:
        self._box = mailboxes.commands[number]
        self._room = mailboxes.room_of(number)
        self._post = partial(mailboxes.post_decisions, command_mailbox=number)
        self._processor = processor
        self._shard = shard
        self._lookups = lookups
        self.name = self._box.name

    def run(self) -> None:
        processor = self._processor
        while (items := self._box.take(HANDLE_AT_ONCE, processor.pause)) is not None:
            heal_connections()
            for item in items:
                if isinstance(item, Commands):
                    self._handle(item)
                elif isinstance(item, Outcomes):
                    self._take_outcomes(item)
                else:
                    if item.previous_owner is not None:
                        self._end_sessions(item.previous_owner)
                    processor.forget(item.queue)
            items.clear()  # else they stay in memory until the next ones come
            self._handle(Commands(processor.take_due(), False))
            processor.keep()
            end_left_transactions()
        processor.keep_rest(FLUSH)

    def _handle(self, commands: Commands) -> None:
        envelopes = commands.envelopes
        if commands.is_backlog:
            envelopes = self._without_stored(envelopes)
        start, most_bytes = 0, min(HANDLE_BYTES, self._room.limit)
        while start < len(envelopes):
            some = envelopes[start : start + HANDLE_AT_ONCE]
            decisions = self._processor.handle(some, most_bytes)
            start += len(decisions)
            self._post(decisions)
            if len(decisions) < len(some) or self._room.is_full:
                self._make_room()

    def _without_stored(self, envelopes: Sequence[Envelope]) -> Sequence[Envelope]:
        """Post what is stored already. Return the commands that are left to handle."""
        left: list[Envelope] = []
        start = 0
        while start < len(envelopes):
            some = envelopes[start : start + self._lookups.count]
            stored, missing = self._processor.take_stored(some)
            self._lookups.found(len(some), self._post(stored))
            left += missing
            start += len(some)
            self._room.wait()
        return left

    def _take_outcomes(self, outcomes: Outcomes) -> None:
        self._processor.finish(outcomes.released)
        for start in range(0, len(outcomes.recoveries), HANDLE_AT_ONCE):
            self._post(self._processor.recover(*outcomes.recoveries[start : start + HANDLE_AT_ONCE]))

    def _make_room(self) -> None:
        """Release commands that are stored, and wait while too many are not. Called between commands with many bytes.
        Event mailboxes and the publisher, which give room back, wait for no command mailbox."""
        self._room.wait()
        for item in self._box.take_urgent():
            if isinstance(item, Outcomes):
                self._take_outcomes(item)

    def _end_sessions(self, owner: str) -> None:
        """End a previous owner's sessions: one that was stopped in the middle of a COPY would block its successor."""
        ended = until_it_works(partial(self._shard.end_sessions, owner))
        if ended:
            logger.warning("ended %d sessions of %s in %s", ended, owner, self._shard.name)


class EventMailboxThread:
    """The thread of an event mailbox: `run` ends when the mailbox is closed and empty. Each batch is one COPY."""

    def __init__(
        self,
        number: int,
        mailboxes: Mailboxes,
        committer: Committer,
        letters: DeadLetters,
        *,
        max_batch: int,
        max_bytes: int,
        meter: BatchMeter,
        tracing: Tracing,
    ) -> None:
        self._box = mailboxes.events[number]
        self._mailboxes = mailboxes
        self._committer = committer
        self._letters = letters
        self._max_batch = max_batch
        self._max_bytes = max_bytes
        self._meter = meter
        self._tracing = tracing
        self.name = self._box.name

    def run(self) -> None:
        while (items := self._box.take(self._max_batch)) is not None:
            if items:
                for batch in divided(joined(items), self._max_batch, self._max_bytes):
                    self._commit(batch)
                items.clear()  # else they stay in memory until the next ones come

    def _commit(self, batch: Sized[Decision]) -> None:
        committer, began, clock = self._committer, self._tracing.now(), time.perf_counter()
        committed = committer.commit(batch.items)
        self._meter.stored(committed.finished, len(committed.recoveries), committer.store_seconds)
        self._tracing.batch("commit", (one.envelope for one in committed.finished), began)
        if steplog.enabled():
            log_committed(committed, time.perf_counter() - clock)
        if crashed := crashed_among(committed.finished):
            keep_crashed(self._letters, crashed, until_it_works)
        if committed.finished:
            batch.room.take(committer.found_bytes)
            size = batch.size + committer.found_bytes
            self._mailboxes.finished.post(Sized(committed.finished, size, batch.room))
        else:
            batch.give_back()
        self._mailboxes.post_outcomes(committed.released, committed.recoveries)


class PublisherThread:
    """The thread of the publisher: `run` ends when the mailbox is closed and empty. ``published`` is called with the
    number of commands after each batch, and with 0 after answers that waited for a commit."""

    def __init__(
        self,
        mailboxes: Mailboxes,
        publisher: EventPublisher,
        *,
        max_batch: int,
        tracing: Tracing,
        published: Callable[[int], None],
    ) -> None:
        self._box = mailboxes.finished
        self._publisher = publisher
        self._max_batch = max_batch
        self._tracing = tracing
        self._published = published
        self.name = self._box.name

    def run(self) -> None:
        publisher = self._publisher
        while (items := self._box.take(self._max_batch, PULL_WAIT if publisher.waiting else None)) is not None:
            if items:
                self._publish(items)
                items.clear()  # else they stay in memory until the next ones come
            elif publisher.waiting:
                publisher.answer_committed()
                self._published(0)

    def _publish(self, batches: Sequence[Sized[Finished]]) -> None:
        finished, size, _ = joined(batches)
        began = self._tracing.now()
        self._publisher.publish(finished, size)
        for batch in batches:
            batch.give_back()
        self._tracing.batch("publish", (one.envelope for one in finished if one.record is not None), began)
        self._published(len(finished))
