"""Batches, the stored unit: a header written by the broker and a body encoded by the producer; and the bytes of a send
in the log. No I/O.

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
from collections.abc import Callable, Sequence
from typing import NamedTuple

from enode_django.equeue.records import Buffer, checked_count, seal
from enode_django.exceptions import MalformedRecords, QueueError

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
_MOST_PARTS = 0xFFFF


class NewBatch(NamedTuple):
    """A batch to be stored. ``body``: its ``messages`` as `records.encode_records` encodes them."""

    queue: int
    messages: int
    body: bytes


class StoredBatch(NamedTuple):
    """A batch that was read, as a pull returns it. ``body`` is not decoded."""

    first_offset: int
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


class Layout(NamedTuple):
    """The parts to be written, in order. The ``end`` of the last header will be the end of the log."""

    headers: Sequence[Header]
    bodies: Sequence[bytes]

    @property
    def length(self) -> int:
        return self.headers[-1].end - self.headers[0].position

    def buffers(self) -> list[bytes]:
        found: list[bytes] = []
        for header, body in zip(self.headers, self.bodies, strict=True):
            found += encode_header(header), body, bytes(header.end - header.body_position - len(body))
        return found


class Stamp(NamedTuple):
    """The log's end when a send comes, the end of what is safe, and the time in milliseconds since 1970."""

    position: int
    flushed: int
    time: int


def lay_out(
    topic: str,
    batches: Sequence[NewBatch],
    end_of: Callable[[int], int],
    stamp: Stamp,
    producer: bytes = NO_PRODUCER,
    sequence: int = 0,
) -> Layout:
    """Return the parts of a send. ``end_of`` returns the offset that the next message of a queue gets; several batches
    for one queue follow each other.

    Raises `MalformedRecords` for a body that no consumer could decode or that has another number of records than was
    said, and `QueueError` for too many batches or a producer that has not 16 bytes.
    """
    if len(batches) > _MOST_PARTS or len(producer) != len(NO_PRODUCER):
        raise QueueError(f"a send has at most {_MOST_PARTS} batches and a producer of 16 bytes; got {producer[:20]!r}")
    headers: list[Header] = []
    ends: dict[int, int] = {}
    position = stamp.position
    for part, (queue, count, body) in enumerate(batches):
        _check(queue, count, body)
        first = ends[queue] if queue in ends else end_of(queue)
        ends[queue] = first + count
        place = (topic, queue, first, count, position, len(body), stamp.time, stamp.flushed)
        headers.append(Header(*place, producer, sequence, part, len(batches)))
        position += batch_length(topic, len(body))
    return Layout(headers, [batch.body for batch in batches])


def lay_out_control(record: bytes, stamp: Stamp) -> Layout:
    body = seal(record)
    return Layout([Header(CONTROL_TOPIC, 0, 0, 1, stamp.position, len(body), stamp.time, stamp.flushed)], [body])


def _check(queue: int, count: int, body: bytes) -> None:
    try:
        found = checked_count(body)
    except MalformedRecords as error:
        raise MalformedRecords(f"the body for queue {queue!r} cannot be stored: {error}") from error
    if found != count:
        raise MalformedRecords(f"the body for queue {queue!r} does not hold {count!r} records, as was said")
