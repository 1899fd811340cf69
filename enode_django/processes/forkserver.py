"""Imported by the server process of `multiprocessing`, which has libraries preloaded: lets it end without looking for
garbage in them, since whoever reads its output waits for its end."""

from __future__ import annotations

import atexit
import gc

atexit.register(gc.freeze)
