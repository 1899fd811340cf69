"""An ordered queue with one thread that works it off in batches."""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

Item = TypeVar("Item")


class Mailbox(Generic[Item]):
    """Any thread posts, one thread takes. Items are lists or messages; ``weight`` says how much one counts.

    ``max_offset`` counts what was ever posted, ``consume_offset`` what was ever taken; both may be read anywhere.
    """

    def __init__(self, name: str, weight: Callable[[Item], int] = lambda item: 1) -> None:
        self.name = name
        self.max_offset = 0
        self.consume_offset = 0
        self._weight = weight
        self._items: queue.SimpleQueue[Item | _Wake | None] = queue.SimpleQueue()
        self._urgent: deque[Item] = deque()
        self._closed = False

    def post(self, item: Item) -> None:
        """Does not block."""
        self.max_offset += self._weight(item)
        self._items.put(item)

    def post_urgent(self, item: Item) -> None:
        """Add an item that overtakes all others, except urgent ones. It is not counted."""
        self._urgent.append(item)
        self._items.put(_WAKE)

    def close(self) -> None:
        """Let the taking thread end once it has taken everything posted so far."""
        self._items.put(None)

    def take(self, limit: int, timeout: float | None = None) -> list[Item] | None:
        """Return waiting items up to a weight of ``limit`` (always at least one item). Blocks for the first one.

        Returns an empty list after ``timeout`` seconds without any, and None when the mailbox is closed and empty.
        """
        if self._closed:
            return None
        urgent = self.take_urgent()
        taken: list[Item] = []
        weight = 0
        while weight < limit:
            try:
                item = self._items.get_nowait() if urgent or taken else self._items.get(timeout=timeout)
            except queue.Empty:
                break
            if item is None:
                self._closed = True
                break
            if isinstance(item, _Wake):
                urgent += self.take_urgent()
            else:
                taken.append(item)
                weight += self._weight(item)
        self.consume_offset += weight
        taken = urgent + taken
        return taken if taken or not self._closed else None

    def take_urgent(self) -> list[Item]:
        """The urgent items that are there, without blocking."""
        return [self._urgent.popleft() for _ in range(len(self._urgent))]


class _Wake:
    """Posted for each urgent item, so that a thread that waits for any item sees it."""


_WAKE = _Wake()
