"""Backups that clients ask a running broker for."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any

from enode_django.equeue.broker.backup import back_up
from enode_django.equeue.broker.calls import Background, Call, Later
from enode_django.equeue.broker.store import MessageStore
from enode_django.exceptions import QueueError

logger = logging.getLogger(__name__)

_PATIENCE = 60.0
_PAUSE = 0.05


class Backups:
    """Makes backups on request of clients, one at a time. Lives in the event loop; another thread waits for the disk.
    ``checkpoint`` writes a checkpoint, or waits for the one that is being written."""

    def __init__(self, store: MessageStore, checkpoint: Callable[[], Awaitable[None]]) -> None:
        self._store = store
        self._checkpoint = checkpoint
        self._background = Background()
        self._is_running = False

    def begin(self, call: Call, name: str) -> Later:
        """Copy everything stored so far; answer with a `BackedUp`. Raises `QueueError` while another is made."""
        if self._is_running:
            raise QueueError("another backup is being made; wait until it has ended")
        self._is_running = True
        return self._background.answer(call, f"back_up {name}", self._back_up(name))

    async def _back_up(self, name: str) -> dict[str, Any]:
        try:
            position = self._store.position
            await self._reach(position)
            made = await asyncio.to_thread(back_up, self._store.directory, name, at_least=position)
        finally:
            self._is_running = False
        logger.info("made the backup %s: %d bytes linked, %d copied", *(made.path, *made[2:]))
        return {**made._asdict(), "path": str(made.path)}

    async def _reach(self, position: int) -> None:
        """Wait until a checkpoint covers the log up to ``position``. Raises `QueueError` after `_PATIENCE` seconds."""
        deadline = time.monotonic() + _PATIENCE
        while self._store.position - self._store.since_checkpoint < position:
            if time.monotonic() > deadline:
                raise QueueError("no checkpoint could be written for the backup; see the broker's log, and try again")
            await self._checkpoint()
            await asyncio.sleep(_PAUSE)
