"""Connections that have come and not said yet what they want. Pure.

Whoever opens many and says nothing must not keep others out: where there is no room for another one, the one that has
waited longest makes room. Who means it says what it wants within moments.
"""

from __future__ import annotations

from collections import Counter
from typing import Generic, TypeVar

Connection = TypeVar("Connection")


class Arrivals(Generic[Connection]):
    """``most_of_one``: so many may wait of one address."""

    def __init__(self, most_of_one: int) -> None:
        self._most_of_one = most_of_one
        self._waiting: dict[Connection, str] = {}
        """By age, each with its address."""
        self._of_address: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, connection: Connection, address: str) -> Connection | None:
        """Let it wait. Return one of the same address that has to go, if too many wait: the oldest one."""
        self._waiting[connection] = address
        self._of_address[address] += 1
        if self._of_address[address] <= self._most_of_one:
            return None
        return self._take(next(one for one, of in self._waiting.items() if of == address))

    def discard(self, connection: Connection) -> None:
        """It has said what it wants, or is gone. Safe to call twice."""
        if connection in self._waiting:
            self._take(connection)

    def take_oldest(self, but: Connection) -> Connection | None:
        """Return the one that has waited longest, which has to go; None if there is none ``but`` this one."""
        oldest = next((one for one in self._waiting if one is not but), None)
        return None if oldest is None else self._take(oldest)

    def _take(self, connection: Connection) -> Connection:
        address = self._waiting.pop(connection)
        self._of_address[address] -= 1
        if not self._of_address[address]:
            del self._of_address[address]
        return connection
