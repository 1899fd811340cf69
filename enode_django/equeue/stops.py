"""Counting the signals that ask a command to stop: the first one lets it drain, a second one aborts."""

from __future__ import annotations

import time
from collections.abc import Callable
from math import inf

AS_ONE = 1.0
"""Seconds in which several signals count as one. A terminal or a service manager may signal the process group, and a
parent the process: ``timeout`` does both within microseconds, ``foreman`` after Ctrl-C within milliseconds."""


class Stops:
    """``count`` is the number of stops that were asked for. A signal handler calls `add`."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._counted = -inf
        self.count = 0

    def add(self) -> None:
        now = self._clock()
        if now - self._counted >= AS_ONE:
            self._counted = now
            self.count += 1
