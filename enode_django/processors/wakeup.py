"""Waiting that a signal ends. Python goes on waiting after a signal's handler has returned."""

from __future__ import annotations

from collections.abc import Iterable
from multiprocessing.connection import Connection, Pipe, wait


class Wakeup:
    """A wait that can be ended. `wake` may be called by a signal handler and by any thread, `wait` by one thread."""

    def __init__(self) -> None:
        self._reader, self._writer = Pipe(duplex=False)

    def wake(self) -> None:
        """End the current wait, or the next one."""
        self._writer.send_bytes(b"!")

    def wait(self, objects: Iterable[Connection | int], timeout: float) -> None:
        """Wait until one of these can be read from, `wake` is called, or ``timeout`` seconds are over."""
        if self._reader in wait([self._reader, *objects], timeout):
            self._reader.recv_bytes()
