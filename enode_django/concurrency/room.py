"""Limit the bytes that are on their way between threads."""

from __future__ import annotations

import threading


class Room:
    """Takers may go over ``limit``, by what they take at once; then they have to wait until others have given back.

    Safe for threads. Whoever gives back must never be one that waits.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._taken = 0
        self._is_closed = False
        self._changed = threading.Condition()

    @property
    def taken(self) -> int:
        return self._taken

    @property
    def is_full(self) -> bool:
        return self._taken >= self.limit and not self._is_closed

    def take(self, size: int) -> None:
        """Does not block. A negative size gives back, and lets those go on that wait."""
        if not size:
            return
        with self._changed:
            self._taken += size
            if size < 0 and not self.is_full:
                self._changed.notify_all()

    def give(self, size: int) -> None:
        self.take(-size)

    def wait(self) -> None:
        """Block until there is room, or nobody has to wait any more."""
        with self._changed:
            self._changed.wait_for(lambda: not self.is_full)

    def close(self) -> None:
        """Let nobody wait any more. Safe to call twice."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
