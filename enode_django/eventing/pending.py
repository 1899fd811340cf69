"""The work of a subscriber, aggregate by aggregate, and its progress."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from msgspec import Struct, field

from enode_django.bus.interception import intercepted
from enode_django.domain.messages import DomainEvent, EventStamp
from enode_django.domain.refusals import DomainException, stamp_refusal
from enode_django.equeue.offsets import OffsetWindow
from enode_django.eventing.subscribers import Handler, Subscriber, event_handlers_of, key_of, refusal_handlers_of
from enode_django.eventstore.base import EventStore, StreamRecord
from enode_django.eventstore.fetched import EVENTS, Row, TimeOf, itself
from enode_django.eventstore.positions import END, FIRST
from enode_django.exceptions import EnodeError, InvalidField, MalformedMessage, MessageError, UnknownMessageType, shown
from enode_django.repository.loading import StoredStamp
from enode_django.serialization.codec import (
    Restore,
    StoredRefusal,
    StoredStream,
    decode_refusal,
    read_stored,
    restorer_of,
    stored_events,
    unreadable,
)
from enode_django.serialization.crashes import CommandCrashed
from enode_django.serialization.registry import types

STORED = END.generation
"""Stands for the generation of a stream that was just read from the store: later than every other generation."""


class Message(NamedTuple):
    """A pulled message: where it is marked as finished, and whom to notify (empty: nobody)."""

    window: OffsetWindow
    offset: int
    aggregate_root_id: str
    version: int | None
    command_id: str
    reply_to: str

    def is_done(self, progress: Progress) -> bool:
        return self.is_handled(progress) or (self.version is None and progress.failure is None)

    def is_handled(self, progress: Progress) -> bool:
        return self.version is not None and self.version <= progress.version


class PendingAggregate(Struct):
    """One aggregate's share of a batch: versions up to ``until``, some of whose streams are at hand, and refusals by
    command id. All ``streams`` were written in one ``generation`` of the store. ``failures`` counts the tries that
    failed at the same place since ``failing_since``, a time of the clock as ``next_try`` is. A work that
    ``waits_for_others`` is tried again sooner when others have moved on. A ``suspect`` is handled alone, since a worker
    died at the aggregate; ``deaths`` counts the workers that died at what is handled next."""

    aggregate_root_id: str
    aggregate_root_type: str
    until: int = 0
    streams: dict[int, StreamRecord] = field(default_factory=dict)
    generation: int = FIRST.generation
    refusals: dict[str, StreamRecord] = field(default_factory=dict)
    messages: list[Message] = field(default_factory=list)
    failure: Failure | None = None
    failures: int = 0
    failing_since: float = 0.0
    next_try: float = 0.0
    waits_for_others: bool = False
    suspect: bool = False
    deaths: int = 0

    @property
    def is_given_away(self) -> bool:
        """True if its queue went to another worker, and its messages with it."""
        return bool(self.messages) and all(message.window.closed for message in self.messages)

    def add(self, record: StreamRecord, generation: int = STORED) -> None:
        """Add a stream or refusal that was written in this generation of the store. Only the version counts if the
        stream is of an older generation than others, or has come without its events."""
        if record.version is None:
            self.refusals[record.command_id] = record
            return
        if generation > self.generation:
            self.raise_to(generation)
        if generation == self.generation and record.events:
            self.streams[record.version] = record
        self.until = max(self.until, record.version)

    def raise_to(self, generation: int) -> None:
        """Forget the streams that were written before this generation: a failover may have erased some of them."""
        self.generation = generation
        self.streams = {}

    def merge(self, other: PendingAggregate) -> None:
        self.until = max(self.until, other.until)
        if other.generation > self.generation and other.streams:
            self.raise_to(other.generation)
        if other.generation == self.generation:
            self.streams.update(other.streams)
        self.refusals.update(other.refusals)
        self.messages.extend(other.messages)
        self.suspect = self.suspect or other.suspect
        self.deaths = max(self.deaths, other.deaths)


class Failure(NamedTuple):
    """A stream that could not be handled; a refusal if ``version`` is None."""

    version: int | None
    command_id: str
    error: BaseException
    failed_at: datetime

    def is_same(self, other: Failure) -> bool:
        return (self.version, self.command_id) == (other.version, other.command_id)

    def to_be_kept(self) -> Failure:
        """Return the failure with only the text of its error: its frames would keep the whole batch in memory."""
        return self._replace(error=Exception(self.text))

    @property
    def is_of_unknown_type(self) -> bool:
        """True if this process does not know the type of an event or refusal, or its version."""
        return isinstance(self.error, UnknownMessageType)

    @property
    def place(self) -> str:
        return f"version {self.version}" if self.version is not None else f"the refusal of {self.command_id}"

    @property
    def text(self) -> str:
        return f"{type(self.error).__name__}: {shown(self.error)}"

    @property
    def traceback(self) -> str:
        """The traceback as a text that a database accepts."""
        text = "".join(traceback.format_exception(self.error))
        return text.replace("\0", "\\0").encode(errors="replace").decode()


class Progress(NamedTuple):
    """The progress in an aggregate, up to ``version``: there a ``failure`` stops it, or it is ``parked`` by that
    error."""

    version: int
    failure: Failure | None = None
    parked: str | None = None

    @property
    def skips_ahead(self) -> bool:
        """True if versions before the failure were not handled either, because they were rolled back with it."""
        return self.failure is not None and (self.failure.version or 0) > self.version + 1


def fit_portion(works: Iterable[PendingAggregate], positions: Mapping[str, int], portion: int, at_once: int) -> int:
    """Return the portion, halved until all works have at most ``at_once`` versions to handle, at hand or not."""
    counts = [work.until - positions[work.aggregate_root_id] for work in works]
    while portion > 1 and sum(min(count, portion) for count in counts if count > 0) > at_once:
        portion //= 2
    return portion


def next_streams(
    store: EventStore,
    works: Iterable[PendingAggregate],
    positions: Mapping[str, int],
    portion: int,
    check: Callable[[Iterable[str]], object] | None = None,
) -> dict[str, Sequence[StreamRecord]]:
    """Return the next streams of each aggregate after its position, at most ``portion``, without a gap. Missing streams
    are read from the store, in one query for all; ``check`` is called then with the aggregates. Blocks on the store."""
    found: dict[str, Sequence[StreamRecord]] = {}
    gaps: dict[str, tuple[int, int]] = {}
    for work in works:
        position = positions[work.aggregate_root_id]
        until = min(work.until, position + portion)
        streams = work.streams
        try:
            found[work.aggregate_root_id] = [streams[version] for version in range(position + 1, until + 1)]
        except KeyError:
            gaps[work.aggregate_root_id] = (position, until)
    if gaps:
        loaded = store.load_ranges(gaps, limit=portion)
        if check is not None:
            check(gaps)
        for id, (after, _) in gaps.items():
            found[id] = list(_joining(after, loaded.get(id, ())))
    return found


def _joining(after: int, records: Iterable[StreamRecord]) -> Iterable[StreamRecord]:
    for expected, record in enumerate(records, after + 1):
        if record.version != expected:
            return
        yield record


HandledEvent = tuple[DomainEvent | DomainException, Sequence[Handler]]


class HandledEvents:
    """Finds the events that a subscriber handles. The handlers of a type are looked up once, and do not change with
    later registrations, so an instance is for one batch. Used by one thread."""

    def __init__(self, subscriber: Subscriber) -> None:
        self._subscriber = subscriber
        self._known: dict[tuple[str, int], tuple[Restore | None, Sequence[Handler]]] = {}

    def of(self, stream: Row, time_of: TimeOf = itself) -> list[HandledEvent]:
        """Return the handled events of a stored stream, each with its handlers. Other events are not decoded.
        ``time_of`` reads the time of the stream if a handler asks for it.

        Raises `UnknownMessageType` and `MalformedMessage`.
        """
        followed: list[HandledEvent] = []
        stamp: EventStamp | None = None
        known = self._known
        for index, stored_event in enumerate(stored_events(stream[EVENTS])):
            try:
                name, schema_version, fields = stored_event
                restore, handlers = known.get((name, schema_version)) or self._look_up(name, schema_version)
                if restore is not None:
                    if stamp is None:
                        stamp = StoredStamp(stream, time_of)
                    followed.append((restore(fields, stamp, index), handlers))
            except InvalidField as error:
                raise unreadable(stored_event, error, stamp) from error
            except EnodeError:
                raise
            except Exception as error:  # upcasters and fields are application code
                raise MalformedMessage(f"an event cannot be made of {shown(stored_event)}: {error}") from error
        return followed

    def _look_up(self, name: str, schema_version: int) -> tuple[Restore | None, Sequence[Handler]]:
        handlers = intercepted(self._subscriber, event_handlers_of(self._subscriber, name))
        found = (restorer_of(name, schema_version) if handlers else None, handlers)
        self._known[name, schema_version] = found
        return found


def handled_by(subscriber: Subscriber, record: StreamRecord) -> Sequence[HandledEvent]:
    """Return the handled events of a stored stream, or the stored refusal if it is handled. Raises as
    `HandledEvents.of` does."""
    if record.version is not None:
        return HandledEvents(subscriber).of(record)
    refused = followed_refusal(subscriber, record)
    return [] if refused is None else [refused]


def follows_events(subscriber: Subscriber, record: StreamRecord) -> bool:
    """Return True if the subscriber handles one of the events, or may: its class may be newer than this process."""
    try:
        stored = read_stored(record.events)
        return not isinstance(stored, StoredRefusal) and any(
            event_handlers_of(subscriber, event.type_name) for event in stored.events
        )
    except MessageError:
        return True


def follows_refusal(subscriber: Subscriber, record: StreamRecord) -> bool:
    """Return True if the subscriber handles the refusal, or may: its class may be newer than this process."""
    try:
        stored = read_stored(record.events)
        return isinstance(stored, StoredRefusal) and bool(_handlers_of(subscriber, stored))
    except MessageError:
        return True


def is_own_crash(subscriber: Subscriber, stored: StoredStream | StoredRefusal) -> bool:
    """Return True for the crash of a command that the subscriber has sent."""
    return (
        isinstance(stored, StoredRefusal)
        and isinstance(stored.fields, dict)
        and stored.fields.get("sender") == key_of(subscriber)
        and stored.type_name == types.name_of(CommandCrashed)
    )


def _handlers_of(subscriber: Subscriber, refusal: StoredRefusal) -> Sequence[Handler]:
    """Return the handlers of a stored refusal; none if it is not handled. Raises `UnknownMessageType` as
    `refusal_handlers_of` does, and for a crash that only code newer or older than this process handles: it comes to
    nobody else, and its command is no dead letter."""
    handlers = refusal_handlers_of(subscriber, refusal.type_name)
    if not handlers and is_own_crash(subscriber, refusal):
        command, error = refusal.fields.get("command_type"), refusal.fields.get("error_type")
        raise UnknownMessageType(
            f"{subscriber.name} does not handle the crash of {command} by {error}, but has sent it with a handler; "
            "deploy the code that has it, or skip the crash"
        )
    return handlers


def followed_refusal(subscriber: Subscriber, record: StreamRecord) -> HandledEvent | None:
    """Return a stored refusal with its handlers. Return None if the subscriber does not handle it, or if it is the
    crash of a command that another subscriber has sent. Raises as `HandledEvents.of` does."""
    stored = read_stored(record.events)
    if not isinstance(stored, StoredRefusal):
        return None
    handlers = _handlers_of(subscriber, stored)
    if not handlers:
        return None
    refusal = decode_refusal(stored)
    if isinstance(refusal, CommandCrashed) and refusal.sender != key_of(subscriber):
        return None
    stamp_refusal(refusal, StoredStamp(record))
    return refusal, intercepted(subscriber, handlers)
