"""Set Python's cycle collector and the allocator under it for a worker.

What is under way between the mailboxes survives every young collection without ever being part of a cycle, so with
the interpreter's defaults a third of a worker's time goes into looking through it again and again.
"""

from __future__ import annotations

import ctypes
import gc

THRESHOLDS = (50_000, 20, 10)
"""New containers until the youngest are looked through, and how often that until the next generation is, too."""


def collect_seldom() -> None:
    """To be called when everything is imported: what exists now is never looked at again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)


# Of glibc's malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
LARGE = 256 * 1024
TRIM = 2 * 1024 * 1024


def map_large_blocks() -> None:
    """Let glibc give what is large and freed back for good; does nothing where the C library is another.

    By itself glibc stops doing so for every size that was freed once, and the tables of dictionaries that fill, are
    dropped and begin anew leave holes between what stays.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, LARGE)
        mallopt(_M_TRIM_THRESHOLD, TRIM)
