"""Deletion of message files, in steps: threads do what blocks on the disk, and changes of the log are short.

A *survey* finds the contents of the oldest files, which do not change and are remembered. If the oldest file is due,
and no group needs it, it is *detached*, and is invisible from then on; then it is *removed*.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from enode_django.equeue.broker.chunk import Chunk
from enode_django.equeue.broker.clock import FAR_AHEAD
from enode_django.equeue.broker.index_files import IndexFile
from enode_django.equeue.broker.interpreter import let_others_run
from enode_django.equeue.broker.log import MessageLog
from enode_django.equeue.broker.queues import Queues
from enode_django.equeue.broker.retention import Consumed, Notices, OwnAge, QueueParts, Retention, by_own_ages
from enode_django.equeue.broker.scan import header_at
from enode_django.equeue.broker.segments import QueueView, SegmentLoad

SURVEYED_AT_ONCE = 32
"""Message files. One index file covers many of them, so it is read once for all of these."""


class Contents(NamedTuple):
    """The contents of a message file. ``newest``: when its newest batch was stored, in seconds since 1970."""

    parts: QueueParts
    newest: float


class Detached(NamedTuple):
    """A message file that was removed from the log, and the index files that covered only this file."""

    chunk: Path
    indexes: Sequence[IndexFile]


class _Newest(NamedTuple):
    """The newest message file: its start position, and when its first batch was stored, in seconds since 1970."""

    start: int
    begun: float


_NO_FILE = _Newest(-1, 0.0)


class Survey:
    """Finds the contents of message files. The store's thread calls `take` until it returns False, then any thread
    `run`, which blocks on the disk."""

    def __init__(self, chunks: Sequence[Chunk], views: Iterator[list[QueueView]]) -> None:
        self._places = [(chunk.start, chunk.end, chunk.path) for chunk in chunks]
        self._coming = views
        self._views: list[QueueView] = []
        self.made_anew: Sequence[SegmentLoad] = ()
        self.contents: dict[int, Contents] = {}
        """By the start position of each file."""

    def take(self) -> bool:
        """Note where the indexes of the next queues are. Return False after the last queue."""
        some = next(self._coming, None)
        self._views += some or ()
        return some is not None

    def run(self) -> None:
        found = [(start, end, QueueParts()) for start, end, _ in self._places]
        for view in self._views:
            for start, end, parts in found:
                view.find(start, end, parts)
            view.forget()
            let_others_run()
        for (start, _, parts), (_, _, path) in zip(found, self._places, strict=True):
            newest = max((part.newest for part in parts), default=None)
            self.contents[start] = Contents(parts, _written(path) if newest is None else newest)
        self.made_anew = [load for load in self._loads() if load.is_anew]
        while self._views:  # one by one: other threads run while much memory is freed
            self._views.pop()

    def _loads(self) -> Iterator[SegmentLoad]:
        return (load for view in self._views for load in view.loads)

    def give_up(self) -> None:
        """Make `run` raise `StorageFailed` instead of reading the log for a damaged index. Any thread may call it."""
        for load in self._loads():
            load.give_up()


class Deletion:
    """Deletes message files, the oldest first. Called by the thread of the store; any thread may call `remove` and
    `look_at_newest`."""

    def __init__(self, log: MessageLog, queues: Queues, now: Callable[[], float]) -> None:
        self.counted = 0
        """The position up to which the last two checkpoints both cover the log. Files beyond it must stay."""
        self.wrong_times_seen = now()
        """When a time in the far future was last noticed. It replaces such times, which come from wrong clocks."""
        self.early = 0
        """Files of consumed messages that were deleted before their time, to make room."""
        self.own_age: OwnAge = lambda topic: None
        self._log = log
        self._queues = queues
        self._now = now
        self._notices = Notices()
        self._contents: dict[int, Contents] = {}
        self._surveying: Survey | None = None
        self._newest = _NO_FILE

    def begin_survey(self) -> Survey | None:
        """Return the survey that must `take` and `run` before `is_due` can judge the oldest file; None if none is
        needed. Pass it to `finish_survey` afterwards."""
        oldest = self._log.chunks[:-1][:SURVEYED_AT_ONCE]
        if not oldest or oldest[0].start in self._contents:
            return None
        self._surveying = Survey(oldest, self._queues.views(oldest[0].start, oldest[-1].end))
        return self._surveying

    def finish_survey(self, survey: Survey) -> None:
        if survey is self._surveying:
            self._contents |= survey.contents
            self._surveying = None  # `_contents` has its results, and drops them file by file
        for load in survey.made_anew:
            self._queues.take(load)

    def forget_surveys(self) -> None:
        """Forget the contents of files, and ignore a survey that is running: a topic in these files was deleted."""
        self._contents.clear()
        self._surveying = None

    def is_due(self, retention: Retention, consumed: Consumed) -> bool:
        """Return True if the oldest file is due and no group needs it; False also before it was surveyed."""
        contents = self._contents.get(self._log.start) if len(self._log.chunks) > 1 else None
        if contents is None:
            return False
        now = self._now()
        parts = by_own_ages(list(contents.parts), retention.max_age, self.own_age)
        newest = max((part.newest for part in parts), default=contents.newest)
        if contents.newest > now + FAR_AHEAD:
            newest = self.wrong_times_seen
        # Called first: it may log a notice about a file that is not due yet.
        spared = retention.spares(parts, consumed, self._notices, now=now)
        messages = 0
        if retention.max_messages is not None:
            messages = sum(index.end - index.first(self._log.start) for _, index in self._queues.items())
        return not spared and retention.is_due(
            age=now - newest, size=self._log.end - self._log.start, messages=messages
        )

    @property
    def may_detach(self) -> bool:
        """True if the last two checkpoints both cover the oldest file, and it is safe on the disk."""
        return self._log.chunks[0].end <= min(self.counted, self._log.flushed)

    def detach(self) -> Detached:
        """Take the oldest file, which `is_due` and `may_detach`, out of the log and the indexes, for `remove`."""
        contents = self._contents.pop(self._log.start)
        chunk = self._log.detach_first()
        return Detached(chunk.path, self._queues.drop_below(self._log.start, contents.parts))

    def remove(self, detached: Sequence[Detached]) -> None:
        """Delete detached files, the oldest first. Blocks on the disk. Raises `StorageFailed`."""
        self._log.flush()  # makes the commits safe that allow this deletion
        self._log.remove(path for one in detached for path in (one.chunk, *(index.path for index in one.indexes)))

    def roll(self, retention: Retention, consumed: Consumed) -> None:
        """Begin a new file if no message is needed, so that the newest file can be deleted, too. Raises `QueueFull`."""
        start, end = self._log.start, self._log.end
        parts = QueueParts()
        for view in chain.from_iterable(self._queues.views(start, end)):
            view.find(start, end, parts)
        if not retention.spares(list(parts), consumed, self._notices, now=self._now()):
            self._log.roll()

    @property
    def knows_newest(self) -> bool:
        """False if `look_at_newest` must be called before `roll_older` can judge the newest file."""
        return not self._log.chunks or self._newest.start == self._log.chunks[-1].start

    def look_at_newest(self) -> None:
        """Note when the newest file got its first batch. Blocks on the disk."""
        start = self._log.chunks[-1].start
        reader = self._log.reader(start, start)
        header = header_at(reader, start)
        reader.release()
        if header is not None:
            self._newest = _Newest(start, header.time / 1000)

    def roll_older(self, age: float) -> None:
        """Begin a new file if the first batch of the newest one is older than ``age`` seconds. Raises `QueueFull`."""
        now, begun = self._now(), self._newest.begun
        if begun > now + FAR_AHEAD:
            begun = self.wrong_times_seen
        if self._log.chunks and self._newest.start == self._log.chunks[-1].start and now - begun > age:
            self._log.roll()


def _written(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0
