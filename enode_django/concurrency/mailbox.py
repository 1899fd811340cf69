"""An ordered list of items from any thread, which one thread takes in batches."""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

Item = TypeVar("Item")


class Mailbox(Generic[Item]):
    """A mailbox: any thread posts, one thread takes. Items are lists or messages; ``weight`` returns the count of one.

    ``max_offset`` is the weight of all items ever posted, ``consume_offset`` of all ever taken, both without urgent
    items. Any thread may read them.
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
        """Add an item. Does not block."""
        self.max_offset += self._weight(item)
        self._items.put(item)

    def post_urgent(self, item: Item) -> None:
        """Add an item that overtakes all others except urgent ones. It is not counted. Does not block."""
        self._urgent.append(item)
        self._items.put(_WAKE)

    def close(self) -> None:
        """Close the mailbox: `take` returns None once everything posted so far is taken."""
        self._items.put(None)

    def take(self, limit: int, timeout: float | None = None) -> list[Item] | None:
        """Return waiting items, urgent ones first, until their weight reaches ``limit``. Block for the first one.

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
        """Return the waiting urgent items. Does not block."""
        return [self._urgent.popleft() for _ in range(len(self._urgent))]


class _Wake:
    """An item posted with each urgent item, so that a thread waiting in `take` wakes up."""


_WAKE = _Wake()
