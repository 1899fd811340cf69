"""The files of the broker's log, batch by batch, without the broker's code.

A batch is the magic ``EQB1``, the CRC-32 of the rest of the header, fixed fields, topic and body, padded to a multiple
of eight bytes. All numbers are little-endian. A header holds its own position, so that only batches written there
count. A file is named by its start position, and ends where the next one begins. Reserved but unwritten space is zeros.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import BinaryIO, NamedTuple

from chaos.checker.reading.problems import Problems

MAGIC = b"EQB1"
ALIGNMENT = 8
_PREFIX = struct.Struct("<4sI")
_FIELDS = struct.Struct("<HHHHIIIIQQQQ16sQ")
_FIXED = _PREFIX.size + _FIELDS.size
_BLOCK = 1 << 20
_LONGEST_HEADER = _FIXED + 255


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch. ``producer`` is empty if the sender is unknown."""

    place: str
    topic: str
    queue: int
    first_offset: int
    count: int
    producer: bytes
    sequence: int
    part: int
    parts: int
    body: bytes


class _Header(NamedTuple):
    version: int
    topic_length: int
    part: int
    parts: int
    length: int
    body_length: int
    queue: int
    messages: int
    position: int
    flushed: int
    first_offset: int
    time: int
    producer: bytes
    sequence: int


def chunk_paths(directory: Path) -> list[Path]:
    """Return the files of the log, the oldest first."""
    return sorted((directory / "messages").glob("[0-9]*.chunk"))


def read_batches(directory: Path, problems: Problems) -> Iterator[Batch]:
    """Yield all batches in the order of the log. Damage in the middle is a problem; a torn end is left by a crash."""
    paths = chunk_paths(directory)
    starts = [int(path.stem) for path in paths]
    for path, start, end in zip_longest(paths, starts, starts[1:]):
        with path.open("rb", buffering=_BLOCK) as file:
            yield from _Chunk(file, path.name, start, end, problems).batches()


class _Chunk:
    def __init__(self, file: BinaryIO, name: str, start: int, end: int | None, problems: Problems) -> None:
        self._file = file
        self._name = name
        self._start = start
        self._end = end
        self._problems = problems

    def batches(self) -> Iterator[Batch]:
        at = 0
        while self._end is None or self._start + at < self._end:
            found = self._batch(at)
            if found is not None:
                batch, at = found
                yield batch
                continue
            following = self._next_header(at)
            if following is None:
                self._tell_of_damage_at_the_end(at)
                return
            self._problems.add(f"{self._name} byte {at}", f"{following - at} bytes are no batch")
            at = following

    def _tell_of_damage_at_the_end(self, at: int) -> None:
        """Report damage at the end of a file that is not the last: a torn end is cut before the next file begins."""
        if self._end is not None:
            self._file.seek(at)
            rest = self._file.read(self._end - self._start - at)
            if any(rest):
                self._problems.add(f"{self._name} byte {at}", f"{len(rest)} bytes are no batch")

    def _batch(self, at: int) -> tuple[Batch, int] | None:
        """Return the batch at this byte and the place of the next one; None if it is not whole."""
        header = self._header(at)
        if header is None:
            return None
        self._file.seek(at + _FIXED)
        content = self._file.read(header.topic_length + header.body_length)
        body = content[header.topic_length :]
        if len(body) != header.body_length or not _is_whole(body):
            return None
        topic = content[: header.topic_length].decode()
        batch = Batch(f"{self._name} byte {at}", topic, *_told_by(header), body)
        return batch, at + header.length

    def _header(self, at: int) -> _Header | None:
        self._file.seek(at)
        data = self._file.read(_LONGEST_HEADER)
        return _decode_header(data, self._start + at)

    def _next_header(self, at: int) -> int | None:
        """Return the first place after ``at`` with a whole header; None if there is none."""
        at += ALIGNMENT
        while self._end is None or self._start + at < self._end:
            self._file.seek(at)
            data = self._file.read(_BLOCK)
            if not data:
                return None
            place = data.find(MAGIC)
            while place >= 0:
                if (at + place) % ALIGNMENT == 0 and self._header(at + place) is not None:
                    return at + place
                place = data.find(MAGIC, place + 1)
            at += max(len(data) - ALIGNMENT, ALIGNMENT)
        return None


def _told_by(header: _Header) -> tuple[int, int, int, bytes, int, int, int]:
    """Return the fields of a `Batch` after the topic."""
    producer = header.producer if any(header.producer) else b""
    place = (header.queue, header.first_offset, header.messages)
    return (*place, producer, header.sequence, header.part, header.parts)


def _decode_header(data: bytes, position: int) -> _Header | None:
    if len(data) < _FIXED:
        return None
    magic, check = _PREFIX.unpack_from(data)
    if magic != MAGIC:
        return None
    header = _Header(*_FIELDS.unpack_from(data, _PREFIX.size))
    checked = data[_PREFIX.size : _FIXED + header.topic_length]
    is_ours = header.version == 1 and header.position == position and zlib.crc32(checked) == check
    return header if is_ours else None


def _is_whole(body: bytes) -> bool:
    return len(body) >= 4 and zlib.crc32(memoryview(body)[4:]) == int.from_bytes(body[:4], "little")
