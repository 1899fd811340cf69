"""Mark a subscriber's work in hand, in memory that outlives its process.

The supervisor reads the notes of its event workers. It kills a worker whose note stays the same for longer than the
subscriber's time limit. The work noted when a worker ended is a *suspect*: it is handled alone from then on, and parked
when it was found at too many ends.
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

from enode_django.concurrency.in_flight import NOTHING_IN_FLIGHT, InFlightMarker, position_of
from enode_django.domain.handlers import HANDLER_ERRORS
from enode_django.eventing.pending import PendingAggregate

FIRST_QUEUE = 0
"""The worker that owns this queue sweeps. Deaths at work that no message has announced are counted there."""
_SWEPT = 1 << 47
"""A bit that is set in no message's offset."""

Hook = Callable[[], Any]


class InFlight:
    """The marker of one subscriber in one process. Its thread calls `begin`, `step` and `end`.

    ``note`` has two integers: the position that is being handled (`NOTHING_IN_FLIGHT`: none), and a number that differs
    for each stream, since all streams of an aggregate have one position. ``suspects`` is a lock that all subscribers of
    the process share, held by one that handles a suspect. After ``max_deaths`` a suspect is no longer handled.
    """

    def __init__(
        self, note: InFlightMarker | None = None, suspects: threading.Lock | None = None, *, max_deaths: int = 3
    ) -> None:
        self.max_deaths = max_deaths
        self._note: InFlightMarker = [NOTHING_IN_FLIGHT, 0] if note is None else note
        self.suspects = suspects or threading.Lock()
        self._steps = 0

    def begin(self, work: PendingAggregate, version: int) -> None:
        """Note that handlers are about to be called for the work, whose next version is ``version``."""
        self.step()
        self._note[0] = place_of(work, version)

    def step(self) -> None:
        """Note that handlers are about to be called for the next stream of the work: they have the whole time limit."""
        self._steps += 1
        self._note[1] = self._steps

    def end(self) -> None:
        """Note that no handler runs: time does not count as a handler's from now on. Safe to call twice."""
        self._note[0] = NOTHING_IN_FLIGHT

    def around(self, work: PendingAggregate) -> Callable[[Hook], Hook]:
        """Return a wrapper for hooks that run after the commit of a batch, so that their time is limited, too.

        The aggregate that a hook belongs to is unknown, so ``work`` stands for the batch. It is handled already: if the
        worker is killed, nothing is left to do for it.
        """

        def watched(hook: Hook) -> Hook:
            @wraps(hook)
            def call() -> Any:
                self.begin(work, 0)
                try:
                    return hook()
                except Exception:
                    raise
                except HANDLER_ERRORS as error:  # which Django would not log, and which would end the worker
                    raise RuntimeError(
                        f"a function that was given to on_commit raised {error!r}; let it return, or raise an Exception"
                    ) from error
                finally:
                    self.end()

            return call

        return watched


def place_of(work: PendingAggregate, version: int) -> int:
    """Return the position at which deaths of this work are counted: that of its first message. A work without messages
    was found by a sweep; its position is made of its id and ``version``."""
    if work.messages:
        first = work.messages[0]
        return position_of(first.window.queue, first.offset)
    return position_of(FIRST_QUEUE, _swept_offset(work.aggregate_root_id, version))


def suspect_swept(work: PendingAggregate, version: int, deaths: Mapping[int, int]) -> None:
    """Make a suspect of a work without messages, at its next ``version``, if the first queue's ``deaths`` name it."""
    offset = _swept_offset(work.aggregate_root_id, version)
    work.deaths = deaths.get(offset, 0)
    work.suspect = any(known >> 16 == offset >> 16 for known in deaths)


def is_of_a_sweep(offset: int) -> bool:
    """Return True for a number that stands for an offset in `place_of` because no message has announced the work."""
    return offset >= _SWEPT


def _swept_offset(aggregate_root_id: str, version: int) -> int:
    """Return 48 bits: the highest one, 31 of a checksum of the id, 16 of the version."""
    return _SWEPT | (zlib.crc32(aggregate_root_id.encode()) & 0x7FFF_FFFF) << 16 | version & 0xFFFF
