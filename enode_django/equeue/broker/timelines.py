"""Copies of a broker's directory: how their state differs, and the names of timelines after a copy. No I/O.

A broker that starts with an older copy of its directory reuses offsets under which consumers have seen other messages.
So a copy contains no timeline's name, and its first start begins a new timeline. From then on the name of a timeline
says, for each queue, at which offset the copy ended: ``<timeline>@<copy>:<offset>``.
"""

from __future__ import annotations

import secrets
import uuid
from collections.abc import Mapping
from typing import Any

import msgpack

MOST_SKIPPED = 1 << 20
_BEFORE_TIMELINE, _TIMELINE = 4, 2
"""The numbers of fields in a checkpoint's state: before the timeline, and of the timeline."""


def copied(state: bytes) -> bytes:
    """Return the state of a checkpoint for a copy of the directory: without a timeline, so that the copy's first start
    begins one. The rest is not decoded, since it may be large."""
    unpacker = msgpack.Unpacker(max_buffer_size=len(state))
    unpacker.feed(state)
    unpacker.read_array_header()
    for _ in range(_BEFORE_TIMELINE):
        unpacker.skip()
    last = unpacker.tell()
    for _ in range(_TIMELINE):
        unpacker.skip()
    return state[:last] + msgpack.packb("") + msgpack.packb(True) + state[unpacker.tell() :]


def run_after_copy(run: int) -> int:
    """Return the number of the run that starts with a copy made in ``run``.

    The broker that was copied may have gone on, and another copy may have been started. A random step makes it unlikely
    that two of their runs have the same number; nothing else tells them apart. Epochs rise with it.
    """
    return run + 1 + secrets.randbelow(MOST_SKIPPED)


class Copies:
    """The newest copy that the directory comes from, and where it ended. ``name`` is empty if it comes from none."""

    def __init__(self, name: str = "", ends: Mapping[str, Mapping[int, int]] | None = None) -> None:
        self.name = name
        self._ends = ends or {}

    def plain(self) -> list[Any]:
        return [self.name, self._ends]

    def begin(self, ends: Mapping[str, Mapping[int, int]]) -> Copies:
        """Return the copies after the first start of this directory, itself a copy: its queues end at ``ends``. For a
        copy of a copy the lower ends count: some consumers know neither copy."""
        return Copies(uuid.uuid4().hex, {topic: self._lower(topic, queues) for topic, queues in ends.items()})

    def _lower(self, topic: str, ends: Mapping[int, int]) -> dict[int, int]:
        if not self.name:
            return dict(ends)
        known = self._ends.get(topic, {})
        return {queue: min(end, known.get(queue, 0)) for queue, end in ends.items()}

    def timeline(self, name: str, topic: str, queue: int) -> str:
        """Return the name of a queue's timeline. A queue that the copy does not have begins at 0."""
        if not self.name:
            return name
        return f"{name}@{self.name}:{self._ends.get(topic, {}).get(queue, 0)}"
