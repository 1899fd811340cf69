"""The broker's time: the machine's clock, as far as it can be believed."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from enode_django.equeue.clocks import boot_time

logger = logging.getLogger(__name__)

SLACK = 60.0
"""Seconds by which the machine's clock may be set forward while the broker runs."""
FAR_AHEAD = 3_600.0
"""Seconds. A stored time that lies further in the future than this was taken from a wrong clock."""


class SteadyClock:
    """Seconds since 1970 that never run ahead of the time that has passed since the start by more than `SLACK`.

    If the machine's clock jumps forward, the time goes on from where it was: batches get no times from the future, and
    nothing becomes old at once. A restart believes the clock again. One that is set back is followed.
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
