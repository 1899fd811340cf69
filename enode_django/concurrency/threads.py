"""The only module that makes threads."""

from __future__ import annotations

import contextvars
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from queue import Full
from typing import NamedTuple, TypeVar

Value = TypeVar("Value")
logger = logging.getLogger("enode_django")

THREAD_DIED = 70
"""The exit status of a process whose vital thread died (EX_SOFTWARE of sysexits.h)."""


def thread_died() -> int:
    return THREAD_DIED


def start_thread(
    name: str, run: Callable[[], None], *, vital: bool = False, status: Callable[[], int] = thread_died
) -> threading.Thread:
    """Start a daemon thread. If a ``vital`` one raises, the error is logged and the process ends at once with the exit
    status that ``status()`` returns: a worker with a dead thread would take commands and never answer."""

    def guarded() -> None:
        try:
            run()
        except BaseException:  # SystemExit included, which would otherwise not be reported
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
    """Wait up to ``timeout`` seconds for each thread. Return and log the names of those that did not stop."""
    for thread in threads:
        thread.join(timeout)
    stuck = [thread.name for thread in threads if thread.is_alive()]
    if stuck:
        logger.error("threads that did not stop within %.1f s: %s", timeout, ", ".join(stuck))
    return stuck


def join_until(deadline: float, threads: Sequence[threading.Thread]) -> bool:
    """Wait for threads until ``deadline``, a time of `time.monotonic`. Return True if all of them have ended."""
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    return not any(thread.is_alive() for thread in threads)


class _Calls(NamedTuple):
    """The threads of one process. Each call holds ``room`` until it has ended."""

    executor: ThreadPoolExecutor
    room: threading.Semaphore


def _leaving(room: threading.Semaphore, call: Callable[[], Value]) -> Value:
    """Make a call that holds room. It gives it back itself: a call stays queued for which no thread could be started,
    and nobody has its future."""
    try:
        return call()
    finally:
        room.release()


class CallingThreads:
    """Threads that make calls for callers with a timeout: at most ``most`` at once, the others are queued, up to
    ``most_queued``. Thread-safe and fork-safe: a child makes its own threads, and inherits no held lock."""

    def __init__(self, name: str, most: int, most_queued: int) -> None:
        self.most = most
        self._name = name
        self._most_unfinished = most + most_queued
        self._calls: dict[int, _Calls] = {}
        """By the id of the process that made them."""

    def start(self, call: Callable[[], Value]) -> Future[Value]:
        """Make the call in another thread, with the caller's context variables. Does not block. Raises `queue.Full` if
        as many calls are queued as may be."""
        pid = os.getpid()
        calls = self._calls.get(pid)
        if calls is None:
            # A second caller gets the threads of the first one; an unused executor has none.
            made = ThreadPoolExecutor(self.most, thread_name_prefix=self._name)
            calls = self._calls.setdefault(pid, _Calls(made, threading.Semaphore(self._most_unfinished)))
        if not calls.room.acquire(blocking=False):
            raise Full
        return calls.executor.submit(contextvars.copy_context().run, _leaving, calls.room, call)

    def close(self) -> None:
        """Refuse new calls and cancel queued ones. Running calls end by themselves."""
        calls = self._calls.get(os.getpid())
        if calls is not None:
            calls.executor.shutdown(wait=False, cancel_futures=True)
