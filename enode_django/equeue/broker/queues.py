"""The indexes of all queues, and their files: ``<topic>/<queue>/<first offset>.index``."""

from __future__ import annotations

import os
import zlib
from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple, TypeAlias
from urllib.parse import quote

from enode_django.equeue.broker.files import make_directory, sync_directory, write_all
from enode_django.equeue.broker.index import ENTRY_SIZE, Entry, QueueIndex, Segment
from enode_django.equeue.broker.retention import QueuePart
from enode_django.exceptions import QueueError

_CACHED_SEGMENTS = 32
_LONGEST_NAME = 200

SavedQueue: TypeAlias = tuple[str, int, int, list[tuple[int, int, int, int, int]]]
"""Topic, queue, end, and per segment its start, count, last position, last time and CRC."""

FindEntries: TypeAlias = Callable[[str, int, int, int], Iterable[Entry]]
"""The entries of a topic's queue from a position to a position in the log (inclusive), from the log itself."""


class SegmentWrite(NamedTuple):
    """Entries that a checkpoint has to bring to a file, and what is true of its segment afterwards."""

    path: Path
    offset: int
    data: bytes
    owner: QueueIndex
    segment: Segment
    saved: int
    check: int

    def write(self) -> None:
        """Blocks until the entries are safe. What a lost checkpoint has left behind them is taken away."""
        make_directory(self.path.parent)
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            os.ftruncate(descriptor, self.offset)
            write_all(descriptor, self.data, self.offset)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if not self.offset:
            sync_directory(self.path.parent)

    def finish(self) -> None:
        self.segment.saved, self.segment.check = self.saved, self.check
        self.owner.release()


class Queues:
    """Called by one thread. A queue is there from its first message on.

    A file that is missing or damaged is replaced by what ``find`` reads from the log.
    """

    def __init__(self, directory: Path, find: FindEntries) -> None:
        self._directory = directory
        self._find = find
        self._queues: dict[tuple[str, int], QueueIndex] = {}
        self._cache: OrderedDict[tuple[Segment, int], array[int]] = OrderedDict()

    def get(self, topic: str, queue: int) -> QueueIndex | None:
        return self._queues.get((topic, queue))

    def of(self, topic: str, queue: int) -> QueueIndex:
        index = self._queues.get((topic, queue))
        return index if index is not None else self._new(topic, queue)

    def items(self) -> Iterator[tuple[tuple[str, int], QueueIndex]]:
        return iter(self._queues.items())

    def load(self, saved: Iterable[SavedQueue], log_start: int) -> None:
        """Begin with what a checkpoint tells, without the segments that lie before the log's start."""
        for topic, queue, end, segments in saved:
            left = [Segment(*fields) for fields in segments if fields[2] >= log_start]
            self._new(topic, queue, end, left)

    def load_ends(self, saved: Iterable[SavedQueue], log_start: int) -> None:
        """Begin with the ends alone, as far as they cannot be seen in what is left of the log."""
        for topic, queue, end, segments in saved:
            left = [start for start, _, last_position, *_ in segments if last_position >= log_start]
            self._new(topic, queue, left[0] if left else end)

    def save(self) -> tuple[list[SegmentWrite], list[SavedQueue]]:
        """What a checkpoint has to write to files, and what it has to hold. Changes nothing."""
        writes, saved = [], []
        for (topic, queue), index in self._queues.items():
            segments = []
            for segment in index.segments:
                check = segment.check
                if segment.saved < segment.count and segment.words is not None:
                    data = memoryview(segment.words).cast("B")[segment.saved * ENTRY_SIZE :].tobytes()
                    check = zlib.crc32(data, check)
                    path, offset = self._path(topic, queue, segment), segment.saved * ENTRY_SIZE
                    writes.append(SegmentWrite(path, offset, data, index, segment, segment.count, check))
                segments.append((segment.start, segment.count, segment.last_position, segment.last_time, check))
            saved.append((topic, queue, index.end, segments))
        return writes, saved

    def parts_between(self, start: int, end: int) -> list[QueuePart]:
        """What lies between two positions of the log, for each queue that has anything there."""
        parts = []
        for (topic, queue), index in self._queues.items():
            last = index.before_position(end)
            if last is not None and last.position >= start:
                parts.append(QueuePart(topic, queue, last.end, last.time / 1000))
        return parts

    def drop_below(self, position: int) -> None:
        """Delete the files that hold nothing but batches below a position in the log."""
        for (topic, queue), index in self._queues.items():
            for segment in index.drop_below(position):
                self._cache.pop((segment, segment.saved), None)
                self._path(topic, queue, segment).unlink(missing_ok=True)

    def empty(self, topic: str) -> list[Path]:
        """Forget what is in the queues of a topic, but not where they end; returns the files to delete, in any thread:
        the next start deletes them else."""
        files = []
        for (name, queue), index in self._queues.items():
            if name == topic:
                for segment in index.empty():
                    self._cache.pop((segment, segment.saved), None)
                    files.append(self._path(topic, queue, segment))
        return files

    def delete_unknown(self) -> None:
        """Delete files that a crash has left: those of no segment."""
        known = {
            self._path(topic, queue, segment)
            for (topic, queue), index in self._queues.items()
            for segment in index.segments
        }
        for path in self._directory.glob("*/*/*.index"):
            if path not in known:
                path.unlink(missing_ok=True)

    def _new(self, topic: str, queue: int, end: int = 0, segments: list[Segment] | None = None) -> QueueIndex:
        _directory_name(topic)
        index = QueueIndex(lambda segment: self._loaded(topic, queue, segment), end, segments)
        self._queues[topic, queue] = index
        return index

    def _loaded(self, topic: str, queue: int, segment: Segment) -> array[int]:
        key = (segment, segment.saved)  # what was read is of no use when the file has grown
        words = self._cache.pop(key, None)
        if words is None:
            words = self._read(topic, queue, segment)
        self._cache[key] = words
        if len(self._cache) > _CACHED_SEGMENTS:
            self._cache.popitem(last=False)
        return words

    def _read(self, topic: str, queue: int, segment: Segment) -> array[int]:
        try:
            data = self._path(topic, queue, segment).read_bytes()[: segment.saved * ENTRY_SIZE]
        except OSError:
            data = b""
        if len(data) == segment.saved * ENTRY_SIZE and zlib.crc32(data) == segment.check:
            return array("Q", data)
        words = array("Q")
        first = self._position_before(topic, queue, segment)
        for entry in self._find(topic, queue, first, segment.last_position):
            if entry.first_offset >= segment.start:
                words.extend(entry.words)
        segment.restart(words)
        return words

    def _position_before(self, topic: str, queue: int, segment: Segment) -> int:
        segments = self._queues[topic, queue].segments
        place = segments.index(segment)
        return segments[place - 1].last_position if place else 0

    def _path(self, topic: str, queue: int, segment: Segment) -> Path:
        return self._directory / _directory_name(topic) / str(queue) / f"{segment.start:020}.index"


def _directory_name(topic: str) -> str:
    """One that no topic has but this one, and that is no path."""
    name = quote(topic, safe="").replace(".", "%2E")
    if not name or len(name) > _LONGEST_NAME:
        raise QueueError(
            f"{topic[:50]!r} cannot name a topic here; use 1 to {_LONGEST_NAME} letters, digits, '-' and '_'"
        )
    return name
