"""Threads that send, for callers that wait for no longer than they have said, whatever the queue does."""

from __future__ import annotations

import contextvars
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Value = TypeVar("Value")

MOST_THREADS = 64
"""So many sends can be under way at once; more only wait while the queue stands still."""


class SendingThreads:
    """Safe for threads, and after a fork: a child makes threads of its own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._executor: ThreadPoolExecutor | None = None
        self._pid = 0

    def start(self, call: Callable[[], Value]) -> Future[Value]:
        """Make the call in another thread, with the caller's context variables. Does not block."""
        executor = self._executor
        if executor is None or self._pid != os.getpid():
            executor = self._made()
        return executor.submit(contextvars.copy_context().run, call)

    def close(self) -> None:
        """Begin no call any more. Those under way end by themselves."""
        if self._executor is not None and self._pid == os.getpid():
            self._executor.shutdown(wait=False, cancel_futures=True)

    def _made(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._executor is None or self._pid != os.getpid():
                self._executor = ThreadPoolExecutor(MOST_THREADS, thread_name_prefix="enode-send")
                self._pid = os.getpid()
            return self._executor
