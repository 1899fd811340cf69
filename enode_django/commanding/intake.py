"""Make envelopes of pulled messages: decode them, find commands that were answered before, and set aside those that
cannot be decoded yet."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from enode_django.bus.addresses import crash_handler_in
from enode_django.commanding.decisions import Envelope, Finished
from enode_django.commanding.identity import conflict_with_content
from enode_django.commanding.mailbox_router import MailboxRouter
from enode_django.commanding.outcomes import failed, ids_of
from enode_django.commanding.remembered_answers import RememberedAnswers
from enode_django.domain.messages import Command
from enode_django.equeue.offsets import OffsetWindow
from enode_django.exceptions import CommandKilledWorker, EnodeError, MessageError, UnknownMessageType
from enode_django.serialization.codec import LONGEST_REPLY_ADDRESS, WireCommand, decode_command, restore_command
from enode_django.serialization.plain import unpack

logger = logging.getLogger("enode_django.commands")


class Received(NamedTuple):
    """Commands and outcomes, each in order. ``commands`` go to command mailboxes. In ``finished``, answers given before
    go to the publisher, and broken messages to an event mailbox, which makes dead letters of them.

    ``is_backlog`` says that some of the commands were in their queue when it was taken over: they may be stored.
    """

    commands: list[Envelope]
    finished: list[Finished]
    is_backlog: bool = False


class _Pulled(NamedTuple):
    window: OffsetWindow
    offset: int
    body: bytes
    wire: WireCommand


_pulled: Callable[[Iterable[Any]], _Pulled] = partial(tuple.__new__, _Pulled)  # takes a third of the time


@dataclass(slots=True)
class _Delayed:
    """A command of an unknown type, and the later ones for the same aggregate."""

    waiting: deque[_Pulled]
    due: float
    attempts: int


class Intake:
    """Decodes pulled commands. All methods are called by the pulling thread, but any thread may read `delayed`. They
    block on the transport for the answers that it remembers of an acquired queue. They never block on the store: an
    unavailable shard must not hold up the commands for others.

    ``delays`` are the seconds after which a command of an unknown type is tried again (a rolling deploy may bring a
    worker that knows it); after the last it fails. A command that a worker was handling when it died is a suspect.
    Suspects are handled one at a time, so that innocent commands do not become suspects again. After ``max_deaths`` a
    command is condemned: it is never handled again.
    """

    def __init__(
        self,
        router: MailboxRouter,
        remembered: RememberedAnswers,
        *,
        delays: Sequence[float],
        max_deaths: int = 3,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._router = router
        self._remembered = remembered
        self._delays = delays
        self._clock = clock
        self._delayed: dict[str, _Delayed] = {}
        self._max_deaths = max_deaths
        self._deaths: dict[int, Mapping[int, int]] = {}

    @property
    def delayed(self) -> int:
        """The number of delayed commands in open windows. May be read by any thread."""
        return sum(not window.closed for window in self._windows_of_delayed())

    def delayed_in(self, window: OffsetWindow) -> int:
        """Return the number of commands of one window that wait for their type to become known."""
        return sum(other is window for other in self._windows_of_delayed())

    def _windows_of_delayed(self) -> Iterator[OffsetWindow]:
        for delayed in list(self._delayed.values()):
            for one in list(delayed.waiting):
                yield one.window

    def suspect(self, queue: int, deaths: Mapping[int, int]) -> None:
        """Note how many workers died at which offset of a queue that was acquired."""
        self._deaths.pop(queue, None)
        if deaths:
            self._deaths[queue] = deaths
        for offset, count in deaths.items():
            if count >= self._max_deaths:
                logger.error("command at queue %d, offset %d ends workers; it goes to the dead letters", queue, offset)

    def _deaths_at(self, one: _Pulled) -> int:
        known = self._deaths.get(one.window.queue)
        return known.get(one.offset, 0) if known else 0

    def receive(self, window: OffsetWindow, offsets: Sequence[int], bodies: Sequence[bytes]) -> Received:
        received = Received([], [], bool(offsets) and offsets[0] < window.backlog_end)
        self._remembered.of(window)
        for offset, body in zip(offsets, bodies, strict=True):
            try:
                one = _pulled((window, offset, body, decode_command(body)))
            except EnodeError as error:
                received.finished.append(self._broken(window, offset, body, error))
                continue
            delayed = self._delayed.get(one.wire.aggregate_root_id) if self._delayed else None
            if delayed is not None:
                delayed.waiting.append(one)
            else:
                self._take(one, received)
        return received

    def retry(self) -> Received:
        """Try due delayed commands again. Return those whose type is known now, and those that fail after their last
        delay."""
        received = Received([], [], is_backlog=True)  # they may have been delayed since the takeover
        if self._delayed:
            now = self._clock()
            for id in [id for id, delayed in self._delayed.items() if delayed.due <= now]:
                self._retry(id, self._delayed.pop(id), received)
        return received

    def _retry(self, id: str, delayed: _Delayed, received: Received) -> None:
        while delayed.waiting:
            one = delayed.waiting.popleft()
            if one.window.closed:
                continue
            self._take(one, received, delayed.attempts)
            again = self._delayed.get(id)
            if again is not None:
                again.waiting.extend(delayed.waiting)
                return
            delayed.attempts = 0

    def _take(self, one: _Pulled, received: Received, attempts: int = 0) -> None:
        if self._remembered.are_any:
            receipt = self._remembered.find(one.window, (one.wire.id, one.wire.aggregate_root_id))
            if receipt is not None:
                envelope = self._envelope(one, None)
                result = conflict_with_content(envelope, receipt.content) or receipt.answer
                received.finished.append(Finished(envelope, None, result))
                return
        deaths = self._deaths_at(one) if self._deaths else 0
        if deaths >= self._max_deaths:
            error: EnodeError = CommandKilledWorker(
                f"the worker that handled {one.wire.type_name} {one.wire.id!r} died or hung, again and again"
            )
        else:
            try:
                command = restore_command(one.wire)
            except UnknownMessageType as unknown:
                if attempts < len(self._delays):
                    self._delay(one, unknown, attempts)
                    return
                error = unknown
            except EnodeError as invalid:
                error = invalid
            else:
                received.commands.append(self._envelope(one, command, suspect=deaths > 0))
                return
        logger.error("%s: %s", _place(one.window, one.offset), error, extra=ids_of(one.wire))
        received.commands.append(self._envelope(one, None, failed=error))

    def _delay(self, one: _Pulled, error: UnknownMessageType, attempts: int) -> None:
        delay = self._delays[attempts]
        place = _place(one.window, one.offset)
        logger.warning("%s: %s; trying again in %.1f s", place, error, delay, extra=ids_of(one.wire))
        self._delayed[one.wire.aggregate_root_id] = _Delayed(deque([one]), self._clock() + delay, attempts + 1)

    def _envelope(
        self, one: _Pulled, command: Command | None, failed: EnodeError | None = None, suspect: bool = False
    ) -> Envelope:
        window, offset, body, wire = one
        aggregate_root_id, reply_to = wire.aggregate_root_id, wire.reply_to
        command_mailbox, event_mailbox = self._router.mailboxes(aggregate_root_id)
        handler = crash_handler_in(reply_to) if reply_to else ""
        # Without keywords, which would more than double the time, for every command.
        return Envelope(
            wire.id,
            aggregate_root_id,
            wire.type_name,
            command,
            failed,
            wire.metadata,
            "" if handler else reply_to,
            window,
            offset,
            body,
            suspect,
            command_mailbox,
            event_mailbox,
            wire.expected_version,
            handler,
        )

    def _broken(self, window: OffsetWindow, offset: int, body: bytes, error: EnodeError) -> Finished:
        logger.error("%s: %s", _place(window, offset), error)
        id, aggregate_root_id, reply_to = _salvage(body)
        envelope = Envelope(
            id, aggregate_root_id, "", None, failed=error, reply_to=reply_to, window=window, offset=offset, body=body
        )
        return Finished(envelope, None, failed(envelope, error))


def _place(window: OffsetWindow, offset: int) -> str:
    return f"message at {window.topic}/{window.queue}, offset {offset}"


def _salvage(body: bytes) -> tuple[str, str, str]:
    """Return command id, aggregate root id and reply address, each empty if it cannot be read: a sender whose address
    can be read gets an answer. An address that is too long is left empty."""
    try:
        value = unpack(body, is_foreign=True)
    except MessageError:
        return "", "", ""
    parts = value if isinstance(value, list) and len(value) in (7, 8) else [None] * 7
    id, aggregate_root_id, reply_to = (part if isinstance(part, str) else "" for part in (parts[2], parts[3], parts[6]))
    is_somebody = len(reply_to) <= LONGEST_REPLY_ADDRESS and not crash_handler_in(reply_to)
    return id, aggregate_root_id, reply_to if is_somebody else ""
