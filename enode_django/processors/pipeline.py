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
from typing import Any

from enode_django.bus.interception import handlers_in_use
from enode_django.commanding.command_processor import CommandProcessor
from enode_django.commanding.committer import Committer
from enode_django.commanding.dead_letters import crashed_among, keep_crashed, kept_and_answered
from enode_django.commanding.decisions import Decision, Envelope, Finished, Recovery
from enode_django.commanding.intake import Intake, Received
from enode_django.commanding.logged_steps import log_committed
from enode_django.commanding.mailbox_router import MailboxRouter
from enode_django.commanding.publisher import EventPublisher
from enode_django.commanding.remembered_answers import RememberedAnswers
from enode_django.commanding.shared_state_writer import SharedStateWriter
from enode_django.concurrency.backoff import CountedWaits, delays, until_it_works
from enode_django.concurrency.in_flight import InFlightMarker
from enode_django.concurrency.mailbox import Mailbox
from enode_django.concurrency.outages import Attempts
from enode_django.concurrency.room import Room
from enode_django.concurrency.threads import join_threads
from enode_django.conf import Conf
from enode_django.databases import heal_connections
from enode_django.equeue.consumer.queue_consumer import QueueConsumer
from enode_django.equeue.lookups import Lookups
from enode_django.equeue.offsets import OffsetWindow
from enode_django.equeue.transport import Transport
from enode_django.eventstore.base import EventStore, Shard
from enode_django.eventstore.dead_letters import DeadLetters
from enode_django.exceptions import EnodeError, StoreUnavailable, TransportUnavailable
from enode_django.processors.amounts import FIRST_LOOKUP, HANDLE_BYTES, LOOKUP_BYTES, size_of_entries
from enode_django.processors.backlogs import ShardBacklogs
from enode_django.processors.housekeeping import Housekeeper, queue_keepers, store_duties, trimming
from enode_django.processors.mail import (
    CommandItem,
    Commands,
    Outcomes,
    Sized,
    Taken,
    command_weight,
    divided,
    joined,
    offsets_of,
    weight,
)
from enode_django.processors.measuring import BatchMeter
from enode_django.processors.statistics import Statistics
from enode_django.processors.threads import PULL_WAIT, start_noting_thread, start_worker_thread
from enode_django.repository.loading import AggregateLoader
from enode_django.repository.writing_behind import WriteBehind
from enode_django.runtime import make_dead_letters, make_producer, make_retries, make_snapshots, make_states
from enode_django.telemetry import steplog
from enode_django.telemetry.tracing import current_tracing

logger = logging.getLogger("enode_django.worker")

