"""Connections that have arrived and not yet sent their request. Pure.

A client that opens many connections and sends nothing must not keep others out: if there is no room for a new
connection, the oldest waiting one is closed. A genuine client sends its request within moments.
"""

from __future__ import annotations

from collections import Counter
from typing import Generic, TypeVar

Connection = TypeVar("Connection")


class Arrivals(Generic[Connection]):
    """Waiting connections, at most ``most_of_one`` of each address."""

    def __init__(self, most_of_one: int) -> None:
        self._most_of_one = most_of_one
        self._waiting: dict[Connection, str] = {}
        """The address of each connection, the oldest connection first."""
        self._of_address: Counter[str] = Counter()

    def add(self, connection: Connection, address: str) -> Connection | None:
        """Add a connection. If its address has too many, remove and return its oldest one, which has to be closed."""
        self._waiting[connection] = address
        self._of_address[address] += 1
        if self._of_address[address] <= self._most_of_one:
            return None
        return self._take(next(one for one, of in self._waiting.items() if of == address))

    def discard(self, connection: Connection) -> None:
        """Remove a connection that has sent its request or is gone. Safe to call twice."""
        if connection in self._waiting:
            self._take(connection)

    def take_oldest(self, but: Connection) -> Connection | None:
        """Remove and return the connection that has waited longest, except ``but``; None if there is no other."""
        oldest = next((one for one in self._waiting if one is not but), None)
        return None if oldest is None else self._take(oldest)

    def _take(self, connection: Connection) -> Connection:
        address = self._waiting.pop(connection)
        self._of_address[address] -= 1
        if not self._of_address[address]:
            del self._of_address[address]
        return connection
