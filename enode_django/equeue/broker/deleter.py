"""Delete message files while the broker serves: by a timer, and on request of clients."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from typing import Any

from enode_django.equeue.broker.deletion import Deletion, Detached, Survey
from enode_django.equeue.broker.retention import Consumed, Retention
from enode_django.equeue.broker.space import DiskSpace, urgent

logger = logging.getLogger(__name__)

LEAST_PAUSE = 1.0
"""Seconds after a deletion during which `Deleter.trim` begins none: what could not be deleted then still cannot be."""
CHECKPOINTS = 2
"""The most checkpoints that are written for one deletion."""
REMOVED_AT_ONCE = 8
"""Files that are removed with one sync of their directory."""
ROLLED_AT = 1 / 3
"""The share of ``max_age`` after which the newest file is closed: few messages would not fill it, and stay for ever."""


class Deleter:
    """Deletes message files. Lives in the event loop, which only detaches one file at a time; threads wait for the
    disk.

    A file may be deleted if the newest checkpoint and the one before it both cover the file. If the oldest file is due
    and they do not, ``checkpoint`` is called to write another one.
    """

    def __init__(
        self,
        deletion: Deletion,
        retention: Retention,
        consumed: Consumed,
        *,
        checkpoint: Callable[[], Coroutine[Any, Any, None]],
        space: DiskSpace,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._deletion = deletion
        self._retention = retention
        self._consumed = consumed
        self._checkpoint = checkpoint
        self._space = space
        self._one_at_a_time = asyncio.Lock()
        self._clock = clock
        self._ended: float | None = None
        self._deleting: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._stops = False
        self._surveying: Survey | None = None

    async def delete(self) -> None:
        """Delete what is due, and wait for that. Concurrent calls share one deletion."""
        await asyncio.wait([self._begin()])

    def trim(self, done: Callable[[], None]) -> None:
        """Call ``done`` when everything due is deleted, or after `LEAST_PAUSE` if that takes longer: deleting many
        files takes longer than a client waits for an answer. Clients may ask often. ``done`` can be called twice; the
        second call must change nothing."""
        if self._deleting is None and self._ended is not None and self._clock() - self._ended < LEAST_PAUSE:
            done()
        else:
            self._begin().add_done_callback(lambda _: done())
            asyncio.get_running_loop().call_later(LEAST_PAUSE, done)

    async def make_room(self) -> None:
        """Delete what every group has consumed, even if it is not due, and wait for that. Without any limit of
        retention, delete nothing.

        If sends are refused and no message in the log is needed, a new file is begun first, so that the newest one can
        be deleted, too.
        """
        await asyncio.wait([self._start(self._make_room())])

    async def stop(self) -> None:
        """Wait until no file is being deleted; the rest is left to the next start."""
        self._stops = True
        if self._surveying is not None:
            self._surveying.give_up()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _begin(self) -> asyncio.Task[None]:
        if self._deleting is None:
            self._deleting = self._start(self._delete())
        return self._deleting

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start a task that goes on if its waiter is cancelled: a thread may be at work."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._end)
        return task

    def _end(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task is self._deleting:
            self._deleting, self._ended = None, self._clock()
        error = None if task.cancelled() else task.exception()
        if error is not None and not self._stops:
            logger.error("files of messages could not be deleted; it is tried again", exc_info=error)

    async def _make_room(self) -> None:
        if self._retention == Retention():
            return
        retention = urgent(self._retention)
        if self._space.refuses_sends:
            self._deletion.roll(retention, self._consumed)
        deleted = await self._delete_all(retention)
        self._deletion.early += deleted
        if deleted:
            logger.error("deleted %d files of consumed messages before their time to make room", deleted)

    async def _delete(self) -> None:
        if self._retention == Retention():
            return
        deleted = await self._delete_all(self._retention)
        if deleted:
            logger.info("deleted %d files of messages", deleted)
        if self._retention.max_age is not None:
            await self._close_old_file(self._retention.max_age * ROLLED_AT)

    async def _close_old_file(self, age: float) -> None:
        """The last step of a deletion: there may be no room for a new file."""
        if not self._deletion.knows_newest:
            await asyncio.to_thread(self._deletion.look_at_newest)
        self._deletion.roll_older(age)

    async def _delete_all(self, retention: Retention) -> int:
        deleted, asked = 0, 0
        async with self._one_at_a_time:
            while not self._stops:
                await self._survey()
                some = await self._detach(retention)
                if some:
                    await asyncio.to_thread(self._deletion.remove, some)
                    deleted += len(some)
                elif asked == CHECKPOINTS or not self._deletion.is_due(retention, self._consumed):
                    break
                else:
                    asked += 1
                    await self._checkpoint()
        return deleted

    async def _survey(self) -> None:
        survey = self._surveying = self._deletion.begin_survey()
        if survey is None:
            return
        while survey.take():
            await asyncio.sleep(0)  # let other tasks run
        if not self._stops:
            await asyncio.to_thread(survey.run)
            self._deletion.finish_survey(survey)
            self._surveying = None
            await asyncio.sleep(0)

    async def _detach(self, retention: Retention) -> list[Detached]:
        some: list[Detached] = []
        while len(some) < REMOVED_AT_ONCE and self._deletion.is_due(retention, self._consumed):
            if not self._deletion.may_detach:
                break
            some.append(self._deletion.detach())
            await asyncio.sleep(0)  # let other tasks run
        return some
