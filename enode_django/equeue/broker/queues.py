"""The indexes of all queues, and their files: ``<topic>/<queue>/<first offset>.index``."""

from __future__ import annotations

import os
import zlib
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import NamedTuple, TypeAlias

from enode_django.equeue.broker.index import ENTRY_SIZE, ENTRY_WORDS, SEGMENT_ENTRIES, NotInMemory, QueueIndex, Segment
from enode_django.equeue.broker.index_files import IndexFile, directory_name
from enode_django.equeue.broker.retention import QueuePart
from enode_django.equeue.broker.segments import FindEntries, QueueView, SegmentLoad, UnreadTime
from enode_django.equeue.files import PRIVATE, make_directory, sync_directory, write_all

_CACHED_SEGMENTS = 128
VIEWED_AT_ONCE = 100
"""Queues whose views the event loop makes before it runs other tasks."""
_GOES_ON = SEGMENT_ENTRIES // 8
"""Entries. The newest segment of a queue is read at the start only if it has no more than these: otherwise every start
would cost memory."""
_COUNT, _CHECK = 1, 4

SavedQueue: TypeAlias = tuple[str, int, int, list[list[int]]]
"""Topic, queue, end, and for each segment its start, count, last position, last time and CRC."""


class SegmentWrite(NamedTuple):
    """Entries that a checkpoint has to write to a file. ``before`` is the CRC of the entries already there. ``fields``
    are those of the segment in the checkpoint; `write` sets their CRC."""

    file: IndexFile
    offset: int
    words: array[int]
    before: int
    owner: QueueIndex
    segment: Segment
    fields: list[int]

    def write(self) -> None:
        """Block until the entries are safe. Entries that a lost checkpoint has left behind them are removed."""
        data = memoryview(self.words).cast("B")
        self.fields[_CHECK] = zlib.crc32(data, self.before)
        path = self.file.path
        make_directory(path.parent)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE)
        try:
            os.ftruncate(descriptor, self.offset)
            write_all(descriptor, data, self.offset)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if not self.offset:
            sync_directory(path.parent)

    def finish(self) -> None:
        self.segment.saved, self.segment.check = self.fields[_COUNT], self.fields[_CHECK]
        self.owner.release(self.segment)


