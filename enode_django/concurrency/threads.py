"""The only place that makes threads."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable

logger = logging.getLogger("enode_django")

THREAD_DIED = 70
"""The exit status of a process one of whose threads died (EX_SOFTWARE of sysexits.h)."""


def start_thread(name: str, run: Callable[[], None], *, vital: bool = False) -> threading.Thread:
    """Start a daemon thread. When a ``vital`` one raises, the whole process ends at once, loudly: a worker with a
    silent dead thread would take commands and never answer."""

    def guarded() -> None:
        try:
            run()
        except BaseException:
            logger.critical("thread %s died", name, exc_info=True)
            if vital:
                for handler in logging.getLogger().handlers:
                    handler.flush()
                os._exit(THREAD_DIED)
            raise

    thread = threading.Thread(target=guarded, name=name, daemon=True)
    thread.start()
    return thread


def join_threads(threads: list[threading.Thread], timeout: float) -> list[str]:
    """Wait up to ``timeout`` seconds for each; returns the names of those that would not stop, and logs them."""
    for thread in threads:
        thread.join(timeout)
    stuck = [thread.name for thread in threads if thread.is_alive()]
    if stuck:
        logger.error("threads that did not stop within %.1f s: %s", timeout, ", ".join(stuck))
    return stuck