HELD_PER_UNFINISHED = 5
"""A queue whose first message is stuck goes on until it holds so many times ``MAX_UNFINISHED`` finished ones behind."""
HANDLE_AT_ONCE = 250
"""Commands after which a command mailbox hands over what it has: the event mailbox should not wait for more."""
JOIN_TIMEOUT = 5.0
"""Seconds for the puller and the keepers to end, all together."""
FLUSH = 0.5
"""Seconds that a command mailbox may take at its end to encode what the shared states have not got yet."""


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
        notes: Sequence[InFlightMarker],
        statistics: Statistics,
    ) -> None:
        self._conf, commands, workers = conf, conf.COMMANDS, conf.WORKERS
        self._store = store
        self._statistics = statistics
        self._meter = BatchMeter(statistics)
        self._dead_letters = make_dead_letters(store)
        self._tracing = current_tracing()
        shards = len(store.shards)
        self._router = MailboxRouter(commands.MAILBOXES, commands.EVENT_MAILBOXES, shards, store.place_of)
        self._backlogs = ShardBacklogs(shards, commands.MAX_UNFINISHED)
        self.consumer = QueueConsumer(
            transport,
            group=commands.CONSUMER_GROUP,
            topic=commands.TOPIC,
            owner=owner,
            lease=workers.LEASE,
            max_held=HELD_PER_UNFINISHED * commands.MAX_UNFINISHED,
            heavy=max(1, commands.MAX_UNFINISHED_BYTES // commands.MAX_UNFINISHED),
            keep_receipts=commands.REMEMBERED_ANSWERS,
            long_poll=workers.LONG_POLL,
        )
        remembered = self._remembered = RememberedAnswers(
            commands.REMEMBERED_ANSWERS,
            lambda window: until_it_works(lambda: self.consumer.receipts(window)),
            earlier=self.consumer,
        )
        self._intake = Intake(
            self._router, remembered, delays=workers.UNKNOWN_TYPE_DELAYS, max_deaths=workers.MAX_ABNORMAL_ENDS
        )
        self._publisher = EventPublisher(
            transport,
            make_producer(transport),
            remembered,
            event_topic=conf.SUBSCRIBERS.TOPIC,
            command_topic=commands.TOPIC,
            persist=until_it_works,
            commit=lambda: until_it_works(self.consumer.commit_some),
        )
        self._keepers = queue_keepers(
            conf, [self.consumer], trim_more=trimming(self.consumer, transport, conf.SUBSCRIBERS.TOPIC)
        )
        self._pruner = Housekeeper(store_duties(conf, self.consumer, store, self._dead_letters))
        self._commands: list[Mailbox[CommandItem]] = [
            Mailbox(f"enode-commands-{n}", command_weight) for n in range(self._router.command_mailboxes)
        ]
        self._events: list[Mailbox[Sized[Decision]]] = [
            Mailbox(f"enode-events-{n}", weight) for n in range(self._router.event_mailboxes)
        ]
        self._finished: Mailbox[Sized[Finished]] = Mailbox("enode-publisher", weight)
        # One for each shard: that one is away must not stop the others.
        self._rooms = [Room(max(1, commands.MAX_UNFINISHED_BYTES // shards)) for _ in range(shards)]
        self._lookups = [
            Lookups(first=FIRST_LOOKUP, most=max(1, commands.PULL_MAX_BATCH), most_bytes=LOOKUP_BYTES)
            for _ in self._commands
        ]
        states = make_states()
        self._states = WriteBehind(states) if states is not None else None
        self._persist = CountedWaits()
        self._notes = notes
        self._processors = self._make_processors(notes)
        statistics.gauges["cached_aggregates"] = lambda: self.cached_aggregates
        statistics.gauges["unfinished"] = lambda: self.consumer.unfinished
        statistics.gauges["waiting_for_help"] = lambda: self._persist.waiting
        statistics.mailboxes = lambda: offsets_of([*self._commands, *self._events])
        self._room = threading.Event()
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []

    def _make_processors(self, notes: Sequence[InFlightMarker]) -> list[CommandProcessor]:
        conf, cache, suspects = self._conf, self._conf.AGGREGATE_CACHE, threading.Lock()
        mailboxes = self._router.command_mailboxes
        share = max(1, cache.MAX_AGGREGATES // mailboxes)
        # A copy must be known while its first is unfinished: no row and no remembered answer speaks for that yet.
        recent = max(2 * conf.COMMANDS.MAX_UNFINISHED, conf.COMMANDS.RECENT_COMMANDS // mailboxes)
        return [
            CommandProcessor(
                AggregateLoader(self._store, make_snapshots(self._store), self._states),
                handlers_in_use(),
                persist=self._persist,
                max_aggregates=share,
                max_recent=recent,
                max_cached_bytes=max(1, cache.MAX_BYTES // mailboxes),
                max_bytes=min(conf.COMMANDS.EVENTS_MAX_BYTES, self._publisher.max_record),
                note=note,
                suspects=suspects,
                keeper=SharedStateWriter(self._states, interval=cache.WRITE_INTERVAL) if self._states else None,
                retries=make_retries(conf),
                shard=self._store.shards[self._router.shard_of(number)],
            )
            for number, note in enumerate(notes)
        ]

    def start(self) -> None:
        runs: list[tuple[str, Callable[[], None]]] = [("enode-publisher", self._run_publisher)]
        runs += [(box.name, partial(self._run_event_mailbox, box)) for box in self._events]
        runs += [("enode-puller", self._run_puller)]
        runs += [(name, partial(self._run_keeper, keeper)) for name, keeper in self._keepers.items()]
        runs += [("enode-pruner", partial(self._run_keeper, self._pruner))]
        if self._states is not None:
            runs += [(self._states.name, self._states.run)]
        self._threads = [start_worker_thread(name, run) for name, run in runs]
        for box, processor, note in zip(self._commands, self._processors, self._notes, strict=True):
            run = partial(self._run_command_mailbox, box, processor)
            self._threads.append(start_noting_thread(box.name, run, note))

    # -- called by the main thread --------------------------------------------------------------------------------

    def drain(self, timeout: float) -> bool:
        """Stop pulling, finish what was pulled, release the queues; return True if all of it was done in time. Commands
        of an unknown type, and those that wait to be handled again, stay in the queue."""
        self._leave()
        deadline = time.monotonic() + timeout
        while not (drained := self._is_drained()) and time.monotonic() < deadline:
            time.sleep(0.01)
        self._stopping.set()
        self._let_nobody_wait()
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
        if not self.consumer.has_ended:
            return False
        windows = self.consumer.open_windows
        return sum(window.unfinished for window in windows) <= sum(self._left_in(window) for window in windows)

    def _leave(self) -> None:
        try:
            self.consumer.leave()
        except EnodeError as error:
            logger.warning("%s; the group learns when the session ends that this worker has left", error)

    def close(self, timeout: float) -> None:
        """End the threads of a drained pipeline, waiting up to ``timeout`` seconds for each."""
        self._let_nobody_wait()
        boxes: list[Mailbox[Any]] = [*self._commands, *self._events, self._finished]
        for box in boxes:
            box.close()
        if self._states is not None:
            join_threads([thread for thread in self._threads if thread.name != self._states.name], timeout)
            self._states.close()
        join_threads(self._threads, timeout)

    def _let_nobody_wait(self) -> None:
        self._room.set()
        for room in self._rooms:
            room.close()

    @property
    def owned(self) -> frozenset[int]:
        return self.consumer.owned

    @property
    def cached_aggregates(self) -> int:
        return sum(processor.cached for processor in self._processors)

    # -- the puller -----------------------------------------------------------------------------------------------

    def _run_puller(self) -> None:
        waits, attempts = delays(), Attempts()
        while not self._stopping.is_set():
            try:
                self._pull_once()
                waits = delays()
                attempts.worked()
            except (TransportUnavailable, StoreUnavailable) as error:
                attempts.failed(error)
                self._stopping.wait(next(waits))

    def _pull_once(self) -> None:
        for window, previous_owner, deaths in self.consumer.acquire_missing():
            self._intake.suspect(window.queue, deaths)
            if previous_owner is not None:
                logger.warning("took %s/%d from %s", window.topic, window.queue, previous_owner)
            for box in self._commands:
                box.post(Taken(window.queue, previous_owner))
        # What waits for a type that is unknown here is left to the next owner, which may know it; and so is what waits
        # for its next attempt.
        self.consumer.release_drained(self._left_in)
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
        pulled = self.consumer.pull(self._conf.COMMANDS.PULL_MAX_BATCH, wait, without=paused)
        if pulled:
            until_it_works(self._remembered.heed_route)
        for window, offsets, bodies in pulled:
            self._meter.pulled(window, offsets)
            self._backlogs.note(window, self._route(self._intake.receive(window, offsets, bodies)))

    def _left_in(self, window: OffsetWindow) -> int:
        """Return how many commands of this lease nobody is at work on."""
        return self._intake.delayed_in(window) + sum(one.postponed_in(window) for one in self._processors)

    def _paused(self) -> frozenset[int]:
        return self._backlogs.paused(self.consumer.open_windows)

    def _route(self, received: Received) -> Collection[int]:
        """Returns the places of the shards whose aggregates the commands are for."""
        if received.finished:
            self._route_finished(received.finished)
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

    def _route_finished(self, finished: Sequence[Finished]) -> None:
        """Post broken commands to the first event mailbox, which makes them dead letters; answers to the publisher."""
        broken, answered = kept_and_answered(finished)
        room = self._rooms[self._router.shard_beside(0)]
        if broken:
            self._events[0].post(Sized(broken, 0, room))
        if answered:
            self._finished.post(Sized(answered, 0, room))

    # -- command mailboxes ----------------------------------------------------------------------------------------

    def _run_command_mailbox(self, box: Mailbox[CommandItem], processor: CommandProcessor) -> None:
        number = self._commands.index(box)
        shard = self._store.shards[self._router.shard_of(number)]
        while (items := box.take(HANDLE_AT_ONCE, processor.pause)) is not None:
            heal_connections()
            for item in items:
                if isinstance(item, Commands):
                    self._handle(item, processor, box)
                elif isinstance(item, Outcomes):
                    self._take_outcomes(item, processor, number)
                else:
                    if item.previous_owner is not None:
                        self._end_sessions(shard, item.previous_owner)
                    processor.forget(item.queue)
            items.clear()  # else they stay in memory until the next ones come
            self._handle(Commands(processor.take_due(), False), processor, box)
            processor.keep()
        processor.keep_rest(FLUSH)

    def _take_outcomes(self, outcomes: Outcomes, processor: CommandProcessor, number: int) -> None:
        processor.finish(outcomes.released)
        for start in range(0, len(outcomes.recoveries), HANDLE_AT_ONCE):
            again = processor.recover(*outcomes.recoveries[start : start + HANDLE_AT_ONCE])
            self._post_entries(again, number)

    def _handle(self, commands: Commands, processor: CommandProcessor, box: Mailbox[CommandItem]) -> None:
        envelopes = commands.envelopes
        number = self._commands.index(box)
        if commands.is_backlog:
            envelopes = self._without_stored(envelopes, processor, number)
        start, most_bytes = 0, min(HANDLE_BYTES, self._room_of(number).limit)
        while start < len(envelopes):
            some = envelopes[start : start + HANDLE_AT_ONCE]
            entries = processor.handle(some, most_bytes)
            start += len(entries)
            self._post_entries(entries, number)
            if len(entries) < len(some) or self._room_of(number).is_full:
                self._make_room(processor, box, number)

    def _without_stored(
        self, envelopes: Sequence[Envelope], processor: CommandProcessor, number: int
    ) -> Sequence[Envelope]:
        """Hand on what is stored already; returns the commands that are to be handled."""
        left: list[Envelope] = []
        lookups, start = self._lookups[number], 0
        while start < len(envelopes):
            some = envelopes[start : start + lookups.count]
            stored, missing = processor.take_stored(some)
            lookups.found(len(some), self._post_entries(stored, number))
            left += missing
            start += len(some)
            self._room_of(number).wait()
        return left

    def _make_room(self, processor: CommandProcessor, box: Mailbox[CommandItem], number: int) -> None:
        """Between commands with many bytes: let go of those that are stored by now, and wait while too many are not.
        Those who give room back, the event mailboxes and the publisher, wait for no command mailbox."""
        self._room_of(number).wait()
        for item in box.take_urgent():
            if isinstance(item, Outcomes):
                self._take_outcomes(item, processor, number)

    @staticmethod
    def _end_sessions(shard: Shard, owner: str) -> None:
        """A worker that was stopped in the middle of a COPY would let its successor wait."""
        ended = until_it_works(partial(shard.end_sessions, owner))
        if ended:
            logger.warning("ended %d sessions of %s in %s", ended, owner, shard.name)

    def _room_of(self, command_mailbox: int) -> Room:
        return self._rooms[self._router.shard_of(command_mailbox)]

    def _post_entries(self, entries: Sequence[Decision], command_mailbox: int) -> int:
        """Returns the bytes that they take."""
        if not entries:
            return 0
        size, room = size_of_entries(entries), self._room_of(command_mailbox)
        room.take(size)
        if len(self._events) == 1:
            self._events[0].post(Sized(entries, size, room))
            return size
        shares: list[list[Decision]] = [[] for _ in self._events]
        for entry in entries:
            envelope = entry.envelope
            if envelope is not None:
                shares[envelope.event_mailbox].append(entry)
            else:
                shares[self._router.event_mailbox_beside(command_mailbox, entry.aggregate_root_id)].append(entry)
        for box, share in zip(self._events, shares, strict=True):
            if share:
                box.post(Sized(share, size_of_entries(share), room))
        return size

    # -- event mailboxes ------------------------------------------------------------------------------------------

    def _run_event_mailbox(self, box: Mailbox[Sized[Decision]]) -> None:
        committer = Committer(self._store, persist=self._persist, clock=time.monotonic)
        letters = self._dead_letters[self._router.shard_beside(self._events.index(box))]
        limits = self._conf.COMMANDS
        while (items := box.take(limits.COPY_MAX_BATCH)) is not None:
            if items:
                for batch in divided(joined(items), limits.COPY_MAX_BATCH, limits.COPY_MAX_BYTES):
                    self._commit(committer, letters, batch)
                items.clear()  # else they stay in memory until the next ones come

    def _commit(self, committer: Committer, letters: DeadLetters, batch: Sized[Decision]) -> None:
        began, clock = self._tracing.now(), time.perf_counter()
        committed = committer.commit(batch.items)
        self._meter.stored(committed.finished, len(committed.recoveries), committer.store_seconds)
        self._tracing.batch("commit", (one.envelope for one in committed.finished), began)
        if steplog.enabled():
            log_committed(committed, time.perf_counter() - clock)
        if crashed := crashed_among(committed.finished):
            keep_crashed(letters, crashed, until_it_works)
        if committed.finished:
            batch.room.take(committer.found_bytes)
            self._finished.post(Sized(committed.finished, batch.size + committer.found_bytes, batch.room))
        else:
            batch.give_back()
        self._tell_command_mailboxes(committed.released, committed.recoveries)

    def _tell_command_mailboxes(self, released: Sequence[Decision], recoveries: Sequence[Recovery]) -> None:
        """Ahead of the commands that wait: until then the command mailbox holds what is finished, and its aggregates
        cannot leave the cache."""
        if len(self._commands) == 1:
            if released or recoveries:
                self._commands[0].post_urgent(Outcomes(released, recoveries))
            return
        shares: list[tuple[list[Decision], list[Recovery]]] = [([], []) for _ in self._commands]
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
        publisher, most = self._publisher, 2 * self._conf.COMMANDS.COPY_MAX_BATCH
        while (items := self._finished.take(most, PULL_WAIT if publisher.waiting else None)) is not None:
            if items:
                self._publish(items)
                items.clear()  # else they stay in memory until the next ones come
            elif publisher.waiting:
                publisher.answer_committed()

    def _publish(self, batches: Sequence[Sized[Finished]]) -> None:
        finished, size, _ = joined(batches)
        began = self._tracing.now()
        self._publisher.publish(finished, size)
        for batch in batches:
            batch.give_back()
        self._tracing.batch("publish", (one.envelope for one in finished if one.record is not None), began)
        self._statistics.count_published(len(finished))
        self._room.set()

    def _run_keeper(self, housekeeper: Housekeeper) -> None:
        while not self._stopping.wait(housekeeper.pause):
            housekeeper.tick()
