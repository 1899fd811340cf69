"""Mark what a subscriber is handling, in memory that outlives its process.

The supervisor reads the notes of its event workers. A note that stays the same for longer than the subscriber's time
limit has its worker killed; and what was noted at the end of a worker is a *suspect*: handled alone from then on, and
parked when it was found at too many ends.
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from typing import Any

from enode_django.concurrency.in_flight import NOTHING_IN_FLIGHT, InFlightMarker, position_of
from enode_django.eventing.pending import PendingAggregate

FIRST_QUEUE = 0
"""Whoever owns it sweeps; deaths at what no message has announced are counted there."""
_SWEPT = 1 << 47
"""Above all offsets of messages."""

Hook = Callable[[], Any]


class InFlight:
    """The marker of one subscriber in one process. `alone`, `begin`, `step` and `end` are called by the subscriber's
    thread.

    ``note`` has two integers: the position that is being handled (`NOTHING_IN_FLIGHT`: none), and a number that is
    another one for each stream, since all streams of an aggregate have one position. ``suspects`` is a lock that all
    subscribers of the process share. After ``max_deaths`` a suspect is not handled any more.
    """

    def __init__(
        self, note: InFlightMarker | None = None, suspects: threading.Lock | None = None, *, max_deaths: int = 3
    ) -> None:
        self.max_deaths = max_deaths
        self._note: InFlightMarker = [NOTHING_IN_FLIGHT, 0] if note is None else note
        self._suspects = suspects or threading.Lock()
        self._steps = 0

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Let no other subscriber of the process handle a suspect inside the block."""
        with self._suspects:
            yield

    def begin(self, work: PendingAggregate, version: int) -> None:
        """Handlers are going to be called for the work, ``version`` being the first one that it has not reached."""
        self.step()
        self._note[0] = place_of(work, version)

    def step(self) -> None:
        """Handlers are going to be called for the next stream of the work: they have the whole time limit."""
        self._steps += 1
        self._note[1] = self._steps

    def end(self) -> None:
        """No handler runs. What takes long from now on is not the fault of a handler. Safe to call twice."""
        self._note[0] = NOTHING_IN_FLIGHT

    def around(self, work: PendingAggregate) -> Callable[[Hook], Hook]:
        """Return what wraps a hook that runs after the commit of a batch, so that its time is limited, too.

        Nobody knows whose hook it is, so ``work`` stands for the batch. It is handled by then: when the worker is
        killed, nothing is left to be done for it.
        """

        def watched(hook: Hook) -> Hook:
            @wraps(hook)
            def call() -> Any:
                self.begin(work, 0)
                try:
                    return hook()
                finally:
                    self.end()

            return call

        return watched


def place_of(work: PendingAggregate, version: int) -> int:
    """Return the position that deaths of this work are counted at: that of its first message. If it has none, because
    a sweep has found it, one that is made of its id and the version at which it stands."""
    if work.messages:
        first = work.messages[0]
        return position_of(first.window.queue, first.offset)
    return position_of(FIRST_QUEUE, _swept_offset(work.aggregate_root_id, version))


def suspect_swept(work: PendingAggregate, version: int, deaths: Mapping[int, int]) -> None:
    """Let a work without messages, which stands before ``version``, be a suspect if ``deaths`` of the first queue name
    its aggregate."""
    offset = _swept_offset(work.aggregate_root_id, version)
    work.deaths = deaths.get(offset, 0)
    work.suspect = any(known >> 16 == offset >> 16 for known in deaths)


def is_of_a_sweep(offset: int) -> bool:
    """Return True for what stands in the place of an offset where no message has announced anything."""
    return offset >= _SWEPT


def _swept_offset(aggregate_root_id: str, version: int) -> int:
    """48 bits: the highest one, 31 of a checksum of the id, 16 of the version."""
    return _SWEPT | (zlib.crc32(aggregate_root_id.encode()) & 0x7FFF_FFFF) << 16 | version & 0xFFFF
