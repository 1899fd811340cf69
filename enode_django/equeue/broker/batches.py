"""Batches, the stored unit: a header written by the broker and a body encoded by the producer. No I/O.

::

    magic "EQB1" | CRC-32 of the rest of the header | format version, lengths, place, time, sender … | topic | body | 0…

All numbers are little-endian. A batch begins at a multiple of eight and is padded with zeros to the next one; eight
zeros at the start of a batch mark the end of the log. A header holds its own position in the log, so that bytes that
only look like a header (in a body, or left over) are not taken for one.

Batches that were sent together are ``parts`` of one send and follow each other: all of them count, or none.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from typing import NamedTuple

from enode_django.equeue.records import Buffer

MAGIC = b"EQB1"
ALIGNMENT = 8
FORMAT = 1
CONTROL_TOPIC = "/control"
"""Not a valid name of a topic. Its batches hold one sealed control record each and are in no queue."""

_PREFIX = struct.Struct("<4sI")
_FIELDS = struct.Struct("<HHHHIIIIQQQQ16sQ")
_FIXED = _PREFIX.size + _FIELDS.size
MAX_TOPIC = 255
MAX_HEADER = _FIXED + MAX_TOPIC
NO_PRODUCER = bytes(16)


@dataclass(frozen=True, slots=True)
class NewBatch:
    """A batch to be stored. ``body``: ``count`` records as `records.encode_records` encodes them."""

    queue: int
    count: int
    body: Buffer


@dataclass(frozen=True, slots=True)
class StoredBatch:
    """A batch that was read. ``time``: when the broker stored it, in seconds since 1970. ``body`` is not decoded."""

    first_offset: int
    count: int
    time: float
    body: Buffer


class Header(NamedTuple):
    """The header of a batch. ``position``: of its first byte in the log. ``flushed``: up to where the log was known to
    be safe on the disk when the header was written. ``time``: in milliseconds since 1970. ``producer``: 16 bytes."""

    topic: str
    queue: int
    first_offset: int
    messages: int
    position: int
    body_length: int
    time: int
    flushed: int
    producer: bytes = NO_PRODUCER
    sequence: int = 0
    part: int = 0
    parts: int = 1

    @property
    def body_position(self) -> int:
        return self.position + _FIXED + len(self.topic.encode())

    @property
    def end(self) -> int:
        """The position of the next batch."""
        return self.position + batch_length(self.topic, self.body_length)


def batch_length(topic: str, body_length: int) -> int:
    """Return the bytes that a batch takes in the log, with its padding."""
    return -(-(_FIXED + len(topic.encode()) + body_length) // ALIGNMENT) * ALIGNMENT


def encode_header(header: Header) -> bytes:
    topic = header.topic.encode()
    fields = _FIELDS.pack(
        FORMAT,
        len(topic),
        header.part,
        header.parts,
        batch_length(header.topic, header.body_length),
        header.body_length,
        header.queue,
        header.messages,
        header.position,
        header.flushed,
        header.first_offset,
        header.time,
        header.producer,
        header.sequence,
    )
    return _PREFIX.pack(MAGIC, zlib.crc32(topic, zlib.crc32(fields))) + fields + topic


def decode_header(data: Buffer, position: int) -> Header | None:
    """Return the header at the start of ``data``; None if it is not whole or was not written at ``position``."""
    if len(data) < _FIXED:
        return None
    magic, check = _PREFIX.unpack_from(data)
    if magic != MAGIC:
        return None
    (
        version, topic_length, part, parts, length, body_length, queue, count, at, flushed, first, time, producer,
        sequence,
    ) = _FIELDS.unpack_from(data, _PREFIX.size)  # fmt: skip
    content = memoryview(data)[_PREFIX.size : _FIXED + topic_length]
    if (
        zlib.crc32(content) != check
        or at != position
        or version != FORMAT
        or len(content) < _FIELDS.size + topic_length
    ):
        return None
    try:
        topic = str(content[_FIELDS.size :], "utf-8")
    except UnicodeDecodeError:
        return None
    header = Header(topic, queue, first, count, at, body_length, time, flushed, producer, sequence, part, parts)
    return header if header.end == position + length and part < parts else None
