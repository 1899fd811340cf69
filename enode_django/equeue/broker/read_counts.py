"""Where reads are answered from."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class ReadCounts:
    """Batches that were read since the start: from the ring, from a mapped file, from a file that is not mapped."""

    ring: int = 0
    mapped: int = 0
    file: int = 0
