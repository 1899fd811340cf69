"""Counts of reads, by where the batches were."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class ReadCounts:
    """Batches read since the start: from the ring, from a file in the kernel's memory, from the disk."""

    ring: int = 0
    memory: int = 0
    file: int = 0
