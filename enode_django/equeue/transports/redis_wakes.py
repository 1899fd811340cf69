"""Waking threads that wait for Redis: each of them waits at a pipe as well."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Pipe


class Wakeup:
    """A pipe with one byte in it, or none."""

    def __init__(self) -> None:
        self._reader, self._writer = Pipe(duplex=False)
        self.is_woken = False

    def fileno(self) -> int:
        return self._reader.fileno()

    def wake(self) -> None:
        if not self.is_woken:
            self.is_woken = True
            self._writer.send_bytes(b"!")

    def clear(self) -> None:
        if self.is_woken:
            self._reader.recv_bytes()
            self.is_woken = False


class Wakes:
    """Of the threads of one process; a forked child begins anew, since the pipes are its parent's. Safe for threads."""

    def __init__(self) -> None:
        self._forget()

    def _forget(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._waiting: dict[int, Wakeup] = {}
        self._woken: set[int] = set()
        self._idle: list[Wakeup] = []

    def wake(self, thread: int) -> None:
        """A thread that does not wait is woken when it begins to."""
        self._check_process()
        with self._lock:
            if thread in self._waiting:
                self._waiting[thread].wake()
            else:
                self._woken.add(thread)

    @contextmanager
    def waiting(self) -> Iterator[Wakeup]:
        """Register the calling thread as waiting until the block ends; yields what `wake` makes readable."""
        self._check_process()
        thread = threading.get_ident()
        with self._lock:
            wakeup = self._waiting[thread] = self._idle.pop() if self._idle else Wakeup()
            if thread in self._woken:
                self._woken.discard(thread)
                wakeup.wake()
        try:
            yield wakeup
        finally:
            with self._lock:
                del self._waiting[thread]
                wakeup.clear()
                self._idle.append(wakeup)

    def _check_process(self) -> None:
        if self._pid != os.getpid():
            self._forget()
