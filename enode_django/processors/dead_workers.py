"""Tell the queue which workers are dead, and their work in hand, so that others go on without waiting for leases."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

from enode_django.concurrency.outages import Attempts
from enode_django.equeue.transport import Transport
from enode_django.exceptions import EnodeError, PartlyUnavailable

logger = logging.getLogger("enode_django.supervisor")

RETRY_DELAY = 1.0


class Death(NamedTuple):
    group: str
    member: str
    deaths: Collection[tuple[int, int]]


class DeadWorkers:
    """Buries dead workers, and tries again later if the queue is unavailable: until then, or until its leases end, no
    worker gets a dead worker's queues.

    ``groups`` are the workers' consumer groups, all on ``topic``. Used by one thread; `tick` blocks on the transport.
    """

    def __init__(
        self,
        transport: Transport,
        topic: str,
        groups: Sequence[str],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._transport = transport
        self._topic = topic
        self._groups = groups
        self._clock = clock
        self._waiting: list[Death] = []
        self._due = 0.0
        self._attempts = Attempts()

    def add(self, member: str, deaths: Mapping[str, Collection[tuple[int, int]]]) -> None:
        """Note a dead worker. ``deaths`` has, for each group, queue and offset of the messages that it was at."""
        self._waiting += (Death(group, member, deaths.get(group, ())) for group in self._groups)
        self._due = self._clock()  # at a shutdown, nobody calls again after the last death

    def tick(self) -> None:
        if self._clock() < self._due:
            return
        for death in list(self._waiting):
            try:
                self._transport.bury(death.group, self._topic, death.member, death.deaths)
            except EnodeError as error:
                if error.retriable:
                    self._attempts.failed(error)
                    self._due = self._clock() + RETRY_DELAY
                    if isinstance(error, PartlyUnavailable):
                        continue  # other groups lie elsewhere
                    return
                logger.error("%s cannot be told of %s: %s", death.group, death.member, error)
            self._waiting.remove(death)
        if not self._waiting:
            self._attempts.worked()
