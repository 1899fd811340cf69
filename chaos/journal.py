"""Files of happenings: one JSON object a line, each written at the moment that it tells of."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any


class Journal:
    """Append lines to a file. Safe for threads, and for a process that is killed: a line is one write."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def note(self, **happening: Any) -> None:
        """Write ``happening`` with the time ``at``, in seconds since 1970 by the machine's clock: the run may step the
        clock that `time.time` shows."""
        line = json.dumps({"at": time.clock_gettime(time.CLOCK_REALTIME), **happening})
        os.write(self._descriptor, line.encode() + b"\n")

    def close(self) -> None:
        os.close(self._descriptor)
