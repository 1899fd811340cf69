"""Choose how many items to ask a store or a queue for at once. Pure."""

from __future__ import annotations


class Lookups:
    """Chooses how many items to ask for, so that about ``most_bytes`` arrive, by the sizes of earlier answers.

    >>> lookups = Lookups(first=32, most=500, most_bytes=1_000_000)
    >>> lookups.count
    32
    >>> lookups.found(32, 4_000_000)
    >>> lookups.count
    8
    >>> lookups.found(8, 0)
    >>> lookups.count
    32
    """

    def __init__(self, *, first: int, most: int, most_bytes: int) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self.count = max(1, min(first, most))

    def found(self, asked: int, size: int) -> None:
        """Note that ``asked`` items had ``size`` bytes together. The count grows at most fourfold at a time, since the
        next items may be larger."""
        fitting = self._most_bytes * asked // size if size else self._most
        self.count = max(1, min(fitting, 4 * self.count, self._most))
