"""The last step of the write path: answer, publish, move the window."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from enode_django.bus.addresses import answer_address, notice_address
from enode_django.bus.messages import encode_published
from enode_django.bus.results import CommandResult, encode_result, failure, stored_result
from enode_django.commanding.decisions import Finished
from enode_django.commanding.identity import content_of, is_conflict
from enode_django.commanding.remembered_answers import RememberedAnswers
from enode_django.concurrency.backoff import Persist
from enode_django.databases import heal_connections
from enode_django.domain.metadata import EMPTY, Metadata
from enode_django.equeue.offsets import OffsetWindow
from enode_django.equeue.portions import PORTION_BYTES, portions
from enode_django.equeue.producer import Producer
from enode_django.equeue.replying import deliver
from enode_django.equeue.transport import Transport
from enode_django.eventstore.base import StreamRecord
from enode_django.exceptions import EnodeError, MalformedMessage, QueueFull
from enode_django.serialization.codec import decode_metadata, sent_with
from enode_django.serialization.sent_commands import SentCommand, may_have_sent
from enode_django.signals import command_finished

logger = logging.getLogger("enode_django.publisher")

FULL_SECONDS = 10.0
"""Seconds that events wait for room in a full queue. Then they are left to the sweeps: maybe only committed commands
make room, and those commands wait until their events are published."""


class EventPublisher:
    """Answers and publishes outcomes. All methods are called by one thread. They block until the queue has taken their
    messages, except for events that a full queue does not take for `FULL_SECONDS`.

    A stored outcome is answered at once. Any other is answered after ``commit`` has, in one step, moved the consume
    offset past its command and made the queue remember the answer. From then on the command is not delivered again, and
    a copy of it gets the same answer: it cannot be decided otherwise.
    """

    def __init__(
        self,
        transport: Transport,
        producer: Producer,
        remembered: RememberedAnswers,
        *,
        event_topic: str,
        command_topic: str,
        persist: Persist,
        commit: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._transport = transport
        self._producer = producer
        self._remembered = remembered
        self._event_topic = event_topic
        self._command_topic = command_topic
        self._forwarding = producer.with_reserve()
        self._persist = persist
        self._commit = commit
        self._clock = clock
        self._full_since: float | None = None
        self._is_leaving_events = False
        self._waiting: list[Finished] = []

    @property
    def max_record(self) -> int:
        """The most bytes of events and metadata that a stored stream may have, so that its message can be sent."""
        return self._producer.max_message

    @property
    def waiting(self) -> int:
        """The number of outcomes that wait for the consume offset to move."""
        return len(self._waiting)

    def publish(self, finished: Sequence[Finished], size: int | None = None) -> None:
        """Answer, publish and finish commands. ``size`` is about how many bytes they take, if the caller knows.

        Large outcomes are published in portions, one after the other. The backlog of a queue may be too large for any
        transport to take at once, and no part of it must be sent again because of the rest.
        """
        if (sum(map(_size, finished)) if size is None else size) <= PORTION_BYTES:
            self._publish(finished)
            return
        for some in portions(finished, _size):
            self._publish(some)

    def _publish(self, finished: Sequence[Finished]) -> None:
        stored = [one for one in finished if one.record is not None]
        self._answer(stored)
        self._send_streams(list(map(_stream_of, stored)))
        self._send_commands([one.record for one in stored if one.record and may_have_sent(one.record.events)])
        unstored = [one for one in finished if one.record is None and one.envelope.reply_to]
        self._remember(unstored)
        self._waiting.extend([one for one in finished if one.record is None] if is_announced() else unstored)
        self._move_windows(finished)
        _announce(stored)
        if self._waiting:
            self.answer_committed()

    def answer_committed(self) -> None:
        """Commit the offsets, and answer the commands that waited for that."""
        self._commit()
        due, waiting = [], []
        for one in self._waiting:
            if _is_past(one):
                due.append(one)
            elif not one.envelope.is_lost:
                waiting.append(one)
        self._answer(due)
        _announce(due)
        self._waiting = waiting  # last, because the shutdown reads it

    def _remember(self, unstored: Sequence[Finished]) -> None:
        """Keep the answers before the windows move, so that the commit of the windows includes them. Only answers that
        somebody waits for are kept. A body that is not a command has no outcome, and the store was not asked about it.
        A conflict of ids must not answer for the other command."""
        for one in unstored:
            envelope, result = one.envelope, one.result
            if envelope.window is None or result is None or not envelope.type_name or is_conflict(result):
                continue
            self._remembered.add(envelope.window, envelope.offset, result, content_of(envelope.body))

    def _send_streams(self, streams: Sequence[tuple[str, bytes]]) -> None:
        largest = self._transport.max_send
        if streams and max([len(body) for _, body in streams]) > largest:
            # These were stored under other limits. Nothing is lost: the sweep reads them from the store.
            for id in [id for id, body in streams if len(body) > largest]:
                logger.error("a stream of %r is too large for the queue; subscribers get it when they sweep", id)
            streams = [(id, body) for id, body in streams if len(body) <= largest]
        if streams:
            self._producer.send_all(self._event_topic, streams, persist=self._persist_unless_full)

    def _send_commands(self, records: Sequence[StreamRecord]) -> None:
        """Send the commands that handlers have sent with these streams. A full queue takes them from its reserve: the
        commands whose handlers sent them are not finished before."""
        commands = [command for record in records for command in _sent_with(record)]
        largest = self._producer.max_message
        for id in [id for id, body in commands if len(body) > largest]:  # stored with other limits
            logger.error("a command for %r is too large for the queue, and is not sent", id)
        commands = [command for command in commands if len(command[1]) <= largest]
        if commands:
            self._forwarding.send_all(self._command_topic, commands, persist=self._persist)

    def _persist_unless_full(self, send: Callable[[], None], /) -> None:
        """Send as ``persist`` does. Once the queue has been full for `FULL_SECONDS`, the events that it refuses are
        left to the sweeps. They are in the store, so no subscriber misses them."""
        self._persist(partial(self._send_unless_full, send))

    def _send_unless_full(self, send: Callable[[], None]) -> None:
        try:
            send()
        except QueueFull:
            if not self._leaves_events_to_sweeps():
                raise
        else:
            if self._is_leaving_events:
                logger.warning("the queue has room again; subscribers get the events since then without sweeping")
            self._full_since, self._is_leaving_events = None, False

    def _leaves_events_to_sweeps(self) -> bool:
        """Return True if the queue, which is full now, has been full for `FULL_SECONDS`."""
        now = self._clock()
        if self._full_since is None:
            self._full_since = now
        full = now - self._full_since
        if full >= FULL_SECONDS and not self._is_leaving_events:
            logger.error(
                "the queue has been full for %.0f s; until it has room, subscribers get events by sweeping", full
            )
            self._is_leaving_events = True
        return self._is_leaving_events

    def _answer(self, finished: Iterable[Finished]) -> None:
        """Answer the commands whose senders wait."""
        waiting = (one for one in finished if one.envelope.reply_to and (one.record or one.result))
        replies = ((answer_address(one.envelope.reply_to), encode_result(answer_of(one))) for one in waiting)
        for some in portions(replies, lambda reply: len(reply[1])):
            self._persist(partial(deliver, self._transport, list(some)))

    @staticmethod
    def _move_windows(finished: Sequence[Finished]) -> None:
        offsets: dict[OffsetWindow, list[int]] = {}
        for envelope, _, _, _ in finished:
            window = envelope.window
            if window in offsets:
                offsets[window].append(envelope.offset)
            elif window is not None:
                offsets[window] = [envelope.offset]
        for window, done in offsets.items():
            window.finish_many(done)


def _stream_of(one: Finished) -> tuple[str, bytes]:
    """Return the key and the body of a stored outcome's message."""
    envelope, record, _, generation = one
    assert record is not None
    reply_to = notice_address(envelope.reply_to) if envelope.reply_to else ""
    return record.aggregate_root_id, encode_published(record, reply_to, generation)


