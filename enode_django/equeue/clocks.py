"""The clock that leases are held against, and other times that must go on while the machine is suspended."""

from __future__ import annotations

import time

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def boot_time() -> float:
    """Return seconds since some moment, those included for which the machine was suspended, where the platform can
    tell (Linux). `time.monotonic` stands still meanwhile: by it an owner would believe in leases that others have taken
    over.

    Deadlines of leases are not to be compared with `time.monotonic`.
    """
    return time.clock_gettime(_CLOCK)