class Queues:
    """The indexes of all queues. Called by one thread. A queue exists from its first message on.

    A file that is missing or damaged is replaced by what ``find`` reads from the log.
    """

    def __init__(self, directory: Path, find: FindEntries) -> None:
        self._directory = directory
        self._find = find
        self._queues: dict[tuple[str, int], QueueIndex] = {}
        self._cache: OrderedDict[tuple[Segment, int], array[int]] = OrderedDict()
        self.being_made: set[Segment] = set()
        """The segments that the `IndexLoader` is rebuilding."""

    def get(self, topic: str, queue: int) -> QueueIndex | None:
        return self._queues.get((topic, queue))

    def of(self, topic: str, queue: int) -> QueueIndex:
        index = self._queues.get((topic, queue))
        return index if index is not None else self._new(topic, queue)

    def time_at(self, topic: str, queue: int, offset: int) -> int | UnreadTime | None:
        """Return when the batch at an offset, or the next one, was stored, in milliseconds since 1970. Return an
        `UnreadTime` if only a file knows, and None if there is no batch. Waits for no file."""
        index = self._queues.get((topic, queue))
        try:
            entry = next(index.at_offset(offset), None) if index is not None else None
        except NotInMemory as missing:
            return UnreadTime(missing.load, offset)
        return entry.time if entry is not None else None

    def items(self) -> Iterator[tuple[tuple[str, int], QueueIndex]]:
        return iter(self._queues.items())

    def load(self, saved: Iterable[SavedQueue], log_start: int) -> None:
        """Restore the queues of a checkpoint, without the segments that lie before the log's start."""
        for topic, queue, end, segments in saved:
            left = [Segment(*fields) for fields in segments if fields[2] >= log_start]
            self._new(topic, queue, end, left)

    def load_ends(self, saved: Iterable[SavedQueue], log_start: int) -> None:
        """Restore only the ends of queues, before the log is indexed again. A queue with segments left in the log ends
        where the first of them begins; any other keeps its end."""
        for topic, queue, end, segments in saved:
            left = [start for start, _, last_position, *_ in segments if last_position >= log_start]
            self._new(topic, queue, left[0] if left else end)

    def save(self) -> tuple[list[SegmentWrite], list[SavedQueue]]:
        """Return the writes that a checkpoint needs, and the queues as it then holds them. Changes nothing."""
        writes: list[SegmentWrite] = []
        saved: list[SavedQueue] = []
        for (topic, queue), index in self._queues.items():
            segments = [segment.fields() for segment in index.segments]
            for segment, fields in zip(index.segments, segments, strict=True):
                if segment.saved < segment.count and segment.words is not None:
                    file, offset = self._file(topic, queue, segment), segment.saved * ENTRY_SIZE
                    words = segment.words[segment.saved * ENTRY_WORDS :]
                    writes.append(SegmentWrite(file, offset, words, segment.check, index, segment, fields))
            saved.append((topic, queue, index.end, segments))
        return writes, saved

    def views(self, start: int, end: int) -> Iterator[list[QueueView]]:
        """Yield views with which a thread finds the entries between two positions of the log, for `VIEWED_AT_ONCE`
        queues at a time. Queues may change in between."""
        queues = iter(list(self._queues))
        while some := list(islice(queues, VIEWED_AT_ONCE)):
            yield [view for name in some if (view := self._view(*name, start, end)) is not None]

    def _view(self, topic: str, queue: int, start: int, end: int) -> QueueView | None:
        segments = self._queues[topic, queue].between(start, end)
        if not segments:
            return None
        lasts = [segment.last_position for segment in segments]
        words = (each.words if each.words is not None else self._load_of(topic, queue, each) for each in segments)
        return QueueView((topic, queue), lasts, list(words))

    def take(self, load: SegmentLoad) -> None:
        """Use what another thread has read of a segment, unless the segment has changed or was removed."""
        segment = load.segment
        index = self._queues[load.file.topic, load.file.queue]
        is_same = (segment.saved, segment.check) == (load.saved, load.check) and segment.words is None
        if load.words is None or not is_same or index.place_of(segment) < 0:
            return
        if load.is_anew:
            segment.restart(load.words)
            index.forget_first()
        else:
            self._cache[segment, segment.saved] = load.words
            if len(self._cache) > _CACHED_SEGMENTS:
                self._cache.popitem(last=False)

    def drop_below(self, position: int, parts: Iterable[QueuePart]) -> list[IndexFile]:
        """Drop the segments below a position in the log; returns the files that hold nothing else. ``parts`` are the
        contents of the oldest message file, which is being deleted."""
        files = []
        for part in parts:
            for segment in self._queues[part.topic, part.queue].drop_below(position, part.following):
                self._cache.pop((segment, segment.saved), None)
                files.append(self._file(part.topic, part.queue, segment))
        return files

    def load_newest(self) -> None:
        """Load each queue's newest segment if it has room. If it is full or damaged, the queue goes on in a new one."""
        for (topic, queue), index in self._queues.items():
            newest = index.segments[-1] if index.segments else None
            if newest is not None and newest.words is None and newest.count <= _GOES_ON:
                newest.words = self._load_of(topic, queue, newest).read_file()

    def empty(self, topic: str, only: int | None = None) -> list[IndexFile]:
        """Drop the entries of a topic's queues, or of one of them, but keep the ends; returns the files to delete. Any
        thread may delete them; otherwise the next start does."""
        files = []
        for (name, queue), index in self._queues.items():
            if name == topic and only in (None, queue):
                for segment in index.empty():
                    self._cache.pop((segment, segment.saved), None)
                    files.append(self._file(topic, queue, segment))
        return files

    def delete_unknown(self) -> None:
        """Delete files that a crash has left: those that belong to no segment."""
        known = {
            self._file(topic, queue, segment).path
            for (topic, queue), index in self._queues.items()
            for segment in index.segments
        }
        for path in self._directory.glob("*/*/*.index"):
            if path not in known:
                path.unlink(missing_ok=True)

    def delete_empty_directories(self) -> None:
        """Delete the directories of deleted queues and topics. Call this while no thread may write to them."""
        for directory in (*self._directory.glob("*/*"), *self._directory.glob("*")):
            with suppress(OSError):  # it is not empty
                directory.rmdir()

    def _new(self, topic: str, queue: int, end: int = 0, segments: list[Segment] | None = None) -> QueueIndex:
        directory_name(topic)
        index = QueueIndex(lambda segment, reads_file: self._loaded(topic, queue, segment, reads_file), end, segments)
        self._queues[topic, queue] = index
        return index

    def _loaded(self, topic: str, queue: int, segment: Segment, reads_file: bool) -> array[int]:
        key = (segment, segment.saved)  # words that were read before the file has grown are of no use
        words = self._cache.get(key)
        if words is not None:
            self._cache.move_to_end(key)
            return words
        load = self._load_of(topic, queue, segment)
        words = load.read_file() if reads_file else None
        if words is None:
            raise NotInMemory(load)
        self.take(load)
        return words

    def _load_of(self, topic: str, queue: int, segment: Segment) -> SegmentLoad:
        index = self._queues[topic, queue]
        place = index.place_of(segment)
        after = index.segments[place - 1].last_position if place > 0 else 0
        return SegmentLoad(self._file(topic, queue, segment), segment, after, self._find)

    def _file(self, topic: str, queue: int, segment: Segment) -> IndexFile:
        return IndexFile(self._directory, topic, queue, segment.start)
