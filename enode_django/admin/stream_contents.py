"""The content of a stream for its page, decoded field by field, without the classes of events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from enode_django.admin.values import Line, lines_of, text_of
from enode_django.eventstore.base import Correction
from enode_django.eventstore.postgres import PostgresEventStore
from enode_django.exceptions import MalformedMessage, MessageError
from enode_django.models import EventStream
from enode_django.serialization.codec import StoredEvent, StoredRefusal, StoredStream, decode_metadata, read_stored
from enode_django.serialization.json_text import sent_contents


class ShownEvent(NamedTuple):
    """An event or a refusal. ``number`` is the index in the stream. Only a refusal has a ``message``."""

    number: int
    type_name: str
    schema_version: str
    lines: Sequence[Line]
    message: str | None = None


class Contents(NamedTuple):
    """The content of a stream. ``trouble`` says why the events, or the metadata, cannot be read."""

    events: Sequence[ShownEvent] = ()
    refusal: ShownEvent | None = None
    result: Sequence[Line] = ()
    sent: Sequence[Line] = ()
    metadata: Mapping[str, Any] = {}
    trouble: Sequence[str] = ()

    @property
    def metadata_lines(self) -> Sequence[Line]:
        return lines_of(self.metadata) if self.metadata else ()


class Summary(NamedTuple):
    """A short description of a row in a list."""

    events: Sequence[str] = ()
    user: str = ""
    trouble: Sequence[str] = ()


class ShownCorrection(NamedTuple):
    """``contents`` is None for a correction that takes back those before."""

    correction: Correction
    contents: Contents | None

    @classmethod
    def of(cls, correction: Correction) -> ShownCorrection:
        events = correction.events
        return cls(correction, None if events is None else contents_of(events, b""))


def corrections_of(alias: str, stream: EventStream) -> Sequence[Correction]:
    """Return the corrections of a stream in this database, by number. Blocks."""
    if stream.version is None:
        return ()
    made = PostgresEventStore(alias).corrections(stream.aggregate_root_id)
    return [one for one in made if one.version == stream.version]


MOST_EVENTS = 200
MOST_NAMES = 10


def contents_of(events: bytes, metadata: bytes) -> Contents:
    """Return the decoded content of a row. Does not raise for bytes that cannot be decoded: see ``trouble``."""
    stored, about, trouble = _read(events, metadata)
    return (Contents() if stored is None else _contents(stored))._replace(metadata=about, trouble=trouble)


def summary_of(events: bytes, metadata: bytes) -> Summary:
    """Return a short description of a row. Does not raise for bytes that cannot be decoded: see ``trouble``."""
    stored, about, trouble = _read(events, metadata)
    some: Sequence[StoredEvent | StoredRefusal] = ()
    if stored is not None:
        some = stored.events if isinstance(stored, StoredStream) else [stored]
    names = [text_of(one.type_name) for one in some[:MOST_NAMES]]
    if len(some) > MOST_NAMES:
        names.append(f"… and {len(some) - MOST_NAMES:,} more")
    return Summary(names, text_of(about.get("user", "")), trouble)


def summary_of_row(row: Any) -> Summary | None:
    """Return the summary of a row that was read by `with_small_events`; None for another row."""
    if not hasattr(row, "small_events"):
        return None
    if row.small_events is None:
        return Summary(["many bytes of events: see the stream"])
    return summary_of(bytes(row.small_events), bytes(row.metadata))


def _read(events: bytes, metadata: bytes) -> tuple[StoredStream | StoredRefusal | None, Mapping[str, Any], list[str]]:
    stored: StoredStream | StoredRefusal | None = None
    about: Mapping[str, Any] = {}
    trouble = []
    try:
        stored = read_stored(events)
    except MalformedMessage as error:
        trouble.append(f"the events cannot be read: {error}")
    try:
        about = decode_metadata(metadata).as_map()
    except MalformedMessage as error:
        trouble.append(f"the metadata cannot be read: {error}")
    return stored, about, trouble


def _contents(stored: StoredStream | StoredRefusal) -> Contents:
    if isinstance(stored, StoredRefusal):
        shown = _shown(0, stored.type_name, stored.schema_version, stored.fields)
        return Contents(refusal=shown._replace(message=text_of(stored.message)))
    some = [
        _shown(index, one.type_name, one.schema_version, one.fields)
        for index, one in enumerate(stored.events[:MOST_EVENTS])
    ]
    if len(stored.events) > MOST_EVENTS:
        rest = len(stored.events) - MOST_EVENTS
        some.append(ShownEvent(MOST_EVENTS, f"… and {rest:,} more events", "", ()))
    return Contents(some, result=() if stored.result is None else lines_of(stored.result), sent=_sent(stored))


def _sent(stored: StoredStream) -> Sequence[Line]:
    if not stored.sent:
        return ()
    try:
        return lines_of(sent_contents(stored))
    except MessageError as error:
        return lines_of(str(error))


def _shown(index: int, type_name: object, schema_version: object, fields: Any) -> ShownEvent:
    return ShownEvent(index, text_of(type_name), text_of(schema_version), lines_of(fields) if fields else ())
