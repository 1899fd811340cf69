"""Wake threads that wait for Redis: each of them also waits for a pipe."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Pipe


class Wakeup:
    """A pipe that holds one byte when woken, and none otherwise."""

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


class _Threads:
    """The waiting threads of one process, and those that were woken before they wait."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.waiting: dict[int, Wakeup] = {}
        self.woken: set[int] = set()
        self.idle: list[Wakeup] = []


class Wakes:
    """Wakes the threads of one process. A forked child starts empty, since the pipes are its parent's. Thread-safe,
    also for the first threads of a child."""

    def __init__(self) -> None:
        self._by_process: dict[int, _Threads] = {}

    def wake(self, thread: int) -> None:
        """Wake a thread. If it does not wait now, its next wait ends at once."""
        threads = self._of_this_process()
        with threads.lock:
            if thread in threads.waiting:
                threads.waiting[thread].wake()
            else:
                threads.woken.add(thread)

    @contextmanager
    def waiting(self) -> Iterator[Wakeup]:
        """Register the calling thread as waiting until the block ends; yield the `Wakeup` to wait for."""
        threads, thread = self._of_this_process(), threading.get_ident()
        with threads.lock:
            wakeup = threads.waiting[thread] = threads.idle.pop() if threads.idle else Wakeup()
            if thread in threads.woken:
                threads.woken.discard(thread)
                wakeup.wake()
        try:
            yield wakeup
        finally:
            with threads.lock:
                del threads.waiting[thread]
                wakeup.clear()
                threads.idle.append(wakeup)

    def _of_this_process(self) -> _Threads:
        pid = os.getpid()
        threads = self._by_process.get(pid)
        if threads is None:
            threads = self._by_process.setdefault(pid, _Threads())  # atomic: other threads may do the same
        return threads
