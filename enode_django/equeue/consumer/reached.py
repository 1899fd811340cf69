"""The offsets that a consumer has reached in a topic, and how far back it must go when messages may have been lost. No
I/O.

Whoever keeps offsets away from the messages cannot know which of them a crash of the queue has lost: those offsets are
given to other messages then, which it would pass over. So it remembers under which timeline it has reached an offset.
When a queue has another timeline, it goes back to where it had been a minute before: what is lost is younger. Behind a
broker that began anew with an older copy of its messages it goes back to where that copy ended: the timeline's name
says it.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping

from enode_django.equeue.offsets_file import KeptOffsets

SETTLED_AFTER = 60.0
"""Seconds after which a message counts as one that no crash can lose any more."""


class Reached:
    """`begin` is called by the pulling thread, `confirm` by the one that joins, `kept` by both.

    An offset is settled when its timeline rules `SETTLED_AFTER` seconds after it was reached.
    """

    def __init__(self, kept: KeptOffsets, *, now: float) -> None:
        self.offsets = dict(kept.offsets)
        self.is_new = False
        """True if `kept` returns something that it has not returned before, besides the offsets given to it."""
        self._settled = dict(kept.settled)
        self._timelines = dict(kept.timelines)
        self._confirmed: dict[int, int] = {}
        self._confirmed_at = now
        self._lock = threading.Lock()

    def begin(self, queue: int, offset: int, end: int, timeline: str) -> int:
        """Return where to consume a queue from that ends at ``end``: at ``offset``, or before it if it was reached
        under another timeline. Without a timeline ("") nobody can tell."""
        with self._lock:
            known = self._timelines.get(queue, "")
            if known and timeline and known != timeline:
                offset = min(offset, self._settled.get(queue, offset), _copy_ended(known, timeline, offset))
            offset = min(offset, end)
            self.offsets[queue] = offset
            self._settled[queue] = min(offset, self._settled.get(queue, offset))
            self._confirmed.pop(queue, None)  # it may be of the timeline before
            self._timelines[queue] = timeline or known
            self.is_new = True
            return offset

    def confirm(self, before: Mapping[int, int], timelines: Mapping[int, str], *, now: float) -> list[int]:
        """Take note that ``timelines`` rule after the offsets ``before`` were reached. Returns those of their queues
        that are to begin anew, since their timeline was another one."""
        with self._lock:
            if now - self._confirmed_at >= SETTLED_AFTER:
                self._settled |= self._of_timelines(self._confirmed, timelines)
                self._confirmed = self._of_timelines(before, timelines)
                self._confirmed_at = now
                self.is_new = True
            return [queue for queue in before if self._has_changed(queue, timelines)]

    def kept(self, offsets: Mapping[int, int]) -> KeptOffsets:
        """Return what to write down; ``offsets`` are of the queues that are being consumed."""
        with self._lock:
            self.is_new = False
            self.offsets |= offsets
            timelines = {queue: timeline for queue, timeline in self._timelines.items() if timeline}
            return KeptOffsets(offsets=dict(self.offsets), settled=dict(self._settled), timelines=timelines)

    def _of_timelines(self, offsets: Mapping[int, int], timelines: Mapping[int, str]) -> dict[int, int]:
        """Leave out queues whose timeline has changed since: it may have done so right after."""
        return {queue: offset for queue, offset in offsets.items() if not self._has_changed(queue, timelines)}

    def _has_changed(self, queue: int, timelines: Mapping[int, str]) -> bool:
        known, timeline = self._timelines.get(queue, ""), timelines.get(queue, "")
        return bool(known and timeline and known != timeline)


def _copy_ended(known: str, timeline: str, offset: int) -> int:
    """Return where the copy ended that the queue comes from since ``known`` ruled; ``offset`` if it comes from none.

    >>> _copy_ended("a", "b@copy:70", 90), _copy_ended("b@copy:70", "c@copy:70", 90), _copy_ended("a", "b", 90)
    (70, 90, 90)
    """
    copy, _, ended = timeline.partition("@")[2].partition(":")
    if not copy or copy == known.partition("@")[2].partition(":")[0] or not ended.isdecimal():
        return offset
    return int(ended)
