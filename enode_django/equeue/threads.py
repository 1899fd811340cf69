"""The only place where the queue's clients make threads."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

logger = logging.getLogger("enode_django.equeue")


class Threads:
    """Daemon threads of one purpose. An exception that ends a thread is passed to ``died``, in that thread."""

    def __init__(self, died: Callable[[BaseException], None]) -> None:
        self._died = died
        self._threads: list[threading.Thread] = []

    def start(self, name: str, run: Callable[[], None]) -> None:
        def guarded() -> None:
            try:
                run()
            except BaseException as error:
                logger.critical("thread %s died", name, exc_info=True)
                self._died(error)

        thread = threading.Thread(target=guarded, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    @property
    def alive(self) -> list[str]:
        return [thread.name for thread in self._threads if thread.is_alive()]

    def ended_within(self, seconds: float) -> bool:
        """Return True if all threads have ended; wait up to ``seconds`` for that."""
        deadline = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return not self.alive
