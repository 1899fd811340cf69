"""Correct stored events: show a stream as JSON, check the corrected events, and store them.

The stored row stays as it is. From then on the stream is read with the events of its correction, as if this one row had
an upcaster. A correction names its author and reason. It can be taken back, or corrected itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from enode_django.conf import conf
from enode_django.domain.declarations import plain_of
from enode_django.domain.messages import DomainEvent
from enode_django.eventstore.base import Correction, EventStore, StreamRecord
from enode_django.eventstore.correcting import check_newest
from enode_django.exceptions import (
    AggregateNotFound,
    CorrectionRefused,
    EnodeError,
    InvalidFields,
    MalformedMessage,
    UnknownMessageType,
    shown,
)
from enode_django.operating.actions import LONGEST_REASON
from enode_django.repository.loading import replay_records
from enode_django.runtime import make_snapshots, make_states
from enode_django.serialization.codec import (
    StoredEvent,
    StoredStream,
    encode_stream,
    read_stored,
    restore_event,
)
from enode_django.serialization.json_text import json_value
from enode_django.serialization.json_values import json_fields
from enode_django.serialization.registry import types
from enode_django.serialization.strict_json import strict_json

KEYS = frozenset({"type", "schema_version", "fields"})
"""The keys of an event's JSON object."""
LONGEST_NAME = 255
"""Characters of an author's name."""


class Editable(NamedTuple):
    """A stream to be corrected. ``events`` are JSON objects with the keys ``type``, ``schema_version`` and ``fields``,
    of the newest schema version if their class can read them. ``last`` is the number of the newest correction, 0 if
    there is none. ``is_corrected``: ``events`` are that correction's."""

    aggregate_root_id: str
    version: int
    last: int
    is_corrected: bool
    events: Sequence[dict[str, Any]]


def editable(store: EventStore, aggregate_root_id: str, version: int) -> Editable:
    """Return the stream as it is read now. Raises `AggregateNotFound` without such a version, `MalformedMessage`,
    `StoreUnavailable`."""
    made = corrections_of(store, aggregate_root_id, version)
    record = _record(store, aggregate_root_id, version)
    events = list(map(_event_json, _stream(record.events).events))
    last = made[-1] if made else None
    is_corrected = last is not None and last.events is not None
    return Editable(aggregate_root_id, version, last.number if last else 0, is_corrected, events)


def corrections_of(store: EventStore, aggregate_root_id: str, version: int) -> Sequence[Correction]:
    """Return the corrections of one stream, by number."""
    return [one for one in store.corrections(aggregate_root_id) if one.version == version]


def correct(
    store: EventStore, aggregate_root_id: str, version: int, events: Any, *, by: str, reason: str, last: int
) -> Correction:
    """Store a correction: from now on the stream is read with these events, given as in `Editable`. ``by`` names the
    author, ``last`` the newest correction that they have seen.

    Deletes snapshots and shared states that contain the stream. Workers use the corrected history within a second.
    Raises `InvalidFields` for fields that an event's class does not accept, `CorrectionRefused` for other wrong events
    or arguments, `CorrectionOutdated` if the stream was corrected meanwhile, `MalformedMessage` if it cannot be read,
    `AggregateNotFound`, and `StoreUnavailable`.
    """
    record = check(store, aggregate_root_id, version, events, last)
    _check_person(by, reason)
    made = store.correct(aggregate_root_id, version, record.events, by=by, reason=reason.strip(), last=last)
    _discard_states(store, aggregate_root_id, version)
    return made


def check(store: EventStore, aggregate_root_id: str, version: int, events: Any, last: int) -> StreamRecord:
    """Return the stream as it would be read with these events. Raises as `correct`."""
    record = _record(store, aggregate_root_id, version)
    _check_newest(corrections_of(store, aggregate_root_id, version), record, last)
    corrected = record._replace(events=encoded(record.events, events))
    if corrected == record:
        raise CorrectionRefused(
            f"nothing is corrected: version {version} of {aggregate_root_id!r} has these events already; change a field"
        )
    _check_replay(store, corrected)
    return corrected


def take_back(
    store: EventStore, aggregate_root_id: str, version: int, *, by: str, reason: str, last: int
) -> Correction:
    """Store that the original events of a corrected stream count again. Raises as `correct`."""
    check_taking_back(store, aggregate_root_id, version, last)
    _check_person(by, reason)
    taken = store.correct(aggregate_root_id, version, None, by=by, reason=reason.strip(), last=last)
    _discard_states(store, aggregate_root_id, version)
    return taken


def check_taking_back(store: EventStore, aggregate_root_id: str, version: int, last: int) -> None:
    """Raise as `take_back` would, and change nothing."""
    record = _record(store, aggregate_root_id, version)
    made = corrections_of(store, aggregate_root_id, version)
    _check_newest(made, record, last)
    if not made or made[-1].events is None:
        raise CorrectionRefused(f"version {version} of {aggregate_root_id!r} has no correction that counts")
    original = store.original(aggregate_root_id, version)
    assert original is not None
    _check_replay(store, original)


def _check_newest(made: Sequence[Correction], record: StreamRecord, last: int) -> None:
    """Raise `CorrectionOutdated` if there is a newer correction. Called first: other complaints would be about outdated
    events."""
    check_newest(record.aggregate_root_id, record.version or 0, made[-1].number if made else 0, last)


