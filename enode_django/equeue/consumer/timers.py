"""Calls that one thread repeats."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence


class Timers:
    """Repeated calls. ``duties`` are (seconds, call) pairs: a call is due that many seconds after it last began."""

    def __init__(self, duties: Sequence[tuple[float, Callable[[], object]]]) -> None:
        now = time.monotonic()
        self._duties = [(now + every, every, call) for every, call in duties]

    def until_due(self) -> float:
        """Return the seconds until the next call is due, 0 when one is."""
        return max(0.0, min(due for due, _, _ in self._duties) - time.monotonic())

    def run_due(self) -> None:
        for place, (due, every, call) in enumerate(self._duties):
            now = time.monotonic()
            if now >= due:
                self._duties[place] = (now + every, every, call)
                call()

    def tend_until(self, wait: Callable[[float], bool], deadline: Callable[[], float]) -> bool:
        """Run due calls until ``wait``, which takes the most seconds to wait, returns True, or until ``deadline`` (of
        `time.monotonic`; it may become earlier meanwhile). Return the last result of ``wait``."""
        while not (done := wait(min(self.until_due(), max(0.0, deadline() - time.monotonic())))):
            if time.monotonic() >= deadline():
                break
            self.run_due()
        return done
