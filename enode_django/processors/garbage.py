"""How Python's cycle collector is set in a worker.

What is under way between the mailboxes survives every young collection without ever being part of a cycle, so with
the interpreter's defaults a third of a worker's time goes into looking through it again and again.
"""

from __future__ import annotations

import gc

THRESHOLDS = (50_000, 20, 10)
"""New containers until the youngest are looked through, and how often that until the next generation is, too."""


def collect_seldom() -> None:
    """To be called when everything is imported: what exists now is never looked at again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
