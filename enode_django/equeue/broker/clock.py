"""The broker's time: the machine's clock, checked against the time elapsed since the start."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from enode_django.equeue.clocks import boot_time

logger = logging.getLogger(__name__)

SLACK = 60.0
"""Seconds by which the machine's clock may be set forward while the broker runs."""
FAR_AHEAD = 3_600.0
"""Seconds. A stored time that is further in the future comes from a wrong clock."""


class SteadyClock:
    """The machine's clock in seconds since 1970, but never ahead of the time elapsed since the start by more than
    `SLACK`.

    If the machine's clock jumps forward, the elapsed time counts: batches get no times from the future, and messages do
    not become old at once. A restart takes the clock as it is. A clock that is set back is followed.
    """

    def __init__(self, clock: Callable[[], float] = time.time, elapsed: Callable[[], float] = boot_time) -> None:
        self._clock = clock
        self._elapsed = elapsed
        self._offset = clock() - elapsed()
        self._jumped = False

    def __call__(self) -> float:
        given, latest = self._clock(), self._offset + self._elapsed() + SLACK
        if (given > latest) is not self._jumped:
            self._jumped = not self._jumped
            self._tell(given - latest + SLACK)
        return min(given, latest)

    def _tell(self, ahead: float) -> None:
        if self._jumped:
            logger.error(
                "the machine's clock was set forward by %.0f s while the broker ran; that is not believed: messages "
                "get the time that has passed since the start. If the clock is right now, start the broker again",
                ahead,
            )
        else:
            logger.warning("the machine's clock agrees again with the time since the broker's start")
