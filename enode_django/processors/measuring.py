"""Measure durations and outcomes of commands, batch by batch, so that commands do not wait for it."""

from __future__ import annotations

import threading
import time
from bisect import bisect_right
from collections import deque
from collections.abc import MutableMapping, Sequence
from math import inf
from weakref import WeakKeyDictionary

from enode_django.bus.results import CommandStatus, Crash, stored_result
from enode_django.commanding.decisions import Finished
from enode_django.equeue.offsets import OffsetWindow
from enode_django.ids import made_at
from enode_django.processors.statistics import OutcomeCounts, Statistics

LONGEST = 86_400.0
"""Seconds. A command that seems to be older is not measured: its id probably holds no time."""


class PullTimes:
    """The times at which the messages of each window were pulled. Used by the puller and the event mailboxes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: MutableMapping[OffsetWindow, deque[tuple[int, float]]] = WeakKeyDictionary()

    def note(self, window: OffsetWindow, first: int, now: float) -> None:
        """Note that messages from this offset on were pulled at this time."""
        with self._lock:
            times = self._known.setdefault(window, deque())
            times.append((first, now))
            while len(times) > 1 and times[1][0] <= window.committable:
                times.popleft()

    def of(self, window: OffsetWindow, offset: int) -> float | None:
        with self._lock:
            times = self._known.get(window, ())
            place = bisect_right(times, (offset, inf))
            return times[place - 1][1] if place else None


class BatchMeter:
    """Counts what event mailboxes have stored. Latencies are those of one command of each batch."""

    def __init__(self, statistics: Statistics) -> None:
        self._statistics = statistics
        self._pulls = PullTimes()

    def pulled(self, window: OffsetWindow, offsets: Sequence[int]) -> None:
        """Note a pull. Called by the puller."""
        if offsets:
            self._pulls.note(window, offsets[0], time.monotonic())

    def stored(self, finished: Sequence[Finished], conflicts: int, store_seconds: float | None) -> None:
        """Count a batch. Called by the event mailbox as soon as the batch is durable."""
        self._statistics.count_batch(len(finished), conflicts, outcomes_of(finished))
        sample = finished[len(finished) // 2].envelope if finished else None
        if sample is None:
            self._statistics.measure(store_seconds=store_seconds)
            return
        pulled = self._pulls.of(sample.window, sample.offset) if sample.window is not None else None
        self._statistics.measure(
            store_seconds=store_seconds,
            pulled_to_durable=None if pulled is None else time.monotonic() - pulled,
            sent_to_durable=_age(sample.id),
        )


def outcomes_of(finished: Sequence[Finished]) -> OutcomeCounts:
    refused = failed = unchanged = crashed = 0
    for one in finished:
        record, result = one.record, one.result
        if record is not None:
            if record.version is None:
                is_crash = bool(one.envelope.crash_handler) and stored_result(record).status is CommandStatus.FAILED
                failed += is_crash
                refused += not is_crash
        elif isinstance(result, Crash):
            crashed += 1
        elif result is not None:
            refused += result.status is CommandStatus.REFUSED
            failed += result.status is CommandStatus.FAILED
            unchanged += result.status is CommandStatus.NOTHING_CHANGED
    succeeded = len(finished) - refused - failed - unchanged - crashed
    return OutcomeCounts(succeeded, unchanged, refused, failed, crashed)


def _age(command_id: str) -> float | None:
    made = made_at(command_id)
    seconds = -1.0 if made is None else time.time() - made
    return seconds if 0 <= seconds < LONGEST else None
