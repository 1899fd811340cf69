"""The only place that makes threads."""

from __future__ import annotations

import contextvars
import logging
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Value = TypeVar("Value")
logger = logging.getLogger("enode_django")

THREAD_DIED = 70
"""The exit status of a process one of whose threads died (EX_SOFTWARE of sysexits.h)."""


def thread_died() -> int:
    return THREAD_DIED


def start_thread(
    name: str, run: Callable[[], None], *, vital: bool = False, status: Callable[[], int] = thread_died
) -> threading.Thread:
    """Start a daemon thread. When a ``vital`` one raises, the whole process ends at once, loudly, with the exit
    ``status`` that is asked for then: a worker with a silent dead thread would take commands and never answer."""

    def guarded() -> None:
        try:
            run()
        except BaseException:  # whatever ends it, SystemExit too: nobody else would hear of it
            logger.critical("thread %s died", name, exc_info=True)
            if vital:
                for handler in logging.getLogger().handlers:
                    handler.flush()
                os._exit(status())
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


class CallingThreads:
    """Make calls for those who wait for no longer than they have said: ``most`` at once, the others queue up. Safe for
    threads, and after a fork: a child makes threads of its own, and finds no lock that somebody held."""

    def __init__(self, name: str, most: int) -> None:
        self.most = most
        self._name = name
        self._executors: dict[int, ThreadPoolExecutor] = {}
        """By the id of the process that made it."""

    def start(self, call: Callable[[], Value]) -> Future[Value]:
        """Make the call in another thread, with the caller's context variables. Does not block."""
        pid = os.getpid()
        executor = self._executors.get(pid)
        if executor is None:
            # Whoever comes second gets what the first has put there; an executor that nobody uses has no threads.
            made = ThreadPoolExecutor(self.most, thread_name_prefix=self._name)
            executor = self._executors.setdefault(pid, made)
        return executor.submit(contextvars.copy_context().run, call)

    def close(self) -> None:
        """Begin no call any more, and cancel those that queue up. Those under way end by themselves."""
        executor = self._executors.get(os.getpid())
        if executor is not None:
            executor.shutdown(wait=False, cancel_futures=True)
