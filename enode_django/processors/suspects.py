"""Find the work that may be to blame for workers that died or hung. Pure: markers and times in, positions out."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from enode_django.concurrency.in_flight import NOTHING_IN_FLIGHT, queue_and_offset


class Seat(NamedTuple):
    """A thread that notes its work for a consumer group. One step may take up to ``time_limit`` seconds."""

    group: str
    time_limit: float


class Hand(NamedTuple):
    """The work that the thread of a seat has in hand: a position, and a number that differs for each step at it."""

    position: int
    step: int = 0


def hands_of(notes: Sequence[int], seats: Sequence[Seat]) -> list[Hand]:
    """Return a worker's work in hand from its notes, which have a position, or a position and a step, for each seat.

    >>> seats = [Seat("a", 60.0), Seat("b", 60.0)]
    >>> hands_of([7, 0], seats), hands_of([7, 1, 0, 4], seats)
    ([Hand(position=7, step=0), Hand(position=0, step=0)], [Hand(position=7, step=1), Hand(position=0, step=4)])
    """
    if len(notes) == len(seats):
        return [Hand(position) for position in notes]
    return [Hand(*pair) for pair in zip(notes[::2], notes[1::2], strict=True)]


def ended_well(status: int | None, hands: Iterable[Hand]) -> bool:
    """Return True if a worker has drained and ended. Code that ends its process with status 0 leaves its note."""
    return status == 0 and all(hand.position == NOTHING_IN_FLIGHT for hand in hands)


def found_with(hands: Sequence[Hand], seats: Sequence[Seat]) -> Mapping[str, list[tuple[int, int]]]:
    """Return, for each group, queue and offset of the work that a worker had in hand when it died."""
    found: dict[str, set[tuple[int, int]]] = {}
    for hand, seat in zip(hands, seats, strict=False):
        if hand.position != NOTHING_IN_FLIGHT:
            found.setdefault(seat.group, set()).add(queue_and_offset(hand.position))
    return {group: sorted(places) for group, places in found.items()}


class WatchedTime:
    """The seconds in which a supervisor watched its workers. Of the time between two turns it counts ``longest`` at
    most: a supervisor that did not turn was suspended itself, and so may its workers have been, which could not beat
    then."""

    def __init__(self, longest: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._longest = longest
        self._clock = clock
        self._turned = clock()
        self.seconds = 0.0

    def turn(self) -> None:
        now = self._clock()
        self.seconds += min(now - self._turned, self._longest)
        self._turned = now


class Overdue(NamedTuple):
    seat: Seat
    queue: int
    offset: int


class Patience:
    """Measures how long each seat of one worker has the same work in hand."""

    def __init__(self, seats: Sequence[Seat]) -> None:
        self._seats = seats
        self._since: dict[int, tuple[Hand, float]] = {}

    def overdue(self, hands: Sequence[Hand], now: float) -> Overdue | None:
        """Return a seat that has had the same work in hand beyond its time limit, with queue and offset, or None."""
        for number, (hand, seat) in enumerate(zip(hands, self._seats, strict=False)):
            known, since = self._since.get(number, (Hand(NOTHING_IN_FLIGHT), now))
            if hand != known:
                since = now
                self._since[number] = (hand, now)
            if hand.position != NOTHING_IN_FLIGHT and now - since > seat.time_limit:
                return Overdue(seat, *queue_and_offset(hand.position))
        return None
