"""Encode the batches of a send as bytes of the log. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from enode_django.equeue.broker.batches import CONTROL_TOPIC, NO_PRODUCER, Header, NewBatch, batch_length, encode_header
from enode_django.equeue.records import Buffer, checked_count, seal
from enode_django.exceptions import MalformedRecords, QueueError

_MOST_PARTS = 0xFFFF


class Layout(NamedTuple):
    """The parts to be written, in order. The ``end`` of the last header will be the end of the log."""

    headers: Sequence[Header]
    bodies: Sequence[Buffer]

    @property
    def length(self) -> int:
        return self.headers[-1].end - self.headers[0].position

    def buffers(self) -> list[Buffer]:
        found: list[Buffer] = []
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

    Raises `MalformedRecords` for a body that no consumer could decode or that has another number of records than
    ``count``, and `QueueError` for too many batches or a producer that has not 16 bytes.
    """
    if len(batches) > _MOST_PARTS or len(producer) != len(NO_PRODUCER):
        raise QueueError(f"a send has at most {_MOST_PARTS} batches and a producer of 16 bytes; got {producer[:20]!r}")
    headers: list[Header] = []
    ends: dict[int, int] = {}
    position = stamp.position
    for part, (queue, count, body) in enumerate((batch.queue, batch.count, batch.body) for batch in batches):
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


def _check(queue: int, count: int, body: Buffer) -> None:
    try:
        found = checked_count(body)
    except MalformedRecords as error:
        raise MalformedRecords(f"the body for queue {queue!r} cannot be stored: {error}") from error
    if found != count:
        raise MalformedRecords(f"the body for queue {queue!r} does not hold {count!r} records, as was said")
