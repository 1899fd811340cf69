"""An ordered queue with one thread that works it off in batches."""

from __future__ import annotations

import queue
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
        self._items: queue.SimpleQueue[Item | None] = queue.SimpleQueue()
        self._closed = False

    def post(self, item: Item) -> None:
        """Does not block."""
        self.max_offset += self._weight(item)
        self._items.put(item)

    def close(self) -> None:
        """Let the taking thread end once it has taken everything posted so far."""
        self._items.put(None)

    def take(self, limit: int, timeout: float | None = None) -> list[Item] | None:
        """What is there, up to a weight of ``limit`` (always at least one item); blocks for the first one.

        Returns an empty list after ``timeout`` seconds without any, and None when the mailbox is closed and empty.
        """
        if self._closed:
            return None
        try:
            item = self._items.get(timeout=timeout)
        except queue.Empty:
            return []
        taken: list[Item] = []
        weight = 0
        while item is not None:
            taken.append(item)
            weight += self._weight(item)
            if weight >= limit:
                break
            try:
                item = self._items.get_nowait()
            except queue.Empty:
                break
        else:
            self._closed = True
        self.consume_offset += weight
        return taken if taken or not self._closed else None
