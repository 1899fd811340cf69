"""Imported by the fork server of `multiprocessing`. Skips the garbage collection at its end, which takes long with
preloaded libraries: readers of its output wait for its end."""

from __future__ import annotations

import atexit
import gc

atexit.register(gc.freeze)
