"""What is in a stream, for its page: decoded field by field, without any class."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from enode_django.admin.values import Line, lines_of, text_of
from enode_django.exceptions import MalformedMessage
from enode_django.serialization.codec import StoredRefusal, decode_metadata, read_stored


class ShownEvent(NamedTuple):
    """``number`` is its place in the stream; ``message`` is that of a refusal."""

    number: int
    type_name: str
    schema_version: str
    lines: Sequence[Line]
    message: str | None = None


class Contents(NamedTuple):
    """``trouble`` says why the events, or the metadata, cannot be read."""

    events: Sequence[ShownEvent] = ()
    refusal: ShownEvent | None = None
    result: Sequence[Line] = ()
    metadata: Mapping[str, Any] = {}
    trouble: Sequence[str] = ()

    @property
    def metadata_lines(self) -> Sequence[Line]:
        return lines_of(self.metadata) if self.metadata else ()

    @property
    def user(self) -> str:
        return text_of(self.metadata["user"]) if "user" in self.metadata else ""


MOST_EVENTS = 200


def contents_of(events: bytes, metadata: bytes) -> Contents:
    """Of the two values of a row; never fails."""
    contents, trouble = Contents(), []
    try:
        contents = _contents(events)
    except MalformedMessage as error:
        trouble.append(f"the events cannot be read: {error}")
    try:
        contents = contents._replace(metadata=decode_metadata(metadata).as_map())
    except MalformedMessage as error:
        trouble.append(f"the metadata cannot be read: {error}")
    return contents._replace(trouble=trouble)


def _contents(events: bytes) -> Contents:
    stored = read_stored(events)
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
    return Contents(some, result=() if stored.result is None else lines_of(stored.result))


def _shown(index: int, type_name: object, schema_version: object, fields: Any) -> ShownEvent:
    return ShownEvent(index, text_of(type_name), text_of(schema_version), lines_of(fields) if fields else ())
