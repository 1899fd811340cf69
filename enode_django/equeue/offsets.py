"""Track how far a queue may be committed while its messages finish in any order.

A window is one lease of one queue: a queue that is acquired again gets a new window, and the old one is closed.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from enode_django.equeue.clocks import boot_time
from enode_django.equeue.messages import Commit, Receipt

_NO_EXTRA: Mapping[int, int] = MappingProxyType({})


class OffsetWindow:
    """The pulled and unfinished messages of one lease. No I/O.

    The pulling thread calls `add`, the publishing thread `finish` and `finish_many`; each call takes one short lock
    and a constant time per message. ``committable``, ``unfinished``, ``weight``, ``closed`` and ``deadline`` may be
    read by any thread without a lock. The lease is certainly held until ``deadline`` (seconds of ``clock``), which the
    renewing thread sets. The thread that loses or releases the queue calls `close`. The publishing thread may `keep` a
    receipt of a message before it finishes that message; the committing thread takes what is due from `next_commit`
    and calls `commit_taken` once the transport has accepted it.

    With offsets 5 to 8 added, and 6 and 7 finished, ``committable`` is 5; with 5 finished too it is 8; with all
    finished it is 9.
    """

    def __init__(
        self,
        topic: str,
        queue: int,
        *,
        epoch: int,
        committed: int,
        deadline: float,
        backlog_end: int = 0,
        clock: Callable[[], float] = boot_time,
    ) -> None:
        self.topic = topic
        self.queue = queue
        self.epoch = epoch
        self.deadline = deadline
        self.closed = False
        self.backlog_end = backlog_end
        """The end of the queue when it was acquired: another consumer may have worked on messages below it."""
        self.committed = committed
        """The offset that the transport has accepted; the committing thread sets it."""
        self.committable = committed
        """The lowest unfinished offset, or, when all are finished, the next expected one."""
        self.next_offset = committed
        """The offset to pull from."""
        self._in_order: deque[int] = deque()
        self._unfinished: set[int] = set()
        self._extra: dict[int, int] = {}
        self._weight = 0
        self._receipts: dict[int, bytes] = {}
        self._clock = clock
        self._lock = threading.Lock()

    @property
    def holds(self) -> bool:
        """Return True if the lease is certainly held at this moment. Called by any thread."""
        return not self.closed and self._clock() < self.deadline

    @property
    def unfinished(self) -> int:
        return len(self._unfinished)

    @property
    def weight(self) -> int:
        """Return the weight of all unfinished messages: 1 each, and more for a large one, as `add` was told."""
        return len(self._unfinished) + self._weight

    @property
    def held(self) -> int:
        """Return the number of messages from the lowest unfinished one to the last one pulled, finished or not."""
        return len(self._in_order)

    def add(self, offsets: Sequence[int], extra: Mapping[int, int] = _NO_EXTRA) -> bool:
        """Register pulled messages. Return False, and register none, if the window is closed. ``extra`` has, by
        offset, the weight of large messages beyond 1.

        Raises `ValueError` for offsets that do not ascend or lie before `next_offset`.
        """
        if not offsets:
            return not self.closed
        with self._lock:
            if self.closed:
                return False
            if offsets[0] < self.next_offset or not _ascending(offsets):
                raise ValueError(f"offsets must ascend from {self.next_offset}, got {offsets[0]!r} to {offsets[-1]!r}")
            self._in_order.extend(offsets)
            self._unfinished.update(offsets)
            if extra:
                self._extra.update(extra)
                self._weight = sum(self._extra.values())
            self.next_offset = offsets[-1] + 1
            self.committable = self._in_order[0]
            return True

    def finish(self, offset: int) -> None:
        self.finish_many((offset,))

    def finish_many(self, offsets: Sequence[int]) -> None:
        """Mark messages as finished. Finished and unknown offsets are ignored."""
        with self._lock:
            unfinished, in_order = self._unfinished, self._in_order
            unfinished.difference_update(offsets)
            if self._extra:
                self._weight -= sum(self._extra.pop(offset, 0) for offset in offsets)
            while in_order and in_order[0] not in unfinished:
                in_order.popleft()
            self.committable = in_order[0] if in_order else self.next_offset

    def keep(self, offset: int, receipt: bytes) -> None:
        """Keep a receipt of an unfinished message for the commit that moves past the message."""
        with self._lock:
            self._receipts[offset] = receipt

    def next_commit(self, keep: int) -> Commit:
        """Return the highest commit that is possible now, with the newest ``keep`` of the receipts that are due."""
        with self._lock:
            offset = self.committable
            due = sorted(kept for kept in self._receipts if kept < offset) if self._receipts and keep else ()
            return Commit(self.epoch, offset, [Receipt(kept, self._receipts[kept]) for kept in due[-keep:]], keep)

    def commit_taken(self, offset: int) -> None:
        """Note that the transport has accepted a commit up to ``offset``; drop the receipts below it."""
        with self._lock:
            self.committed = offset
            for kept in [kept for kept in self._receipts if kept < offset]:
                del self._receipts[kept]

    def close(self) -> None:
        """Accept no more messages. Safe to call twice."""
        with self._lock:
            self.closed = True


def _ascending(offsets: Sequence[int]) -> bool:
    if isinstance(offsets, range):
        return offsets.step > 0
    return all(a < b for a, b in itertools.pairwise(offsets))
