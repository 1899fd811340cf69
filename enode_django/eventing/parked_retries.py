"""Automatic retries of a subscriber's parked events."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from enode_django.eventing import parking
from enode_django.eventing.code import code_fingerprint
from enode_django.eventing.event_subscription import EventSubscription
from enode_django.eventing.parking import Parked
from enode_django.eventing.unparking import retry_for_a_while
from enode_django.exceptions import UnknownMessageType

logger = logging.getLogger("enode_django.subscribers")

LOOK_AGAIN = 5.0
"""Seconds between checks whether something is due."""
AT_ONCE = 1.0
"""The most seconds for catching up with one aggregate before new messages have their turn."""


class ParkedRetries:
    """Tries parked aggregates again that are due, or that failed with other code. `tick` is called by the subscriber's
    thread, in the worker that owns the first queue."""

    def __init__(self, subscription: EventSubscription, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._subscription = subscription
        self._clock = clock
        self.next_step = clock()
        """The time of the clock at which `tick` has something to do next."""
        self.since: float | None = None
        """The time of the clock after which an aggregate that fails again is left for later; None: it is tried as often
        as it is due."""

    def tick(self) -> None:
        """Try one aggregate again, if one is due. Blocks on the databases."""
        began = self._clock()
        if began < self.next_step:
            return
        runner = self._subscription.runner
        fingerprint = code_fingerprint(runner.subscriber)
        rested = 0.0 if self.since is None else began - self.since
        id = parking.claim_due(runner.alias, runner.key, fingerprint, rested=rested)
        if id is None:
            self.next_step = began + LOOK_AGAIN
            return
        self._log(id, retry_for_a_while(self._subscription, id, lambda: self._clock() - began > AT_ONCE))

    def _log(self, id: str, parked: Parked | None) -> None:
        name = self._subscription.subscriber.name
        extra = {"subscriber": name, "aggregate_root_id": id}
        if parked is None:
            logger.info("%s has tried %s again: it goes on", name, id, extra=extra)
            return
        until = "by itself when the code has changed" if parked.next_try_at is None else f"at {parked.next_try_at}"
        told = "%s has tried %s again: it is parked by %s, and tried next %s"
        # If its type is still unknown, nothing has changed since it was parked, and that was logged.
        level = logging.DEBUG if parked.error_type == UnknownMessageType.__name__ else logging.WARNING
        logger.log(level, told, name, id, parked.error_type, until, extra=extra)
