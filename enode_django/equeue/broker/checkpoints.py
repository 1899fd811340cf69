"""Write checkpoints while the broker serves."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from enode_django.equeue.broker.state import BrokerState
from enode_django.equeue.broker.store import MessageStore
from enode_django.exceptions import QueueError

logger = logging.getLogger(__name__)

LEAST_REST = 9.0
"""The pause before the next checkpoint by time, as a multiple of the time that the last one took to write."""


class Checkpoints:
    """Writes checkpoints, one at a time, in a thread. Lives in the event loop.

    A checkpoint is due ``interval`` seconds after the last one began, or when the log has grown by ``size`` bytes. A
    large checkpoint takes long to write, so large ones are rarer: `LEAST_REST` applies, and the log must grow by the
    size of the last checkpoint.
    """

    def __init__(
        self,
        store: MessageStore,
        state: BrokerState,
        *,
        interval: float,
        size: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._state = state
        self._interval = interval
        self._size = size
        self._clock = clock
        self._begun = clock()
        self._took = 0.0
        self._held = 0
        self._writing: asyncio.Task[None] | None = None

    @property
    def is_due(self) -> bool:
        if self._clock() - self._begun >= max(self._interval, (1 + LEAST_REST) * self._took):
            return True
        return self._store.since_checkpoint >= max(self._size, self._held)

    def begin_if_due(self) -> None:
        if self._writing is None and self.is_due:
            self._begin()

    async def write(self) -> None:
        """Wait for the checkpoint that is being written, or write one, even if nothing is new. Failures are logged."""
        await asyncio.wait([self._writing or self._begin(again=True)])

    async def finish(self) -> None:
        """Wait until no checkpoint is being written."""
        if self._writing is not None:
            await asyncio.wait([self._writing])

    def _begin(self, *, again: bool = False) -> asyncio.Task[None]:
        self._writing = asyncio.create_task(self._write(again))
        self._writing.add_done_callback(self._end)
        return self._writing

    def _end(self, task: asyncio.Task[None]) -> None:
        self._writing = None
        error = None if task.cancelled() else task.exception()
        if error is not None:
            logger.error("a checkpoint failed; it is tried again", exc_info=error)

    async def _write(self, again: bool) -> None:
        self._begun = self._clock()
        pending = self._state.begin_checkpoint(again=again)
        if pending is None:
            return
        written = False
        try:
            self._held = await asyncio.to_thread(pending.write)
            written = True
        except QueueError as error:
            logger.error("no checkpoint could be written: %s", error)
        finally:
            self._took = self._clock() - self._begun
            self._state.finish_checkpoint(written)
