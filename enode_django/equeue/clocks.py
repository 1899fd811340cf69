"""A clock for leases and other times that must continue while the machine is suspended."""

from __future__ import annotations

import time

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def boot_time() -> float:
    """Return seconds since some moment. They include the time for which the machine was suspended, where the platform
    supports it (Linux). `time.monotonic` stands still meanwhile: an owner would trust leases that others have taken
    over.

    Do not compare deadlines of leases with `time.monotonic`.
    """
    return time.clock_gettime(_CLOCK)
