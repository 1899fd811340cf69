"""The threads of one worker, and what goes between them.

    puller ─► command mailbox i ─► event mailbox j ─► publisher
                     ▲──────────────────┘
    keepers: renew leases, join the group, commit offsets, on timers
    pruner: deletes old refusals, and may wait for the store
    states: gives what command mailboxes have encoded to the shared states, if there are any

Between threads go lists of messages that nobody changes any more.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any, NamedTuple

from enode_django.commanding import flow
from enode_django.commanding.committing import Committer
from enode_django.commanding.entries import Entry, Envelope, Finished, Recovery
from enode_django.commanding.intake import Intake, Received
from enode_django.commanding.keeping import StateKeeper
from enode_django.commanding.loading import AggregateLoader
from enode_django.commanding.processor import CommandProcessor, Note
from enode_django.commanding.remembered import RememberedAnswers
from enode_django.commanding.routing import MailboxRouter
from enode_django.concurrency.backoff import delays, until_it_works
from enode_django.concurrency.mailbox import Mailbox
from enode_django.concurrency.threads import join_threads
from enode_django.conf import Conf
from enode_django.databases import heal_connections
from enode_django.domain.handlers import command_handlers
from enode_django.equeue.consumer import QueueConsumer
from enode_django.equeue.transports.base import Transport
from enode_django.eventing.publisher import EventPublisher
from enode_django.eventstore.base import EventStore, Shard
from enode_django.exceptions import EnodeError, StoreUnavailable, TransportUnavailable
from enode_django.processors.backlogs import ShardBacklogs
from enode_django.processors.housekeeping import Housekeeper, queue_keepers, store_duties
from enode_django.processors.measuring import BatchMeter
from enode_django.processors.statistics import CONSUME_OFFSET, MAX_OFFSET, Statistics
from enode_django.processors.threads import PULL_WAIT, start_worker_thread
from enode_django.runtime import make_producer, make_snapshots, make_states
from enode_django.snapshots.writing_behind import WriteBehind
from enode_django.tracing import current_tracing

logger = logging.getLogger("enode_django.worker")

HELD_PER_UNFINISHED = 5
"""A queue whose first message is stuck goes on until it holds so many times ``MAX_UNFINISHED`` finished ones behind."""
HANDLE_AT_ONCE = 250
"""Commands after which a command mailbox hands over what it has: the event mailbox should not wait for more."""
JOIN_TIMEOUT = 5.0
"""Seconds for the puller and the keepers to end, all together."""
FLUSH = 0.5
"""Seconds that a command mailbox may take at its end to encode what the shared states have not got yet."""


class Commands(NamedTuple):
    """``is_backlog``: some of them may be stored already."""

    envelopes: Sequence[Envelope]
    is_backlog: bool


class Outcomes(NamedTuple):
    released: Sequence[Entry]
    recoveries: Sequence[Recovery]


class Taken(NamedTuple):
    """A queue was acquired; ``previous_owner`` is set if that one's lease ran out, so that it may be writing still."""

    queue: int
    previous_owner: str | None


CommandItem = Commands | Outcomes | Taken


def _command_weight(item: CommandItem) -> int:
    return len(item.envelopes) if isinstance(item, Commands) else 0


