"""A limit of the bytes that are in transit between threads."""

from __future__ import annotations

import threading


class Room:
    """A budget of bytes. A taker may exceed ``limit`` by one `take`; then `wait` blocks until others have given back.

    Thread-safe. A thread that gives back must never wait.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.taken = 0
        self._is_closed = False
        self._changed = threading.Condition()

    @property
    def is_full(self) -> bool:
        return self.taken >= self.limit and not self._is_closed

    def take(self, size: int) -> None:
        """Take bytes; a negative size gives them back, and wakes waiting threads if there is room. Does not block."""
        if not size:
            return
        with self._changed:
            self.taken += size
            if size < 0 and not self.is_full:
                self._changed.notify_all()

    def give(self, size: int) -> None:
        self.take(-size)

    def wait(self) -> None:
        """Block until there is room, or the room is closed."""
        with self._changed:
            self._changed.wait_for(lambda: not self.is_full)

    def close(self) -> None:
        """End all waiting, now and later. Safe to call twice."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
