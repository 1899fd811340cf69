"""Divide work that is too large for one step. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

PORTION_BYTES = 8 * 1024 * 1024
"""The bytes that go through a queue in one step. Each byte is in memory several times during the step, and other
callers of the broker or Redis wait for it."""
PORTION_ITEMS = 10_000

Item = TypeVar("Item")


def portions(
    items: Iterable[Item],
    size_of: Callable[[Item], int],
    *,
    most_bytes: int = PORTION_BYTES,
    most_items: int = PORTION_ITEMS,
) -> Iterator[list[Item]]:
    """Yield the items in order, in lists of at most ``most_items`` items and ``most_bytes`` bytes together (a single
    item may be larger). A list is yielded as soon as the item behind it has been read.

    >>> list(portions([b"ab", b"c", b"def", b"g"], len, most_bytes=3))
    [[b'ab', b'c'], [b'def'], [b'g']]
    """
    portion: list[Item] = []
    total = 0
    for item in items:
        size = size_of(item)
        if portion and (total + size > most_bytes or len(portion) == most_items):
            yield portion
            portion, total = [], 0
        portion.append(item)
        total += size
    if portion:
        yield portion
