"""Limit the memory in which the kernel keeps the broker's message files."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

IDLE_SECONDS = 5.0
"""Above the low watermark, a file that was not read for this time is released."""


class HeldMemory:
    """Keeps the bytes of held files at or below ``high``; the owner drops idle files while they are above ``low``.

    A held file stays in the kernel's page cache after a read; a file that is not held is dropped from it. Files are not
    mapped: access to a mapped page that the disk cannot read ends the process (SIGBUS), whereas a read returns an
    error. Limits are in bytes; they default to 40 % and 75 % of the machine's memory.
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
        """Count ``length`` bytes as held. Return False and count nothing if that would exceed the high watermark."""
        if self.held + length > self.high:
            return False
        self.held += length
        return True

    def let_go(self, length: int) -> None:
        self.held -= length
