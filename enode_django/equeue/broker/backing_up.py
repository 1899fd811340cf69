"""Backups that clients ask for, one at a time."""

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
    """Lives in the event loop; the disk is waited for in another thread. ``checkpoint`` writes one, unless one is being
    written."""

    def __init__(self, store: MessageStore, checkpoint: Callable[[], Awaitable[None]]) -> None:
        self._store = store
        self._checkpoint = checkpoint
        self._running: asyncio.Task[None] | None = None

    def begin(self, call: Call, name: str) -> Later:
        """Copy all that is stored by now, and answer with what was made. Raises `QueueError` while another copy is
        being made."""
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
        except Exception:  # a client must get an answer, also to what is a defect here
            logger.exception("the backup %s failed", name)
            call.fail(QueueError("the broker failed at the backup; its log says why"))
        else:
            logger.info("made the backup %s: %d bytes linked, %d copied", *(made.path, *made[2:]))
            call.answer({**made._asdict(), "path": str(made.path)})

    async def _reach(self, position: int) -> None:
        """Wait until a checkpoint counts the log up to a position."""
        deadline = time.monotonic() + _PATIENCE
        while self._store.position - self._store.since_checkpoint < position:
            if time.monotonic() > deadline:
                raise QueueError("no checkpoint could be written for the backup; see the broker's log, and try again")
            await self._checkpoint()
            await asyncio.sleep(_PAUSE)
