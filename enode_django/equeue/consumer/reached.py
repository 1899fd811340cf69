"""The offsets that a consumer has reached in a topic, and how far it must go back when messages may have been lost. No
I/O.

A consumer that keeps its offsets away from the messages cannot know which messages a crash of the queue has lost:
other messages get their offsets, and would be skipped. Therefore it remembers the timeline under which it reached an
offset. When a queue has a new timeline, it goes back to its offset of a minute before, since lost messages are
younger. Behind a broker that was restored from an older copy of its messages it goes back to the end of that copy,
which is part of the timeline's name.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping

from enode_django.equeue.offsets_file import KeptOffsets

SETTLED_AFTER = 60.0
"""Seconds after which no crash can lose a message."""


class Reached:
    """The offsets reached. The pulling thread calls `begin`, the joining thread `confirm`, both call `kept`.

    An offset is settled when its timeline is still current `SETTLED_AFTER` seconds after it was reached.
    """

    def __init__(self, kept: KeptOffsets, *, now: float) -> None:
        self.offsets = dict(kept.offsets)
        self.is_new = False
        """True if `kept` has something new to return, besides its argument."""
        self._settled = dict(kept.settled)
        self._timelines = dict(kept.timelines)
        self._confirmed: dict[int, int] = {}
        self._confirmed_at = now
        self._lock = threading.Lock()

    def begin(self, queue: int, offset: int, end: int, timeline: str) -> int:
        """Return where to begin to consume a queue that ends at ``end``: at ``offset``, or before it if it was reached
        under another timeline. An empty ``timeline`` means that it is unknown."""
        with self._lock:
            known = self._timelines.get(queue, "")
            if known and timeline and known != timeline:
                offset = min(offset, self._settled.get(queue, offset), _copy_ended(known, timeline, offset))
            offset = min(offset, end)
            self.offsets[queue] = offset
            self._settled[queue] = min(offset, self._settled.get(queue, offset))
            self._confirmed.pop(queue, None)  # it may belong to the previous timeline
            self._timelines[queue] = timeline or known
            self.is_new = True
            return offset

    def confirm(self, before: Mapping[int, int], timelines: Mapping[int, str], *, now: float) -> list[int]:
        """Note that ``timelines`` were current after the offsets ``before`` were reached. Return their queues whose
        timeline has changed: these must begin again."""
        with self._lock:
            if now - self._confirmed_at >= SETTLED_AFTER:
                self._settled |= self._of_timelines(self._confirmed, timelines)
                self._confirmed = self._of_timelines(before, timelines)
                self._confirmed_at = now
                self.is_new = True
            return [queue for queue in before if self._has_changed(queue, timelines)]

    def kept(self, offsets: Mapping[int, int]) -> KeptOffsets:
        """Return the value to write down. ``offsets`` are those of the queues being consumed."""
        with self._lock:
            self.is_new = False
            self.offsets |= offsets
            timelines = {queue: timeline for queue, timeline in self._timelines.items() if timeline}
            return KeptOffsets(offsets=dict(self.offsets), settled=dict(self._settled), timelines=timelines)

    def _of_timelines(self, offsets: Mapping[int, int], timelines: Mapping[int, str]) -> dict[int, int]:
        """Leave out queues whose timeline has changed since: it may have changed right after."""
        return {queue: offset for queue, offset in offsets.items() if not self._has_changed(queue, timelines)}

    def _has_changed(self, queue: int, timelines: Mapping[int, str]) -> bool:
        known, timeline = self._timelines.get(queue, ""), timelines.get(queue, "")
        return bool(known and timeline and known != timeline)


def _copy_ended(known: str, timeline: str, offset: int) -> int:
    """Return the end of the copy that the queue was restored from after ``known``; ``offset`` if there is none.

    >>> _copy_ended("a", "b@copy:70", 90), _copy_ended("b@copy:70", "c@copy:70", 90), _copy_ended("a", "b", 90)
    (70, 90, 90)
    """
    copy, _, ended = timeline.partition("@")[2].partition(":")
    if not copy or copy == known.partition("@")[2].partition(":")[0] or not ended.isdecimal():
        return offset
    return int(ended)
