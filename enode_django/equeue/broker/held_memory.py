"""Limit the memory that the kernel keeps of the message files for the broker."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

IDLE_SECONDS = 5.0
"""Above the low watermark, a file that nobody read for so long is let go of."""


class HeldMemory:
    """Keeps the bytes of held files below ``high``; the owner lets idle files go while they are above ``low``.

    A held file stays in the kernel's page cache after it was read; one that is not held is dropped from it. Files are
    not mapped: touching a mapped page that the disk cannot read ends the process (SIGBUS), a read says so. Limits in
    bytes; they default to 40 % and 75 % of the machine's memory.
    """

    def __init__(
        self, low: int | None = None, high: int | None = None, *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        self.low = physical * 40 // 100 if low is None else low
        self.high = physical * 75 // 100 if high is None else high
        self.monotonic = monotonic
        self.held = 0

    @property
    def above_low(self) -> bool:
        return self.held > self.low

    def hold(self, length: int) -> bool:
        """Count ``length`` bytes as held. Return False, and count nothing, above the high watermark."""
        if self.held + length > self.high:
            return False
        self.held += length
        return True

    def let_go(self, length: int) -> None:
        self.held -= length
