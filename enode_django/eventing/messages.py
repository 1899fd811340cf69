"""A stored event stream as a message of the events topic.

``[1, aggregate root type, aggregate root id, version, command id, command type, created at, events, metadata, reply,
generation]``: the stored bytes as they are, so that every delivery says the same. The generation is left out when it is
the first one, which is the form that older versions send and read.
"""

from __future__ import annotations

from typing import NamedTuple

from enode_django.eventstore.base import StreamRecord
from enode_django.eventstore.positions import FIRST
from enode_django.exceptions import MalformedMessage, shown
from enode_django.serialization.plain import pack, unpack

FORMAT = 1
_FIRST_GENERATION = FIRST.generation


class PublishedStream(NamedTuple):
    """``reply_to`` is the address of the inbox where somebody waits for the stream to be handled, or empty.
    ``generation`` is that of the store in which the stream was written, or an earlier one."""

    record: StreamRecord
    reply_to: str
    generation: int = FIRST.generation


def encode_published(record: StreamRecord, reply_to: str = "", generation: int = FIRST.generation) -> bytes:
    root_id, version, command_id, root_type, command_type, created_at, events, metadata = record
    body = (FORMAT, root_type, root_id, version, command_id, command_type, created_at, events, metadata, reply_to)
    return pack(body if generation == _FIRST_GENERATION else (*body, generation))


def decode_published(body: bytes) -> PublishedStream:
    """Raises `MalformedMessage`."""
    try:
        form, kind, id, version, command_id, command_type, created_at, events, metadata, reply_to, *rest = unpack(body)
        (generation,) = rest or (FIRST.generation,)
    except (TypeError, ValueError) as error:
        raise MalformedMessage(f"{len(body)} bytes are no event stream of ours: {error}") from error
    if form != FORMAT:
        raise MalformedMessage(f"an event stream of format {shown(form)} was published by another version")
    if type(generation) is not int:
        raise MalformedMessage(f"an event stream of generation {shown(generation)}, which is no integer")
    record = StreamRecord(id, version, command_id, kind, command_type, created_at, events, metadata)
    return PublishedStream(record, reply_to, generation)
