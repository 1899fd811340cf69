"""Set Python's interpreter for a broker's process: its event loop must never stand still for long."""

from __future__ import annotations

import gc
import sys

THRESHOLDS = (10_000, 20, 100)
"""New containers until the youngest are looked through, and how often that until the next generation is, too. To look
through all of them takes tens of milliseconds in a large broker; what a request makes has no cycles."""
SWITCH_SECONDS = 0.001
"""A thread that packs a checkpoint or reads indexes gives the interpreter to the loop after so long."""


def favour_loop() -> None:
    """To be called when everything is imported and read from the disk: what exists now is never looked at again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
    sys.setswitchinterval(SWITCH_SECONDS)
