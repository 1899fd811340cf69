"""Answers that wait in the broker for the process that asked. Pure: times are given.

Each answer of an inbox has a number. Who receives says which number comes next; what lies before it has arrived and is
dropped, and the rest is given (again, if the last answers to it were lost with a connection).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Sequence
from dataclasses import dataclass, field

from enode_django.exceptions import QueueFull

FORGOTTEN_AFTER = 600.0
MOST_INBOXES = 10_000
MOST_ANSWERS = 100_000
MOST_BYTES = 64 * 1024 * 1024
GIVEN_AT_ONCE = 10_000
GIVEN_BYTES = 8 * 1024 * 1024


@dataclass(slots=True)
class Inbox:
    """``next``: the number that the next answer gets."""

    next: int
    seen: float
    bodies: deque[bytes] = field(default_factory=deque)
    size: int = 0

    def add(self, body: bytes) -> None:
        """Above its limits the oldest answers make room: whoever waited for them has most likely given up."""
        self.bodies.append(body)
        self.next += 1
        self.size += len(body)
        while len(self.bodies) > MOST_ANSWERS or self.size > MOST_BYTES:
            self._drop()

    def arrived(self, following: int) -> None:
        while self.bodies and self.next - len(self.bodies) < following:
            self._drop()

    def given(self) -> tuple[int, Sequence[bytes]]:
        """Answers, and the number of the one behind them."""
        bodies: list[bytes] = []
        size = 0
        for body in self.bodies:
            if bodies and (len(bodies) == GIVEN_AT_ONCE or size + len(body) > GIVEN_BYTES):
                break
            bodies.append(body)
            size += len(body)
        return self.next - len(self.bodies) + len(bodies), bodies

    def _drop(self) -> None:
        self.size -= len(self.bodies.popleft())


class Inboxes:
    """``first_number``: above every number of an earlier run of the broker, so that none comes twice."""

    def __init__(self, first_number: int) -> None:
        self._first_number = first_number
        self._inboxes: dict[str, Inbox] = {}

    def __len__(self) -> int:
        return len(self._inboxes)

    def open(self, address: str, now: float, following: int = 0) -> Inbox:
        """The inbox of this address; made when there is none (any more), with no number below ``following``: those
        have arrived from the one that was forgotten. Raises `QueueFull` above `MOST_INBOXES`."""
        inbox = self._inboxes.get(address)
        if inbox is None:
            if len(self._inboxes) >= MOST_INBOXES:
                raise QueueFull(f"the broker has {MOST_INBOXES} inboxes, as many as it may; try later")
            inbox = self._inboxes[address] = Inbox(max(self._first_number, following), now)
        inbox.seen = now
        return inbox

    def close(self, address: str) -> None:
        self._inboxes.pop(address, None)

    def reply(self, address: str, body: bytes) -> Inbox | None:
        """The inbox that got it; None if there is none: the answer is dropped."""
        inbox = self._inboxes.get(address)
        if inbox is not None:
            inbox.add(body)
        return inbox

    def forget(self, now: float, waiting: Container[str] = ()) -> None:
        """Drop those that nobody received from for `FORGOTTEN_AFTER` seconds, but for those where somebody waits."""
        old = now - FORGOTTEN_AFTER
        silent = [address for address, inbox in self._inboxes.items() if inbox.seen < old and address not in waiting]
        for address in silent:
            del self._inboxes[address]
