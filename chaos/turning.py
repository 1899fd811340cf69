"""Make the clock and the disk of this process follow `Dials`. Monotonic clocks do not change."""

from __future__ import annotations

import ctypes
import datetime
import functools
import gc
import os
import time
from collections.abc import Callable
from typing import Any

from chaos.dials import Dials

WRITES = ("fsync", "fdatasync", "pwrite", "pwritev")
_real_time, _real_time_ns = time.time, time.time_ns


def step_clock(dials: Dials) -> None:
    """Make `time.time`, `time.time_ns`, `datetime.now` and `datetime.utcnow` add the clock's offset from now on.

    The methods are replaced in the class `datetime` itself, because encoders check for exactly this type.
    """

    def shifted() -> float:
        return _real_time() + dials.clock_offset

    def shifted_ns() -> int:
        return _real_time_ns() + int(dials.clock_offset * 1e9)

    def now(cls: type[datetime.datetime], tz: datetime.tzinfo | None = None) -> datetime.datetime:
        return cls.fromtimestamp(shifted(), tz)

    def utcnow(cls: type[datetime.datetime]) -> datetime.datetime:
        return cls.fromtimestamp(shifted(), datetime.UTC).replace(tzinfo=None)

    time.time, time.time_ns = shifted, shifted_ns
    (attributes,) = gc.get_referents(datetime.datetime.__dict__)
    attributes["now"], attributes["utcnow"] = classmethod(now), classmethod(utcnow)
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(datetime.datetime))


def slow_disk(dials: Dials) -> None:
    """Make the functions `WRITES` of `os` wait for the disk's delay first."""
    for name in WRITES:
        if hasattr(os, name):
            setattr(os, name, _delayed(getattr(os, name), dials))


def _delayed(write: Callable[..., Any], dials: Dials) -> Callable[..., Any]:
    @functools.wraps(write)
    def delayed(*arguments: Any, **named: Any) -> Any:
        if seconds := dials.disk_delay:
            time.sleep(seconds)
        return write(*arguments, **named)

    return delayed
