"""A stored event stream as a message of the events topic.

``[1, aggregate root type, aggregate root id, version, command id, command type, created at, events, metadata, reply,
generation]``: the stored bytes as they are, so that every delivery says the same. The first generation is left out:
that is the form that older versions send and read.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import NamedTuple

import msgspec

from enode_django.eventstore.base import StreamRecord
from enode_django.eventstore.positions import FIRST
from enode_django.exceptions import MalformedMessage, shown
from enode_django.serialization.codec import LONGEST_REPLY_ADDRESS
from enode_django.serialization.plain import pack, unpack
from enode_django.serialization.unpacking import MOST_VALUES

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


def decode_published(body: bytes) -> PublishedStream:
    """Decode a message. Raises `MalformedMessage`, also for a refusal of more than `MOST_VALUES` values. A stream that
    may have more comes without its events and metadata."""
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
