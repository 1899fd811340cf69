"""Flushes of the log, and the actions that wait for them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from enode_django.equeue.broker.store import MessageStore

Action = Callable[[BaseException | None], None]


class Flusher:
    """Flushes the log in a thread, one flush at a time; later actions share the next one. Lives in the event loop."""

    def __init__(
        self, store: MessageStore, *, on_flushed: Callable[[], None], on_failure: Callable[[BaseException], None]
    ) -> None:
        self._store = store
        self._on_flushed = on_flushed
        self._on_failure = on_failure
        self._waiting: deque[tuple[int, Action]] = deque()
        self._running: asyncio.Future[int] | None = None
        self._appended = asyncio.Event()
        store.on_append = self._appended.set

    def after(self, position: int, action: Action) -> None:
        """Call ``action`` when the log is safe up to ``position``, with the error if it never will be."""
        self._waiting.append((position, action))
        self.begin()

    def flush(self) -> None:
        """Begin a flush, unless one runs or everything is safe."""
        if self._store.unflushed_bytes:
            self.begin()

    async def needed(self) -> None:
        """Wait until there is something to flush."""
        if not self._store.unflushed_bytes:
            self._appended.clear()
            await self._appended.wait()

    def begin(self) -> None:
        """Begin a flush, unless one runs. If everything is safe already, its end still calls the waiting actions."""
        if self._running is None:
            loop = asyncio.get_running_loop()
            self._running = loop.run_in_executor(None, self._store.flush)
            self._running.add_done_callback(self._flushed)

    async def finish(self) -> None:
        """Wait until no flush runs and every action was called."""
        while self._running is not None:
            await asyncio.wait([self._running])
            await asyncio.sleep(0)

    def _flushed(self, flush: asyncio.Future[int]) -> None:
        self._running = None
        error = None if flush.cancelled() else flush.exception()
        if error is not None:
            self._call(None, error)
            self._on_failure(error)
            return
        self._call(self._store.flushed, None)
        self._on_flushed()
        if self._waiting:
            self.begin()

    def _call(self, safe: int | None, error: BaseException | None) -> None:
        while self._waiting and (safe is None or self._waiting[0][0] <= safe):
            self._waiting.popleft()[1](error)
