"""The marker of the message that a worker is handling, in memory that outlives its process."""

from __future__ import annotations

from typing import Protocol


def position_of(queue: int, offset: int) -> int:
    """Return queue and offset as one number above 0 that fits eight bytes: 15 bits of queue, 48 of offset.

    >>> position_of(0, 0), queue_and_offset(position_of(3, 41))
    (1, (3, 41))
    """
    return ((queue << 48) | offset) + 1


def queue_and_offset(position: int) -> tuple[int, int]:
    return (position - 1) >> 48, (position - 1) & 0xFFFF_FFFF_FFFF


NOTHING_IN_FLIGHT = 0
"""The position in a marker while nothing is being handled."""


class InFlightMarker(Protocol):
    """Integers in memory that outlives the process. Index 0 holds the position of the message being handled."""

    def __getitem__(self, index: int, /) -> int: ...

    def __setitem__(self, index: int, position: int, /) -> None: ...
