"""Scan the log without an index: find whole batches, damage, and the end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

from enode_django.equeue.broker.batches import ALIGNMENT, MAGIC, MAX_HEADER, Header, decode_header
from enode_django.equeue.broker.chunk import BLOCK, PAGE, UNREADABLE_PAGE, Chunk
from enode_django.equeue.broker.log import LogReader
from enode_django.equeue.records import is_whole


class Found(NamedTuple):
    header: Header
    body: bytes

    @property
    def position(self) -> int:
        return self.header.position

    @property
    def end(self) -> int:
        return self.header.end


class Damaged(NamedTuple):
    """Bytes that are not a whole batch, with a whole batch somewhere behind them. ``header`` is the header at
    ``position``, if it can be read."""

    position: int
    end: int
    header: Header | None


Scanned: TypeAlias = Found | Damaged


def header_at(log: LogReader, position: int) -> Header | None:
    return decode_header(log.read(position, MAX_HEADER), position)


def scan(log: LogReader, position: int, safe: int = 0) -> Iterator[Scanned]:
    """Yield the batches and the damage from ``position`` on. Each item begins where the one before ends. Everything
    below ``safe`` is known to have been on the disk.

    The scan stops at the torn end: at the point after which there is no whole header, or at a hole left by a crash of
    the machine. Three signs together tell a hole from damage: all batches behind it were written before its bytes were
    known to be on the disk; one of its pages ends with zeros, like a page that was never written; and the disk can read
    all of it.
    """
    while position < log.end:
        header = header_at(log, position)
        if header is not None:
            body = log.read(header.body_position, header.body_length)
            if len(body) == header.body_length and is_whole(body) and _reaches(log, header):
                yield Found(header, body)
                position = header.end
                continue
        following = _next_header(log, header.end if header is not None else position + ALIGNMENT)
        if following is None:
            return
        if position >= safe and _is_torn(log, position, following.position) and not _was_safe(log, position, following):
            return
        yield Damaged(position, following.position, header)
        position = following.position


def _reaches(log: LogReader, header: Header) -> bool:
    """Return True if the file contains the batch up to its end, with up to seven bytes of padding."""
    chunk = log.chunk_at(header.position)
    return chunk is not None and header.end <= chunk.end


def _next_header(log: LogReader, position: int) -> Header | None:
    """Return the first whole header at or behind ``position``."""
    for chunk in log.chunks:
        if chunk.end > position:
            for first, last in chunk.data_from(max(position, chunk.start)):
                header = _header_between(chunk, max(first, position), last)
                if header is not None:
                    return header
    return None


def _header_between(chunk: Chunk, first: int, last: int) -> Header | None:
    for block in range(first, last, BLOCK):
        # A header may begin in one block and end in the next one.
        data = chunk.read_anyway(block, min(BLOCK, last - block) + MAX_HEADER)
        place = data.find(MAGIC)
        while 0 <= place < BLOCK:
            if (block + place) % ALIGNMENT == 0:
                header = decode_header(data[place : place + MAX_HEADER], block + place)
                if header is not None:
                    return header
            place = data.find(MAGIC, place + 1)
    return None


def _was_safe(log: LogReader, position: int, following: Header | None) -> bool:
    """Return True if a batch from ``following`` on was written when ``position`` was known to be on the disk."""
    while following is not None and following.flushed <= position:
        following = header_at(log, following.end) or _next_header(log, following.end)
    return following is not None


def _is_torn(log: LogReader, first: int, last: int) -> bool:
    return _has_hole(log, first, last) and not _is_unreadable(log, first, last)


def _is_unreadable(log: LogReader, first: int, last: int) -> bool:
    """Return True if the disk cannot read all bytes between two positions, or could not when they were rewritten."""
    chunk = log.chunk_at(first)
    if chunk is None or chunk.end < last:
        return False
    for position in range(first, last, BLOCK):
        data = chunk.read_if_readable(position, min(BLOCK, last - position))
        if data is None or UNREADABLE_PAGE in data:
            return True
    return False


def _has_hole(log: LogReader, first: int, last: int) -> bool:
    """Return True if a page that ends between two positions ends with zeros, or is missing. The last page of a file
    ends with the file."""
    chunk = log.chunk_at(first)
    if chunk is None or chunk.end < last:
        return True
    begin, end = first - chunk.start, last - chunk.start
    ends = [*range((begin // PAGE + 1) * PAGE, end + 1, PAGE)]
    if chunk.end == last:
        ends.append(end)
    return any(not any(chunk.read_anyway(chunk.start + page - ALIGNMENT, ALIGNMENT)) for page in ends)