def _sent_with(record: StreamRecord) -> Sequence[SentCommand]:
    try:
        return sent_with(record.events)
    except EnodeError as error:
        logger.error("what was sent with command %r cannot be read: %s", record.command_id, error)
        return ()


def _size(one: Finished) -> int:
    """Return about how many bytes an outcome takes in the queue, before it is encoded."""
    record = one.record
    return len(record.events) + len(record.metadata) if record is not None else len(one.envelope.body or b"")


def answer_of(one: Finished) -> CommandResult:
    """Return the result of a finished command."""
    if one.record is None:
        assert one.result is not None
        return one.result
    try:
        return stored_result(one.record)
    except EnodeError as error:
        logger.error("what is stored of command %r cannot be read: %s", one.envelope.id, error)
        return failure(one.envelope.id, one.envelope.aggregate_root_id, error)


def is_announced() -> bool:
    """Return True if somebody receives the signal `command_finished`."""
    return bool(command_finished.receivers)


def announce(finished: Sequence[Finished]) -> None:
    """Send the signal `command_finished` for commands whose outcomes are durable. A message that is not a command, or
    is of an unknown type, has no signal."""
    for one in finished if is_announced() else ():
        command = one.envelope.command
        if command is not None:
            about = {"command": command, "result": answer_of(one), "metadata": _metadata_of(one)}
            command_finished.send_robust(type(command), **about)


def _announce(finished: Sequence[Finished]) -> None:
    """Announce from the publisher's thread. Receivers may use a database, so heal the thread's connections first."""
    if finished and is_announced():
        heal_connections()
        announce(finished)


def _metadata_of(one: Finished) -> Metadata:
    try:
        return decode_metadata(one.envelope.metadata)
    except MalformedMessage:
        return EMPTY


def _is_past(one: Finished) -> bool:
    window = one.envelope.window
    return window is None or window.committed > one.envelope.offset
