"""A circuit breaker: a failed service is not called for a while."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class Breaker:
    """A breaker that is open for ``pause`` seconds after a failure. Any thread may call it; nothing blocks.

    >>> now = 100.0
    >>> breaker = Breaker(5.0, clock=lambda: now)
    >>> breaker.is_open, breaker.trip(), breaker.is_open, breaker.trip()
    (False, True, True, False)
    >>> now = 105.0
    >>> breaker.is_open
    False
    """

    def __init__(self, pause: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.pause = pause
        self._clock = clock
        self._until = float("-inf")
        self._lock = threading.Lock()

    @property
    def is_open(self) -> bool:
        return self._clock() < self._until

    def trip(self) -> bool:
        """Open the breaker. Return True if it was closed: one of several callers that fail together reports it."""
        with self._lock:
            was_closed = not self.is_open
            if was_closed:
                self._until = self._clock() + self.pause
            return was_closed
