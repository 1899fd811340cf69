"""Answers that wait in the broker for the process that asked. Pure: times are arguments.

Each answer of an inbox has a number. A receiver says which number it expects next. The answers before it have arrived
and are dropped; the others are given, again if the last response was lost with a connection.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from math import inf

from enode_django.equeue.portions import portions
from enode_django.exceptions import QueueFull

FORGOTTEN_AFTER = 600.0
RETURNING = 60.0
"""Seconds after the broker's start in which an unknown address gets an inbox with its first answer: its process may
reach the broker later than the worker that answers."""
MOST_INBOXES = 10_000
MOST_ANSWERS = 100_000
MOST_BYTES = 64 * 1024 * 1024


@dataclass(slots=True)
class Inbox:
    """The answers for one address. ``next``: the number that the next answer gets."""

    next: int
    seen: float
    bodies: deque[bytes] = field(default_factory=deque)
    size: int = 0

    def add(self, body: bytes) -> None:
        """Add an answer. Above the limits the oldest answers are dropped: their receivers have most likely given up."""
        self.bodies.append(body)
        self.next += 1
        self.size += len(body)
        while len(self.bodies) > MOST_ANSWERS or self.size > MOST_BYTES:
            self._drop()

    def arrived(self, following: int) -> None:
        while self.bodies and self.next - len(self.bodies) < following:
            self._drop()

    def given(self) -> tuple[int, Sequence[bytes]]:
        """Return the number of the answer after those returned, and the answers: one of the `portions`."""
        bodies = next(portions(self.bodies, len), [])
        return self.next - len(self.bodies) + len(bodies), bodies

    def _drop(self) -> None:
        self.size -= len(self.bodies.popleft())


class Inboxes:
    """All inboxes. ``first_number`` is above every number of earlier runs of the broker, so no number is used twice.
    Until ``returning_until`` answers to unknown addresses are kept."""

    def __init__(self, first_number: int, returning_until: float = -inf) -> None:
        self._first_number = first_number
        self._returning_until = returning_until
        self._inboxes: dict[str, Inbox] = {}

    def open(self, address: str, now: float, following: int = 0) -> Inbox:
        """Return the inbox of an address. If there is none, or it was forgotten, make one whose numbers are at least
        ``following``: lower ones have arrived from the forgotten inbox. Raises `QueueFull` above `MOST_INBOXES`."""
        inbox = self._inboxes.get(address)
        if inbox is None:
            if len(self._inboxes) >= MOST_INBOXES:
                raise QueueFull(f"the broker has {MOST_INBOXES} inboxes, as many as it may; try later")
            inbox = self._inboxes[address] = Inbox(max(self._first_number, following), now)
        inbox.seen = now
        return inbox

    def close(self, address: str) -> None:
        self._inboxes.pop(address, None)

    def reply(self, address: str, body: bytes, now: float) -> Inbox | None:
        """Add an answer and return its inbox. Return None if there is no inbox; the answer is dropped."""
        inbox = self._inboxes.get(address)
        if inbox is None and now < self._returning_until and len(self._inboxes) < MOST_INBOXES:
            inbox = self.open(address, now)
        if inbox is not None:
            inbox.add(body)
        return inbox

    def forget(self, now: float, waiting: Container[str] = ()) -> None:
        """Drop inboxes that nobody received from for `FORGOTTEN_AFTER` seconds, except those in ``waiting``."""
        old = now - FORGOTTEN_AFTER
        silent = [address for address, inbox in self._inboxes.items() if inbox.seen < old and address not in waiting]
        for address in silent:
            del self._inboxes[address]
