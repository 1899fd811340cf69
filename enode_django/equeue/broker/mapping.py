"""How much of the message files is mapped into memory."""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Callable

IDLE_SECONDS = 5.0
"""Above the low watermark, a file that nobody read for so long is unmapped."""


class MappedMemory:
    """Keeps mapped bytes below ``high``; the owner lets idle files go while they are above ``low``.

    Mapped bytes are address space that the kernel may fill with the file and empty again as it likes, so the limits are
    a bound for what the broker can take of the page cache at most. They default to 40 % and 75 % of the machine's
    memory.
    """

    def __init__(
        self, low: int | None = None, high: int | None = None, *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        self.low = physical * 40 // 100 if low is None else low
        self.high = physical * 75 // 100 if high is None else high
        self.monotonic = monotonic
        self.mapped = 0

    @property
    def above_low(self) -> bool:
        return self.mapped > self.low

    def map(self, descriptor: int, length: int) -> mmap.mmap | None:
        """The file's first ``length`` bytes for reading, or None when that would go above the high watermark."""
        if not length or self.mapped + length > self.high:
            return None
        try:
            mapped = mmap.mmap(descriptor, length, access=mmap.ACCESS_READ)
        except OSError:  # no address space or no file descriptor left: reading works without
            return None
        self.mapped += length
        return mapped

    def unmap(self, mapped: mmap.mmap) -> None:
        self.mapped -= len(mapped)
        mapped.close()
