"""All queues of a topic for one consumer, which keeps its offsets in a file."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from math import inf

from enode_django.equeue.consumer.queue_consumer import LOOK_AGAIN, NOTHING_TO_PULL, Acquired, PulledMessages
from enode_django.equeue.consumer.reached import Reached
from enode_django.equeue.offsets import OffsetWindow
from enode_django.equeue.offsets_file import KeptOffsets, OffsetsFile
from enode_django.equeue.transport import LONG_POLL, TellsTimelines, Transport
from enode_django.equeue.waking import PullingThread
from enode_django.exceptions import UnknownQueue

logger = logging.getLogger("enode_django.equeue")

WARN_EVERY = 10.0
"""Seconds between two warnings that the offsets cannot be written."""


class BroadcastQueues:
    """Consumes a whole topic as `QueueConsumer` consumes a group's share of it, called by the same threads, but without
    leases: no other consumer has these offsets. ``start`` returns the start offset of a queue without one.

    While the offsets cannot be written, because the disk is full, messages are consumed all the same.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        topic: str,
        file: OffsetsFile,
        start: Callable[[int], int],
        long_poll: float = LONG_POLL,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._transport = transport
        self._topic = topic
        self._file = file
        self._start = start
        self._clock = clock
        self._reached: Reached | None = None
        self._timelines: Mapping[int, str] = {}
        self._next_warning = 0.0
        self._shown: frozenset[int] = frozenset()
        self._windows: dict[int, OffsetWindow] = {}
        self._has_left = False
        self._writing = threading.Lock()
        self._long_poll = long_poll
        self._puller = PullingThread(transport)

    @property
    def owned(self) -> frozenset[int]:
        return frozenset(self._windows)

    @property
    def unfinished(self) -> int:
        return sum(window.unfinished for window in list(self._windows.values()))

    def join(self) -> None:
        if self._has_left:
            return
        windows = [window for window in list(self._windows.values()) if not window.closed]
        before = {window.queue: window.committable for window in windows}
        pulled = {window.queue: window.next_offset for window in windows}
        states = self._transport.queues(self._topic)
        if isinstance(self._transport, TellsTimelines):
            self._timelines = self._transport.timelines(self._topic)
        lost = {queue for queue, offset in pulled.items() if queue not in states or offset > states[queue].end}
        if self._reached is not None:
            lost.update(self._reached.confirm(before, self._timelines, now=self._clock()))
        for window in windows:
            if window.queue in lost:
                window.close()
        self._shown = frozenset(queue for queue, state in states.items() if state.to_consumers)
        if not self._is_settled:
            self.wake()

    def leave(self) -> None:
        self._has_left = True
        self.wake()

    def wake(self) -> None:
        self._puller.wake()

    @property
    def pull_wait(self) -> float:
        can_wait = self._is_settled and self._puller.can_be_woken
        return self._long_poll if can_wait else min(self._long_poll, LOOK_AGAIN)

    @property
    def _is_settled(self) -> bool:
        """Return False while a queue has to be taken for the first time or again."""
        windows = list(self._windows.values())
        return self._shown <= {window.queue for window in windows} and not any(window.closed for window in windows)

    def lose_all(self) -> None:
        for window in list(self._windows.values()):
            window.close()

    def renew(self) -> None:
        pass

    def trim(self) -> None:
        pass

    def acquire_missing(self) -> list[Acquired]:
        if self._has_left or not self._shown:
            return []
        if self._reached is None:
            self._reached = Reached(self._file.open() or KeptOffsets(offsets={}), now=self._clock())
        with self._writing:
            for queue, window in list(self._windows.items()):
                if window.closed:
                    self._reached.offsets[queue] = window.committable
                    del self._windows[queue]
        missing = sorted(self._shown - self._windows.keys())
        if not missing:
            return []
        ends = self._transport.end_offsets(self._topic)
        missing = [queue for queue in missing if queue in ends]
        with self._writing:  # no write may combine an old offset with a new timeline
            windows = self._begin(missing, ends, self._reached)
            self._windows |= {window.queue: window for window in windows}
            self._write(self._reached)
        return [Acquired(window, None, {}) for window in windows]

    def _begin(self, queues: Iterable[int], ends: Mapping[int, int], reached: Reached) -> list[OffsetWindow]:
        # A queue that was added while the consumer was stopped is consumed from its first message on.
        start = (lambda queue: 0) if reached.offsets else self._start
        at = {queue: reached.offsets[queue] if queue in reached.offsets else start(queue) for queue in queues}
        windows = []
        for queue, offset in at.items():
            first = reached.begin(queue, offset, ends[queue], self._timelines.get(queue, ""))
            if first < offset:
                logger.warning(
                    "%s/%d may have lost messages: going back from offset %d to %d", self._topic, queue, offset, first
                )
            windows.append(OffsetWindow(self._topic, queue, epoch=0, committed=first, deadline=inf))
        return windows

    def pull(self, limit: int, wait: float, *, without: Collection[int] = ()) -> list[PulledMessages]:
        wait = self._puller.wait_of(wait)
        offsets = {
            queue: window.next_offset
            for queue, window in self._windows.items()
            if queue in self._shown and queue not in without
        }
        if not offsets:
            self._puller.rest(min(wait, NOTHING_TO_PULL))
            return []
        try:
            batches = self._transport.pull(self._topic, offsets, limit=limit, wait=wait)
        except UnknownQueue:
            if not self._lose_from(self._transport.queue_count(self._topic)):
                self._puller.rest(min(wait, NOTHING_TO_PULL))
            return []
        pulled = []
        for batch in batches:
            window = self._windows[batch.queue]
            if window.add(batch.offsets):
                pulled.append(PulledMessages(window, list(batch.offsets), list(batch.bodies)))
        return pulled

    def _lose_from(self, count: int) -> bool:
        """Lose the queues from number ``count`` on: the topic was deleted, and made again with fewer queues. Return
        False if there are none."""
        gone = {queue for queue in self._windows if queue >= count}
        self._shown -= gone
        for queue in gone:
            self._windows[queue].close()
        return bool(gone)

    def commit(self) -> None:
        reached = self._reached
        if reached is None or not self._is_ahead(reached):
            return
        with self._writing:
            if self._is_ahead(reached):  # another thread may have written it while this one waited
                self._write(reached)

    def _is_ahead(self, reached: Reached) -> bool:
        """Return True if the file is out of date."""
        return reached.is_new or any(window.committable > window.committed for window in list(self._windows.values()))

    def _write(self, reached: Reached) -> None:
        """Write the offsets. The caller holds the lock."""
        windows = list(self._windows.values())
        offsets = {window.queue: window.committable for window in windows}
        try:
            self._file.write(reached.kept(offsets))
        except OSError as error:
            reached.is_new = True
            self._warn(error)
            return
        for window in windows:
            window.committed = offsets[window.queue]

    def _warn(self, error: OSError) -> None:
        if time.monotonic() >= self._next_warning:
            self._next_warning = time.monotonic() + WARN_EVERY
            logger.error(
                "the offsets in %s cannot be written (%s): what is handled meanwhile comes again after the next start",
                self._file.path,
                error,
            )

    def release_drained(self, held: Callable[[OffsetWindow], int] = lambda window: 0) -> None:
        """After `leave`: commit, and unlock the file for another consumer."""
        if self._has_left:
            if self._windows and self._reached is not None:
                with self._writing:
                    self._write(self._reached)
            self._windows.clear()
            self._file.close()
