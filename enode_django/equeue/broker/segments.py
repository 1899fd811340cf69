"""Read index files outside the event loop: for reads far behind a queue's end, and for deletion."""

from __future__ import annotations

import logging
import zlib
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias

from enode_django.equeue.broker.index import ENTRY_SIZE, ENTRY_WORDS, POSITION, Entry, Segment, entry_at, time_in
from enode_django.equeue.broker.index_files import IndexFile
from enode_django.equeue.broker.retention import QueueParts
from enode_django.equeue.files import translated
from enode_django.exceptions import StorageFailed

logger = logging.getLogger(__name__)

FindEntries: TypeAlias = Callable[[str, int, int, int, Callable[[], bool]], Iterable[Entry]]
"""Yields the entries of a topic's queue between two positions of the log (inclusive), read from the log itself, until a
function returns True."""

_NOTHING = array("Q")


def words_in(path: Path, count: int, check: int) -> array[int] | None:
    """Return the words of the first ``count`` entries of an index file; None if it is missing or damaged."""
    try:
        data = path.read_bytes()[: count * ENTRY_SIZE]
    except OSError:
        return None
    if len(data) != count * ENTRY_SIZE or zlib.crc32(data) != check:
        return None
    return array("Q", data)


class SegmentLoad:
    """Loads the words of a segment. `run` reads its file in any thread; then the owner of the indexes takes the
    ``words`` (`Queues.take`). If the file is damaged they come from the log (``is_anew``).

    ``after`` is the position of the last entry before the segment; ``saved`` and ``check`` are those of the segment
    when this was made.
    """

    def __init__(self, file: IndexFile, segment: Segment, after: int, find: FindEntries) -> None:
        self.file = file
        self.segment = segment
        self.saved = segment.saved
        self.check = segment.check
        self.words: array[int] | None = None
        self.is_anew = False
        self._after = after
        self._last_position = segment.last_position
        self._find = find
        self._is_over = False

    def read_file(self) -> array[int] | None:
        """Return the words; None if the file is missing or damaged. Blocks on the disk."""
        if self.words is None:
            self.words = words_in(self.file.path, self.saved, self.check)
        return self.words

    def run(self) -> array[int]:
        """Return the words. Blocks on the disk, for long if the file is damaged; safe to call twice. Raises
        `StorageFailed` if messages cannot be read, either, or after `give_up`."""
        words = self.read_file()
        if words is None:
            words = self._words_from_log()
            if self._is_over:
                raise StorageFailed("the broker stops; the index is made anew after its next start")
            self.words, self.is_anew = words, True
        return words

    def give_up(self) -> None:
        """Make `run` end soon. Any thread may call it."""
        self._is_over = True

    def _words_from_log(self) -> array[int]:
        """Rebuild the segment from the messages. Blocks while the log is read from the entry before to its last one."""
        file = self.file
        logger.error("the index %s is damaged; it is made anew from the messages", file.path)
        words = array("Q")
        with translated("making an index anew"):
            for entry in self._find(file.topic, file.queue, self._after, self._last_position, lambda: self._is_over):
                if entry.first_offset >= file.start:
                    words.extend(entry.words)
        return words


class UnreadTime(NamedTuple):
    """The time of a batch that only an index file holds."""

    load: SegmentLoad
    offset: int

    @property
    def key(self) -> tuple[str, int, int]:
        """Topic, queue and offset."""
        return self.load.file.topic, self.load.file.queue, self.offset

    def read(self) -> int | None:
        """Return the time in milliseconds since 1970; None if the file is damaged. Blocks on the disk."""
        words = self.load.read_file()
        return time_in(words, self.offset) if words is not None else None


class QueueView:
    """The segments of one queue around some positions of the log, as they were when this was made, for one thread.

    ``lasts`` are the last positions of the segments, ``words`` their words or how to load them.
    """

    def __init__(self, name: tuple[str, int], lasts: Sequence[int], words: Sequence[array[int] | SegmentLoad]) -> None:
        self._name = name
        self._lasts = lasts
        self._words = words
        self._known: dict[int, tuple[array[int], array[int]]] = {}

    @property
    def loads(self) -> list[SegmentLoad]:
        return [words for words in self._words if isinstance(words, SegmentLoad)]

    def find(self, start: int, end: int, parts: QueueParts) -> None:
        """Add to ``parts`` what lies between two positions of the log, if anything. Blocks on the disk."""
        place = bisect_left(self._lasts, end)
        words, positions = self._segment(place)
        number = bisect_left(positions, end)
        following = words[number * ENTRY_WORDS] if number < len(positions) else None
        if not number:  # the last entry before is in the segment before, which may have grown since
            words, positions = self._segment(place - 1)
            number = bisect_left(positions, end)
            if following is None and number < len(positions):
                following = words[number * ENTRY_WORDS]
        if number and positions[number - 1] >= start:
            last = entry_at(words, number - 1)
            parts.add(self._name, last.end, last.time, following)

    def forget(self) -> None:
        """Free the entries that were read from intact index files."""
        self._known.clear()
        for load in self.loads:
            if not load.is_anew:
                load.words = None

    def _segment(self, place: int) -> tuple[array[int], array[int]]:
        """Return the words of a segment, and the positions in them."""
        known = self._known.get(place)
        if known is None:
            words = self._words[place] if 0 <= place < len(self._words) else _NOTHING
            words = words.run() if isinstance(words, SegmentLoad) else words
            known = self._known[place] = words, words[POSITION::ENTRY_WORDS]
        return known
