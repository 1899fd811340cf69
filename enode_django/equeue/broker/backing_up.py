"""Backups on request of clients, one at a time."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from functools import partial

from enode_django.equeue.broker.backup import back_up
from enode_django.equeue.broker.calls import LATER, Call, Later
from enode_django.equeue.broker.store import MessageStore
from enode_django.exceptions import EnodeError, QueueError

logger = logging.getLogger(__name__)

_PATIENCE = 60.0
_PAUSE = 0.05


class BackingUp:
    """Makes backups. Lives in the event loop; another thread waits for the disk. ``checkpoint`` writes a checkpoint, or
    waits for the one that is being written."""

    def __init__(self, store: MessageStore, checkpoint: Callable[[], Awaitable[None]]) -> None:
        self._store = store
        self._checkpoint = checkpoint
        self._running: asyncio.Task[None] | None = None

    def begin(self, call: Call, name: str) -> Later:
        """Copy everything stored so far; answer with a `BackedUp`. Raises `QueueError` while another one is being
        made."""
        if self._running is not None and not self._running.done():
            raise QueueError("another backup is being made; wait until it has ended")
        self._running = asyncio.get_running_loop().create_task(self._back_up(call, name))
        return LATER

    async def _back_up(self, call: Call, name: str) -> None:
        try:
            position = self._store.position
            await self._reach(position)
            take = partial(back_up, self._store.directory, name, at_least=position)
            made = await asyncio.get_running_loop().run_in_executor(None, take)
        except EnodeError as error:
            call.fail(error)
        except Exception:  # the client must get an answer even if this is a defect
            logger.exception("the backup %s failed", name)
            call.fail(QueueError("the broker failed at the backup; its log says why"))
        else:
            logger.info("made the backup %s: %d bytes linked, %d copied", *(made.path, *made[2:]))
            call.answer({**made._asdict(), "path": str(made.path)})

    async def _reach(self, position: int) -> None:
        """Wait until a checkpoint covers the log up to ``position``. Raises `QueueError` after `_PATIENCE` seconds."""
        deadline = time.monotonic() + _PATIENCE
        while self._store.position - self._store.since_checkpoint < position:
            if time.monotonic() > deadline:
                raise QueueError("no checkpoint could be written for the backup; see the broker's log, and try again")
            await self._checkpoint()
            await asyncio.sleep(_PAUSE)
