"""Tune Python's cycle collector and the C allocator for a worker.

Objects on their way between the mailboxes survive young collections, but are never part of a cycle. With the
interpreter's defaults, a third of a worker's time is spent traversing them.
"""

from __future__ import annotations

import ctypes
import gc

THRESHOLDS = (200_000, 20, 10)
"""The number of new containers until the youngest generation is collected, and of collections until the next one is. A
collection traverses all commands on their way, of some ten containers each, so it must be rare compared with these.
Garbage in cycles, which this package makes only after errors, stays until then."""


def collect_seldom() -> None:
    """Make collections rare, and exclude all existing objects from them. Call it when everything is imported."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)


# Of glibc's malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
LARGE = 256 * 1024
TRIM = 2 * 1024 * 1024


def map_large_blocks() -> None:
    """Make glibc always return large freed blocks to the system. Does nothing with another C library.

    By default glibc stops returning blocks of a size once one was freed. Then the tables of dictionaries that grow, are
    dropped and grow again leave holes in the heap.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, LARGE)
        mallopt(_M_TRIM_THRESHOLD, TRIM)
