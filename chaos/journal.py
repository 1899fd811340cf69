"""Files of events in the run: one JSON object per line, written at the time of the event."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any


class Journal:
    """Appends lines to a file. Thread-safe, and safe for a process that is killed: a line is one write."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def note(self, **happening: Any) -> None:
        """Write ``happening`` with the time ``at``, in seconds since 1970 by the machine's clock, because the run may
        step the clock of `time.time`."""
        line = json.dumps({"at": time.clock_gettime(time.CLOCK_REALTIME), **happening})
        os.write(self._descriptor, line.encode() + b"\n")

    def close(self) -> None:
        os.close(self._descriptor)
