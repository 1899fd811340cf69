"""The index of one queue: the positions of its batches in the log."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

SEGMENT_ENTRIES = 8192
ENTRY_SIZE = 32
ENTRY_WORDS = 4
POSITION = 1
"""The word of an entry that holds its position."""


class Entry(NamedTuple):
    """The place of a batch. ``time`` is in milliseconds since 1970, ``length`` that of the body in bytes."""

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
    """A file of up to `SEGMENT_ENTRIES` entries. Each is four words of eight bytes: first offset, position, time, and
    number of messages and length together.

    ``words`` is None while only the file has them. The first ``saved`` entries of the file are valid; ``check`` is
    their CRC-32.
    """

    def __init__(self, start: int, count: int = 0, last_position: int = -1, last_time: int = 0, check: int = 0) -> None:
        self.start = start
        self.count = self.saved = count
        self.last_position = last_position
        self.last_time = last_time
        self.check = check
        self.words: array[int] | None = None if count else array("Q")

    def fields(self) -> list[int]:
        """Return the arguments of the constructor."""
        return [self.start, self.count, self.last_position, self.last_time, self.check]

    def restart(self, words: array[int]) -> None:
        """Replace the words by others than those in the file, which is to be rewritten."""
        self.words, self.count, self.saved, self.check = words, len(words) // ENTRY_WORDS, 0, 0


class NotInMemory(Exception):
    """Raised if a search needs entries that are not in memory. Any thread can run ``load``; then search again."""

    def __init__(self, load: Any) -> None:
        super().__init__()
        self.load = load


LoadWords = Callable[[Segment, bool], "array[int]"]
"""Returns the words of a segment. If the flag is set it may read them from their file. Raises `NotInMemory`."""


class QueueIndex:
    """The entries of one queue, ascending by offset, position and time. ``end`` is the next offset.

    Only the newest entries and the unsaved ones are held in memory; ``load`` brings the others. A search bisects the
    segments, then the entries of a segment. It raises `NotInMemory` if it needs others; only `first` may read a file.
    """

    def __init__(self, load: LoadWords, end: int = 0, segments: list[Segment] | None = None) -> None:
        self.end = end
        self.segments = segments if segments is not None else []
        self._load = load
        self._first: int | None = None

    def add(self, entry: Entry) -> None:
        """Add an entry. Its ``first_offset`` is `end`, or greater if messages were lost. Waits for no file: it begins a
        new segment if the newest one is not in memory."""
        newest = self.segments[-1] if self.segments else None
        if newest is None or newest.count >= SEGMENT_ENTRIES or newest.words is None:
            newest = Segment(entry.first_offset)
            self.segments.append(newest)
        assert newest.words is not None
        newest.words.extend(entry.words)
        newest.count += 1
        newest.last_position, newest.last_time = entry.position, entry.time
        self.end = entry.end

    def first(self, log_start: int) -> int:
        """Return the first offset that is left if the log starts at ``log_start``, or else `end`. While the index file
        with that entry is damaged, return a lower bound."""
        if self._first is None:
            place = bisect_left(self.segments, log_start, key=lambda segment: segment.last_position)
            try:
                entry = next(self._from(place, POSITION, log_start, reads_file=True), None)
            except NotInMemory:
                self._first = self.segments[place].start
                return self._first
            if entry is None:
                return self.end
            self._first = entry.first_offset
        return self._first

    def forget_first(self) -> None:
        """Make `first` search again."""
        self._first = None

    def at_offset(self, offset: int) -> Iterator[Entry]:
        """Yield entries in order, beginning with the one that holds ``offset``, or with the next remaining one."""
        place = max(bisect_right(self.segments, offset, key=lambda segment: segment.start) - 1, 0)
        return (entry for entry in self._from(place, 0, offset + 1, -1) if entry.end > offset)

    @property
    def known_first(self) -> int:
        """The first offset that is left, or 0 if it is not known without reading a file."""
        return self._first or 0

    def at_time(self, time: int) -> Iterator[Entry]:
        """Yield entries in order, from the first one that is not older than ``time`` on."""
        place = bisect_left(self.segments, time, key=lambda segment: segment.last_time)
        return self._from(place, 2, time)

    def place_of(self, segment: Segment) -> int:
        """Return the index of a segment in ``segments``, -1 if it was removed."""
        place = bisect_left(self.segments, segment.start, key=lambda each: each.start)
        return place if place < len(self.segments) and self.segments[place] is segment else -1

    def between(self, start: int, end: int) -> list[Segment]:
        """Return the segments with the entries between two positions of the log and the first entry behind them."""
        first = bisect_left(self.segments, start, key=lambda segment: segment.last_position)
        beyond = bisect_left(self.segments, end, key=lambda segment: segment.last_position)
        return self.segments[first : beyond + 1]

    def drop_below(self, position: int, first: int | None = None) -> list[Segment]:
        """Drop the segments whose batches all lie below a position in the log; returns them, for their files.
        ``first``: the first offset that is left, if known."""
        self._first = first
        if self.segments and self.segments[0].last_position >= position:
            return []
        keep = bisect_left(self.segments, position, key=lambda segment: segment.last_position)
        dropped, self.segments[:keep] = self.segments[:keep], []
        return dropped

    def empty(self) -> list[Segment]:
        """Drop all segments; returns them, for their files. The next offset stays the same."""
        self.forget_first()
        dropped, self.segments = self.segments, []
        return dropped

    def release(self, segment: Segment) -> None:
        """Free the words of a segment that is saved and not the newest."""
        if segment.saved == segment.count and self.segments and segment is not self.segments[-1]:
            segment.words = None

    def _from(
        self, place: int, column: int, sought: int, shift: int = 0, *, reads_file: bool = False
    ) -> Iterator[Entry]:
        """Yield the entries of the segment at ``place`` and of those behind it, from the first one on whose word in
        ``column`` is at least ``sought``; with a ``shift`` of -1, from the entry before it."""
        for at in range(place, len(self.segments)):
            segment = self.segments[at]
            words = segment.words if segment.words is not None else self._load(segment, reads_file)
            for number in range(max(_bisect(words, column, sought) + shift, 0), len(words) // ENTRY_WORDS):
                yield entry_at(words, number)


def entries_of(words: array[int]) -> Iterator[Entry]:
    return (entry_at(words, number) for number in range(len(words) // ENTRY_WORDS))


def time_in(words: array[int], offset: int) -> int | None:
    """Return the time of the first entry that ends behind an offset, in milliseconds since 1970, or None."""
    for number in range(max(_bisect(words, 0, offset + 1) - 1, 0), len(words) // ENTRY_WORDS):
        entry = entry_at(words, number)
        if entry.end > offset:
            return entry.time
    return None


def _bisect(words: array[int], column: int, sought: int) -> int:
    return bisect_left(range(len(words) // ENTRY_WORDS), sought, key=lambda at: words[at * ENTRY_WORDS + column])


def entry_at(words: array[int], number: int) -> Entry:
    first_offset, position, time, sizes = words[number * ENTRY_WORDS : number * ENTRY_WORDS + ENTRY_WORDS]
    return Entry(first_offset, position, time, sizes >> 32, sizes & 0xFFFFFFFF)