class Pipeline:
    """`start`, `drain` and `close` are called by the worker's main thread; the rest runs in threads of its own.

    ``notes`` has one for each command mailbox, where it says which command it is handling.
    """

    def __init__(
        self,
        conf: Conf,
        transport: Transport,
        store: EventStore,
        *,
        owner: str,
        notes: Sequence[Note],
        statistics: Statistics,
    ) -> None:
        self._conf = conf
        self._store = store
        self._statistics = statistics
        self._meter = BatchMeter(statistics)
        self._tracing = current_tracing()
        shards = len(store.shards)
        self._router = MailboxRouter(conf.COMMAND_MAILBOXES, conf.EVENT_MAILBOXES, shards, store.place_of)
        self._backlogs = ShardBacklogs(shards, conf.MAX_UNFINISHED)
        self.consumer = QueueConsumer(
            transport,
            group=conf.CONSUMER_GROUP,
            topic=conf.COMMAND_TOPIC,
            owner=owner,
            lease=conf.LEASE,
            max_held=HELD_PER_UNFINISHED * conf.MAX_UNFINISHED,
            keep_receipts=conf.REMEMBERED_ANSWERS,
            long_poll=conf.LONG_POLL,
        )
        remembered = RememberedAnswers(
            conf.REMEMBERED_ANSWERS, lambda window: until_it_works(lambda: self.consumer.receipts(window))
        )
        self._intake = Intake(
            self._router, remembered, delays=conf.UNKNOWN_TYPE_DELAYS, max_deaths=conf.MAX_ABNORMAL_ENDS
        )
        self._publisher = EventPublisher(
            transport,
            make_producer(transport),
            remembered,
            event_topic=conf.EVENT_TOPIC,
            command_topic=conf.COMMAND_TOPIC,
            persist=until_it_works,
            commit=lambda: until_it_works(self.consumer.commit),
        )
        self._keepers = queue_keepers(conf, [self.consumer])
        self._pruner = Housekeeper(store_duties(conf, self.consumer, store))
        self._commands: list[Mailbox[CommandItem]] = [
            Mailbox(f"enode-commands-{n}", _command_weight) for n in range(self._router.command_mailboxes)
        ]
        self._events: list[Mailbox[Sequence[Entry]]] = [
            Mailbox(f"enode-events-{n}", len) for n in range(self._router.event_mailboxes)
        ]
        self._finished: Mailbox[Sequence[Finished]] = Mailbox("enode-publisher", len)
        states = make_states()
        self._states = WriteBehind(states) if states is not None else None
        self._processors = self._make_processors(notes)
        statistics.gauges["cached_aggregates"] = lambda: self.cached_aggregates
        statistics.gauges["unfinished"] = lambda: self.consumer.unfinished
        statistics.mailboxes = self._offsets
        self._room = threading.Event()
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []

    def _make_processors(self, notes: Sequence[Note]) -> list[CommandProcessor]:
        conf, suspects = self._conf, threading.Lock()
        mailboxes = self._router.command_mailboxes
        share = max(1, conf.max_aggregates // mailboxes)
        # A copy must be known while its first is unfinished: no row and no remembered answer speaks for that yet.
        recent = max(2 * conf.MAX_UNFINISHED, conf.RECENT_COMMANDS // mailboxes)
        return [
            CommandProcessor(
                AggregateLoader(self._store, make_snapshots(self._store), self._states),
                command_handlers,
                persist=until_it_works,
                max_aggregates=share,
                max_recent=recent,
                max_bytes=conf.EVENTS_MAX_BYTES,
                note=note,
                suspects=suspects,
                keeper=StateKeeper(self._states, interval=conf.states_write_interval) if self._states else None,
            )
            for note in notes
        ]

    def start(self) -> None:
        runs: list[tuple[str, Callable[[], None]]] = [("enode-publisher", self._run_publisher)]
        runs += [(box.name, partial(self._run_event_mailbox, box)) for box in self._events]
        runs += [
            (box.name, partial(self._run_command_mailbox, box, processor))
            for box, processor in zip(self._commands, self._processors, strict=True)
        ]
        runs += [("enode-puller", self._run_puller)]
        runs += [(name, partial(self._run_keeper, keeper)) for name, keeper in self._keepers.items()]
        runs += [("enode-pruner", partial(self._run_keeper, self._pruner))]
        if self._states is not None:
            runs += [(self._states.name, self._states.run)]
        self._threads = [start_worker_thread(name, run) for name, run in runs]

    # -- called by the main thread --------------------------------------------------------------------------------

    def drain(self, timeout: float) -> bool:
        """Stop pulling, finish what was pulled, release the queues; returns whether all of it was done in time.

        What waits for an unknown type to become known stays in the queue.
        """
        self._leave()
        deadline = time.monotonic() + timeout
        while not (drained := self._is_drained()) and time.monotonic() < deadline:
            time.sleep(0.01)
        self._stopping.set()
        self._room.set()
        by = time.monotonic() + JOIN_TIMEOUT
        for thread in self._threads:
            if thread.name in ("enode-puller", *self._keepers):
                thread.join(max(0.0, by - time.monotonic()))
        try:
            self.consumer.abandon()
        except TransportUnavailable as error:
            logger.warning("%s; the queues are kept until their leases end", error)
            return False
        while self._publisher.waiting and time.monotonic() < deadline:
            time.sleep(0.01)
        return drained

    def _is_drained(self) -> bool:
        # In this order: until the puller has taken note, it may bring what nobody waits for yet.
        return self.consumer.has_ended and self.consumer.unfinished <= self._intake.delayed

    def _leave(self) -> None:
        try:
            self.consumer.leave()
        except EnodeError as error:
            logger.warning("%s; the group learns when the session ends that this worker has left", error)

    def close(self, timeout: float) -> None:
        """End the threads of a drained pipeline, waiting up to ``timeout`` seconds for each."""
        boxes: list[Mailbox[Any]] = [*self._commands, *self._events, self._finished]
        for box in boxes:
            box.close()
        if self._states is not None:
            join_threads([thread for thread in self._threads if thread.name != self._states.name], timeout)
            self._states.close()
        join_threads(self._threads, timeout)

    def _offsets(self) -> dict[str, dict[str, int]]:
        """How much was ever posted into each mailbox, and taken from it. What is taken is read first, so that it never
        looks as if more had been taken than posted."""
        boxes: list[Mailbox[Any]] = [*self._commands, *self._events]
        taken = [box.consume_offset for box in boxes]
        return {
            box.name.removeprefix("enode-"): {MAX_OFFSET: box.max_offset, CONSUME_OFFSET: offset}
            for box, offset in zip(boxes, taken, strict=True)
        }

    @property
    def owned(self) -> frozenset[int]:
        return self.consumer.owned

    @property
    def cached_aggregates(self) -> int:
        return sum(processor.cached for processor in self._processors)

    # -- the puller -----------------------------------------------------------------------------------------------

    def _run_puller(self) -> None:
        waits = delays()
        while not self._stopping.is_set():
            try:
                self._pull_once()
                waits = delays()
            except (TransportUnavailable, StoreUnavailable) as error:
                delay = next(waits)
                logger.warning("%s; pulling again in %.2f s", error, delay)
                self._stopping.wait(delay)

    def _pull_once(self) -> None:
        for window, previous_owner, deaths in self.consumer.acquire_missing():
            self._intake.suspect(window.queue, deaths)
            if previous_owner is not None:
                logger.warning("took %s/%d from %s", window.topic, window.queue, previous_owner)
            for box in self._commands:
                box.post(Taken(window.queue, previous_owner))
        # What waits for a type that is unknown here is left to the next owner, which may know it.
        self.consumer.release_drained(self._intake.delayed_in)
        self._store.place_of("")  # where nobody knows which shard has what, nothing must be pulled
        self._route(self._intake.retry())
        paused = self._paused()
        if paused and paused >= self.consumer.owned:
            self._room.clear()
            if self._paused() >= self.consumer.owned:
                self._room.wait(PULL_WAIT)
            return
        # What is set aside comes again by the clock, and queues that pause go on when there is room.
        wait = PULL_WAIT if paused or self._intake.delayed else self.consumer.pull_wait
        for window, offsets, bodies in self.consumer.pull(self._conf.PULL_MAX_BATCH, wait, without=paused):
            self._meter.pulled(window, offsets)
            self._backlogs.note(window, self._route(self._intake.receive(window, offsets, bodies)))

    def _paused(self) -> frozenset[int]:
        return self._backlogs.paused(self.consumer.open_windows)

    def _route(self, received: Received) -> Collection[int]:
        """Returns the places of the shards whose aggregates the commands are for."""
        if received.finished:
            self._finished.post(received.finished)
        if len(self._commands) == 1:
            if received.commands:
                self._commands[0].post(Commands(received.commands, received.is_backlog))
            return (0,)
        shares: list[list[Envelope]] = [[] for _ in self._commands]
        for envelope in received.commands:
            shares[envelope.command_mailbox].append(envelope)
        for box, share in zip(self._commands, shares, strict=True):
            if share:
                box.post(Commands(share, received.is_backlog))
        return {self._router.shard_of(number) for number, share in enumerate(shares) if share}

    # -- command mailboxes ----------------------------------------------------------------------------------------

    def _run_command_mailbox(self, box: Mailbox[CommandItem], processor: CommandProcessor) -> None:
        number = self._commands.index(box)
        shard = self._store.shards[self._router.shard_of(number)]
        while (items := box.take(HANDLE_AT_ONCE, processor.pause)) is not None:
            heal_connections()
            for item in items:
                if isinstance(item, Commands):
                    self._handle(item, processor)
                elif isinstance(item, Outcomes):
                    processor.finish(item.released)
                    for start in range(0, len(item.recoveries), HANDLE_AT_ONCE):
                        again = processor.recover(*item.recoveries[start : start + HANDLE_AT_ONCE])
                        self._post_entries(again, number)
                else:
                    if item.previous_owner is not None:
                        self._end_sessions(shard, item.previous_owner)
                    processor.forget(item.queue)
            processor.keep()
        processor.keep_rest(FLUSH)

    def _handle(self, commands: Commands, processor: CommandProcessor) -> None:
        envelopes = commands.envelopes
        if commands.is_backlog:
            stored, envelopes = processor.take_stored(envelopes)
            self._post_entries(stored)
        for start in range(0, len(envelopes), HANDLE_AT_ONCE):
            self._post_entries(processor.handle(envelopes[start : start + HANDLE_AT_ONCE]))

    @staticmethod
    def _end_sessions(shard: Shard, owner: str) -> None:
        """A worker that was stopped in the middle of a COPY would let its successor wait."""
        ended = until_it_works(partial(shard.end_sessions, owner))
        if ended:
            logger.warning("ended %d sessions of %s in %s", ended, owner, shard.name)

    def _post_entries(self, entries: Sequence[Entry], command_mailbox: int = 0) -> None:
        if not entries:
            return
        if len(self._events) == 1:
            self._events[0].post(entries)
            return
        shares: list[list[Entry]] = [[] for _ in self._events]
        for entry in entries:
            envelope = entry.envelope
            if envelope is not None:
                shares[envelope.event_mailbox].append(entry)
            else:
                shares[self._router.event_mailbox_beside(command_mailbox, entry.aggregate_root_id)].append(entry)
        for box, share in zip(self._events, shares, strict=True):
            if share:
                box.post(share)

    # -- event mailboxes ------------------------------------------------------------------------------------------

    def _run_event_mailbox(self, box: Mailbox[Sequence[Entry]]) -> None:
        committer = Committer(self._store, persist=until_it_works, clock=time.monotonic)
        while (items := box.take(self._conf.COPY_MAX_BATCH)) is not None:
            entries = items[0] if len(items) == 1 else [entry for item in items for entry in item]
            for start in range(0, len(entries), self._conf.COPY_MAX_BATCH):
                self._commit(committer, entries[start : start + self._conf.COPY_MAX_BATCH])

    def _commit(self, committer: Committer, entries: Sequence[Entry]) -> None:
        began, clock = self._tracing.now(), time.perf_counter()
        committed = committer.commit(entries)
        self._meter.stored(committed.finished, len(committed.recoveries), committer.store_seconds)
        self._tracing.batch("commit", (one.envelope for one in committed.finished), began)
        if flow.is_told():
            flow.tell_committed(committed, time.perf_counter() - clock)
        if committed.finished:
            self._finished.post(committed.finished)
        self._tell_command_mailboxes(committed.released, committed.recoveries)

    def _tell_command_mailboxes(self, released: Sequence[Entry], recoveries: Sequence[Recovery]) -> None:
        """Ahead of the commands that wait: until then the command mailbox holds what is finished, and its aggregates
        cannot leave the cache."""
        if len(self._commands) == 1:
            if released or recoveries:
                self._commands[0].post_urgent(Outcomes(released, recoveries))
            return
        shares: list[tuple[list[Entry], list[Recovery]]] = [([], []) for _ in self._commands]
        for entry in released:
            if entry.envelope is not None:
                shares[entry.envelope.command_mailbox][0].append(entry)
        for recovery in recoveries:
            shares[recovery.command_mailbox][1].append(recovery)
        for box, share in zip(self._commands, shares, strict=True):
            if share[0] or share[1]:
                box.post_urgent(Outcomes(*share))

    # -- publisher and keeper -------------------------------------------------------------------------------------

    def _run_publisher(self) -> None:
        publisher = self._publisher
        while (
            items := self._finished.take(2 * self._conf.COPY_MAX_BATCH, PULL_WAIT if publisher.waiting else None)
        ) is not None:
            finished = items[0] if len(items) == 1 else [one for item in items for one in item]
            if finished:
                began = self._tracing.now()
                publisher.publish(finished)
                self._tracing.batch("publish", (one.envelope for one in finished if one.record is not None), began)
                self._statistics.count_published(len(finished))
                self._room.set()
            elif publisher.waiting:
                publisher.answer_committed()

    def _run_keeper(self, housekeeper: Housekeeper) -> None:
        while not self._stopping.wait(housekeeper.pause):
            housekeeper.tick()
