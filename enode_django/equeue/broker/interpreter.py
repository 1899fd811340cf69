"""Set up Python's interpreter for a broker's process: its event loop must never pause for long."""

from __future__ import annotations

import gc
import sys
import time

THRESHOLDS = (2_000, 10, 1_000)
"""Arguments of `gc.set_threshold`. A collection of the youngest generation takes up to half a millisecond for a
thousand containers, a full one tens of milliseconds in a large broker. Full collections are rare, since the objects of
a request have no cycles."""
SWITCH_SECONDS = 0.0002
"""The time after which a thread that packs a checkpoint or reads indexes gives the interpreter back to the loop. The
loop releases it whenever it reads, writes or takes a checksum, some dozen times for one answer, and may have to wait
this long each time."""
REST_SECONDS = 0.0002
"""The pause of such a thread after each small portion."""


def favour_loop() -> None:
    """Set the garbage collector and the switch interval. Called when everything is imported and read from the disk: the
    objects that exist now are never collected."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
    sys.setswitchinterval(SWITCH_SECONDS)


def let_others_run() -> None:
    """Pause for a moment. A thread that works for long without waiting for the disk calls this repeatedly. Otherwise it
    and the event loop share the interpreter half and half, and the loop takes twice as long."""
    time.sleep(REST_SECONDS)
