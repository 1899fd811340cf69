"""A stored event stream as a message of the events topic.

``[1, aggregate root type, aggregate root id, version, command id, command type, created at, events, metadata, reply,
generation]``: the stored bytes as they are, so that every delivery says the same. The first generation is left out:
nearly all messages are of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple

import msgspec

from enode_django.eventstore.base import StreamRecord, make_record
from enode_django.eventstore.positions import FIRST
from enode_django.exceptions import MalformedMessage, shown
from enode_django.serialization.codec import LONGEST_REPLY_ADDRESS
from enode_django.serialization.plain import pack, unpack, unpacker
from enode_django.serialization.unpacking import CANNOT_HARM, MOST_VALUES

FORMAT = 1
LONGEST_TEXT = 255
"""The most characters of an id or of a type's name."""
_TOO_MANY = 1 << 63
_FIRST_GENERATION = FIRST.generation
_pack: Callable[[object], bytes] = msgspec.msgpack.Encoder().encode
"""Packs texts, integers, bytes and aware datetimes to the same bytes as `pack`, but faster."""


class PublishedStream(NamedTuple):
    """A message of the events topic. ``reply_to`` is the inbox that waits for the stream to be handled, or empty.
    ``generation`` is the one of the store in which the stream was written, or an earlier one. ``record.events`` is
    empty if the message is so large that the stream must be read from the store."""

    record: StreamRecord
    reply_to: str
    generation: int = FIRST.generation


def encode_published(record: StreamRecord, reply_to: str = "", generation: int = FIRST.generation) -> bytes:
    root_id, version, command_id, root_type, command_type, created_at, events, metadata = record
    body: tuple[object, ...] = (
        FORMAT,
        root_type,
        root_id,
        version,
        command_id,
        command_type,
        created_at,
        events,
        metadata,
        reply_to,
    )
    if generation != _FIRST_GENERATION:
        body = (*body, generation)
    try:
        return _pack(body) if type(created_at) is datetime and created_at.tzinfo is not None else pack(body)
    except (TypeError, ValueError, OverflowError):
        return pack(body)  # which says what is wrong


_Text = Annotated[str, msgspec.Meta(max_length=LONGEST_TEXT)]


class _Usual(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """A message whose values `msgspec` checks, except the time, for which it would take a text, too."""

    form: Literal[1]
    kind: _Text
    id: _Text
    version: Annotated[int, msgspec.Meta(ge=1, le=_TOO_MANY - 1)] | None
    command_id: _Text
    command_type: _Text
    created_at: object
    events: bytes
    metadata: bytes
    reply_to: Annotated[str, msgspec.Meta(max_length=LONGEST_REPLY_ADDRESS)]
    generation: int = _FIRST_GENERATION


_unpack_usual = unpacker(_Usual)
_published: Callable[[Iterable[Any]], PublishedStream] = partial(tuple.__new__, PublishedStream)


def decode_published(body: bytes) -> PublishedStream:
    """Decode a message. Raises `MalformedMessage`, also for a refusal of more than `MOST_VALUES` values. A stream that
    may have more comes without its events and metadata."""
    if len(body) > CANNOT_HARM:
        return _decode_slowly(body)
    try:
        one = _unpack_usual(body)
    except Exception:
        return _decode_slowly(body)  # which says what is wrong
    id, command_id, kind, command_type, at = one.id, one.command_id, one.kind, one.command_type, one.created_at
    if "\0" in id or "\0" in command_id or "\0" in kind or "\0" in command_type or type(at) is not datetime:
        return _decode_slowly(body)
    record = make_record((id, one.version, command_id, kind, command_type, at, one.events, one.metadata))
    return _published((record, one.reply_to, one.generation))


def _decode_slowly(body: bytes) -> PublishedStream:
    """Decode any message, like `decode_published`."""
    try:
        form, kind, id, version, command_id, command_type, created_at, events, metadata, reply_to, *rest = unpack(
            body, is_foreign=True
        )
        (generation,) = rest or (FIRST.generation,)
    except (TypeError, ValueError) as error:
        raise MalformedMessage(f"{len(body)} bytes are not an event stream of ours: {error}") from error
    if form != FORMAT:
        raise MalformedMessage(f"an event stream of format {shown(form)} was published by another version")
    if type(generation) is not int:
        raise MalformedMessage(f"an event stream of generation {shown(generation)}, which is not an integer")
    # A subscriber uses these as keys and as query parameters: wrong values must not get there.
    if not (
        type(id) is type(command_id) is type(kind) is type(command_type) is type(reply_to) is str
        and type(events) is type(metadata) is bytes
        and type(created_at) is datetime
        and (version is None or (type(version) is int and 0 < version < _TOO_MANY))
        and max(len(id), len(command_id), len(kind), len(command_type)) <= LONGEST_TEXT
        and len(reply_to) <= LONGEST_REPLY_ADDRESS
        and not ("\0" in id or "\0" in command_id or "\0" in kind or "\0" in command_type)
    ):
        raise MalformedMessage(f"an event stream has other values than ours, for {shown(id)}")
    if len(events) + len(metadata) > MOST_VALUES:  # each value takes a byte at least
        if version is None:
            unpack(events[1:], is_foreign=True)
            unpack(metadata, is_foreign=True)
        else:
            events = metadata = b""
    record = StreamRecord(id, version, command_id, kind, command_type, created_at, events, metadata)
    return PublishedStream(record, reply_to, generation)
