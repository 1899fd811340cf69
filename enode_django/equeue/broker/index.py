"""Where the batches of one queue lie in the log."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from typing import NamedTuple

SEGMENT_ENTRIES = 8192
ENTRY_SIZE = 32
_WORDS = 4


class Entry(NamedTuple):
    """``length`` is that of the body. ``time`` in milliseconds since 1970."""

    first_offset: int
    position: int
    time: int
    messages: int
    length: int

    @property
    def end(self) -> int:
        return self.first_offset + self.messages

    @property
    def words(self) -> tuple[int, int, int, int]:
        return self.first_offset, self.position, self.time, self.messages << 32 | self.length


class Segment:
    """Up to `SEGMENT_ENTRIES` entries, which are one file. Each is four words of eight bytes: first offset, position,
    time, and number of messages and length together.

    ``words`` is None while only the file has them. Of the file, the first ``saved`` entries count, and ``check`` is
    their CRC-32.
    """

    def __init__(self, start: int, count: int = 0, last_position: int = -1, last_time: int = 0, check: int = 0) -> None:
        self.start = start
        self.count = self.saved = count
        self.last_position = last_position
        self.last_time = last_time
        self.check = check
        self.words: array[int] | None = None if count else array("Q")

    def restart(self, words: array[int]) -> None:
        """Take other words than the file has, which is to be written anew."""
        self.words, self.count, self.saved, self.check = words, len(words) // _WORDS, 0, 0


LoadWords = Callable[[Segment], "array[int]"]
"""Reads the file of a segment whose words are not in memory; from a damaged one, what is left restarts it."""


class QueueIndex:
    """The entries of one queue, ascending by offset, position and time. ``end`` is the offset that comes next.

    Only the newest entries and those not saved yet are held in memory; ``load`` brings the others. Every search is a
    bisection over the segments and one over the entries of a segment.
    """

    def __init__(self, load: LoadWords, end: int = 0, segments: list[Segment] | None = None) -> None:
        self.end = end
        self.segments = segments if segments is not None else []
        self._load = load
        self._first: int | None = None

    def add(self, entry: Entry) -> None:
        """``entry.first_offset`` is `end`, or above it where something is lost."""
        segment = self._open_segment(entry.first_offset)
        assert segment.words is not None
        segment.words.extend(entry.words)
        segment.count += 1
        segment.last_position, segment.last_time = entry.position, entry.time
        self.end = entry.end

    def first(self, log_start: int) -> int:
        """The first offset that is left, given where the log starts now; `end` if none is."""
        if self._first is None:
            entry = next(self.at_position(log_start), None)
            if entry is None:
                return self.end
            self._first = entry.first_offset
        return self._first

    def at_offset(self, offset: int) -> Iterator[Entry]:
        """Entries in order, beginning with the one that holds ``offset`` or the next one that is left."""
        place = max(bisect_right(self.segments, offset, key=lambda segment: segment.start) - 1, 0)
        return (entry for entry in self._from(place, 0, offset + 1, -1) if entry.end > offset)

    def at_position(self, position: int) -> Iterator[Entry]:
        """Entries in order, beginning with the first one at or behind a position in the log."""
        place = bisect_left(self.segments, position, key=lambda segment: segment.last_position)
        return self._from(place, 1, position)

    def at_time(self, time: int) -> Iterator[Entry]:
        """Entries in order, beginning with the first one that is not older than ``time``."""
        place = bisect_left(self.segments, time, key=lambda segment: segment.last_time)
        return self._from(place, 2, time)

    def before_position(self, position: int) -> Entry | None:
        """The last entry below a position in the log."""
        place = bisect_left(self.segments, position, key=lambda segment: segment.last_position)
        for segment in reversed(self.segments[max(place - 1, 0) : place + 1]):
            words = self._words(segment)
            number = _bisect(words, 1, position)
            if number:
                return _entry(words, number - 1)
        return None

    def drop_below(self, position: int) -> list[Segment]:
        """Forget segments all of whose batches lie below a position in the log; returns them, for their files."""
        self._first = None
        keep = bisect_left(self.segments, position, key=lambda segment: segment.last_position)
        dropped, self.segments[:keep] = self.segments[:keep], []
        return dropped

    def empty(self) -> list[Segment]:
        """Forget all segments; returns them, for their files. What comes next has the same offset as without this."""
        self._first = None
        dropped, self.segments = self.segments, []
        return dropped

    def release(self) -> None:
        """Let go of the words of full segments that are saved."""
        for segment in self.segments[:-1]:
            if segment.saved == segment.count:
                segment.words = None

    def _open_segment(self, start: int) -> Segment:
        if not self.segments or self.segments[-1].count >= SEGMENT_ENTRIES:
            self.segments.append(Segment(start))
        segment = self.segments[-1]
        if segment.words is None:
            segment.words = array("Q", self._load(segment))
        return segment

    def _words(self, segment: Segment) -> array[int]:
        return segment.words if segment.words is not None else self._load(segment)

    def _from(self, place: int, column: int, sought: int, shift: int = 0) -> Iterator[Entry]:
        """The entries from the first one on whose word in ``column`` is not below ``sought``, in the segment at
        ``place`` and behind; with a ``shift`` of -1 from the one before it."""
        for at in range(place, len(self.segments)):
            words = self._words(self.segments[at])
            for number in range(max(_bisect(words, column, sought) + shift, 0), len(words) // _WORDS):
                yield _entry(words, number)


def _bisect(words: array[int], column: int, sought: int) -> int:
    return bisect_left(range(len(words) // _WORDS), sought, key=lambda at: words[at * _WORDS + column])


def _entry(words: array[int], number: int) -> Entry:
    first_offset, position, time, sizes = words[number * _WORDS : number * _WORDS + _WORDS]
    return Entry(first_offset, position, time, sizes >> 32, sizes & 0xFFFFFFFF)