def _check_person(by: str, reason: str) -> None:
    if not reason.strip() or len(reason) > LONGEST_REASON or "\0" in reason:
        raise CorrectionRefused(f"a correction needs a reason of 1 to {LONGEST_REASON} characters, got {shown(reason)}")
    if not by.strip() or len(by) > LONGEST_NAME or "\0" in by:
        raise CorrectionRefused(f"say who corrects, in 1 to {LONGEST_NAME} characters, got {shown(by)}")


def _check_replay(store: EventStore, corrected: StreamRecord) -> None:
    """Raise `CorrectionRefused` if the aggregate can be loaded now, and could not be loaded with this stream."""
    id, version = corrected.aggregate_root_id, corrected.version or 0
    trouble = _replay_trouble(_with(store.load(id), corrected))
    if trouble and not _replay_trouble(store.load(id)):
        raise CorrectionRefused(f"{id!r} could not be loaded any more with version {version} corrected: {trouble}")


def _with(records: Iterable[StreamRecord], corrected: StreamRecord) -> Iterator[StreamRecord]:
    return (corrected if record.version == corrected.version else record for record in records)


def _replay_trouble(records: Iterable[StreamRecord]) -> str:
    """Return the error of replaying these streams, empty without one. A type that this process does not know is not an
    error, since other processes may know it. Raises errors that are retriable."""
    try:
        replay_records(iter(records))
    except UnknownMessageType:
        return ""
    except EnodeError as error:
        if error.retriable:
            raise
        return str(error)
    return ""


def _discard_states(store: EventStore, aggregate_root_id: str, version: int) -> None:
    """Delete snapshots and shared states that contain the stream. If a process makes another one of the original
    meanwhile, it is not used: it is older than the newest correction."""
    snapshots = make_snapshots(store)
    if snapshots is not None:
        snapshots.discard_from(aggregate_root_id, version)
    states = make_states()
    if states is not None:
        states.delete(aggregate_root_id)
        states.close()


def _record(store: EventStore, aggregate_root_id: str, version: int) -> StreamRecord:
    found = store.load_ranges({aggregate_root_id: (version - 1, version)}).get(aggregate_root_id, ())
    if not found:
        raise AggregateNotFound(f"{aggregate_root_id!r} has no version {shown(version)}; check both")
    return found[0]


def _stream(events: bytes) -> StoredStream:
    stored = read_stored(events)
    if not isinstance(stored, StoredStream):
        raise MalformedMessage("a stored refusal has no events that could be corrected")
    return stored


# -- JSON -----------------------------------------------------------------------------------------------------------


def _event_json(stored: StoredEvent) -> dict[str, Any]:
    """Return the event as its class has it now, or as it is stored if the class cannot read it."""
    try:
        event = restore_event(stored)
        name, version, fields = types.name_of(type(event)), event.schema_version, plain_of(event)
    except EnodeError:
        name, version, fields = stored.type_name, stored.schema_version, stored.fields
    return {"type": name, "schema_version": version, "fields": json_value(fields)}


def encoded(stored: bytes, events: Any) -> bytes:
    """Return the stored bytes of a stream with these events instead of its own; its result stays. Raises as
    `correct`."""
    stream = _stream(stored)
    count = len(stream.events)
    if type(events) is not list or len(events) != count:
        raise CorrectionRefused(
            f"give a JSON array with the events of the stream, {count} of them; got {shown(events)}"
        )
    made = [_corrected(number, *pair) for number, pair in enumerate(zip(stream.events, events, strict=True))]
    encoded = encode_stream(made, stream.result, stream.sent)
    if len(encoded) > conf().COMMANDS.EVENTS_MAX_BYTES:
        raise CorrectionRefused(
            f"the corrected events take {len(encoded)} bytes; EVENTS_MAX_BYTES is {conf().COMMANDS.EVENTS_MAX_BYTES}"
        )
    return encoded


def _corrected(number: int, stored: StoredEvent, given: Any) -> DomainEvent:
    cls = _class_of(number, stored.type_name)
    if type(given) is not dict or given.keys() != KEYS:
        raise CorrectionRefused(f"event {number} must be an object with {', '.join(sorted(KEYS))}; got {shown(given)}")
    if type(given["type"]) is not str or _class_of(number, given["type"]) is not cls:
        raise CorrectionRefused(
            f"event {number} is a {stored.type_name}, and stays one; its correction has type {shown(given['type'])}"
        )
    version = given["schema_version"]
    if type(version) is not int or version != cls.schema_version:
        raise CorrectionRefused(
            f"event {number} must have schema version {cls.schema_version}, which {stored.type_name} has now; got "
            f"{shown(version)}: write the fields of that version"
        )
    try:
        return cls(**json_fields(cls).read(given["fields"], (number, "fields")))
    except InvalidFields:
        raise
    except ValueError as error:  # another InvalidField, or one of the class's own __post_init__
        raise InvalidFields({(number, "fields"): str(error)}) from error


def _class_of(number: int, name: str) -> type[DomainEvent]:
    try:
        return types.class_of(DomainEvent, name)
    except UnknownMessageType as error:
        raise CorrectionRefused(f"event {number} cannot be checked here: {error}") from error


def json_of(text: str | bytes) -> Any:
    """Parse a JSON text. Raises `CorrectionRefused` if it is malformed, or has a key twice, NaN or an infinity."""
    try:
        return strict_json(text)
    except (ValueError, RecursionError) as error:
        raise CorrectionRefused(f"this is not JSON: {error}") from error
