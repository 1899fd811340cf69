"""All queues of a topic for one consumer, which keeps its offsets in a file of its own."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import threading
from collections.abc import Callable, Collection, Mapping
from math import inf
from pathlib import Path
from typing import IO
from urllib.parse import quote

from enode_django.equeue.consumer import LOOK_AGAIN, NOTHING_TO_PULL, Acquired, PulledMessages
from enode_django.equeue.offsets import OffsetWindow
from enode_django.equeue.transports.base import LONG_POLL, Transport
from enode_django.equeue.waking import PullingThread
from enode_django.exceptions import QueueError

logger = logging.getLogger("enode_django.equeue")


class OffsetsFile:
    """``<group>@<topic>.json`` in a directory, and a lock file beside it: one consumer at a time has them."""

    def __init__(self, directory: Path, group: str, topic: str) -> None:
        self.path = directory / f"{quote(group, safe='')}@{quote(topic, safe='')}.json"
        self._lock: IO[bytes] | None = None

    def open(self) -> dict[int, int] | None:
        """Lock it, and read the offsets by queue; None when there is no file yet. Raises `QueueError` when another
        consumer has it, or when it is damaged."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        lock = self.path.with_suffix(".lock").open("ab")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            lock.close()
            raise QueueError(
                f"another consumer has the offsets in {str(self.path)!r}; give each consumer a directory of its own"
            ) from error
        self._lock = lock
        try:
            return self._read()
        except QueueError:
            self.close()
            raise

    def _read(self) -> dict[int, int] | None:
        try:
            plain = json.loads(self.path.read_bytes())["offsets"]
            offsets = {int(queue): offset for queue, offset in plain.items()}
            if any(type(offset) is not int or offset < 0 for offset in offsets.values()):
                raise ValueError(f"an offset among {plain!r} is no number from 0 on")
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise QueueError(
                f"the offsets in {str(self.path)!r} cannot be read ({error}); put a copy of the file in its place, or "
                "delete it and begin where a new consumer begins"
            ) from error
        return offsets

    def write(self, offsets: Mapping[int, int]) -> None:
        """In one step, and durable when it returns. Raises `OSError`."""
        aside = self.path.with_suffix(".new")
        with aside.open("w", encoding="utf-8") as file:
            json.dump({"offsets": {str(queue): offset for queue, offset in sorted(offsets.items())}}, file)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(self.path)
        directory = os.open(self.path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    def close(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None


class BroadcastQueues:
    """What `QueueConsumer` is for a group's share of a topic, for the whole topic: without leases, since nobody else
    has these offsets. The threads are the same: ``start`` says where a queue begins that has no offset yet."""

    def __init__(
        self,
        transport: Transport,
        *,
        topic: str,
        file: OffsetsFile,
        start: Callable[[int], int],
        long_poll: float = LONG_POLL,
    ) -> None:
        self._transport = transport
        self._topic = topic
        self._file = file
        self._start = start
        self._offsets: dict[int, int] | None = None
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
        reached = [(window, window.next_offset) for window in list(self._windows.values())]
        states = self._transport.queues(self._topic)
        for window, offset in reached:
            if offset > states[window.queue].end:  # a broker's machine has lost its power, and the newest messages
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
        """Return False while a queue is to be taken, or to be taken anew."""
        windows = list(self._windows.values())
        return self._shown <= {window.queue for window in windows} and not any(window.closed for window in windows)

    def renew(self) -> None:
        pass

    def trim(self) -> None:
        pass

    def acquire_missing(self) -> list[Acquired]:
        if self._has_left or not self._shown:
            return []
        if self._offsets is None:
            self._offsets = self._file.open() or {}
        for queue, window in list(self._windows.items()):
            if window.closed:
                self._offsets[queue] = window.committable
                del self._windows[queue]
        missing = sorted(self._shown - self._windows.keys())
        if not missing:
            return []
        ends = self._transport.end_offsets(self._topic)
        acquired = [Acquired(self._window(queue, ends[queue], self._offsets), None, {}) for queue in missing]
        for window, _, _ in acquired:
            self._windows[window.queue] = window
            self._offsets[window.queue] = window.committed
        self._write()
        return acquired

    def _window(self, queue: int, end: int, offsets: dict[int, int]) -> OffsetWindow:
        # A queue that was added while nobody looked is consumed from its first message on.
        offset = offsets.get(queue, 0 if offsets else self._start(queue))
        if offset > end:
            logger.warning("%s/%d ends at %d, before offset %d", self._topic, queue, end, offset)
            offset = end
        return OffsetWindow(self._topic, queue, epoch=0, committed=offset, deadline=inf)

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
        pulled = []
        for batch in self._transport.pull(self._topic, offsets, limit=limit, wait=wait):
            window = self._windows[batch.queue]
            if window.add(batch.offsets):
                pulled.append(PulledMessages(window, list(batch.offsets), list(batch.bodies)))
        return pulled

    def commit(self) -> None:
        if any(window.committable > window.committed for window in list(self._windows.values())):
            self._write()

    def _write(self) -> None:
        with self._writing:
            windows = list(self._windows.values())
            offsets = {window.queue: window.committable for window in windows}
            self._file.write({**(self._offsets or {}), **offsets})
            for window in windows:
                window.committed = offsets[window.queue]

    def release_drained(self, held: Callable[[OffsetWindow], int] = lambda window: 0) -> None:
        """After `leave`: commit, and let another consumer have the file."""
        if self._has_left:
            if self._windows:
                self._write()
            self._windows.clear()
            self._file.close()
