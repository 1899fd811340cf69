"""Which commands may be to blame for workers that died or hung. Pure: notes and times in, positions out."""

from __future__ import annotations

from collections.abc import Iterable

from enode_django.commanding.entries import queue_and_offset
from enode_django.commanding.processor import IDLE


def ended_well(status: int | None, notes: Iterable[int]) -> bool:
    """Whether a worker has drained and ended. A command that ends its process with status 0 leaves its note."""
    return status == 0 and not any(position != IDLE for position in notes)


def found_with(notes: Iterable[int]) -> list[tuple[int, int]]:
    """Queue and offset of each command that a worker was handling when it died."""
    return sorted({queue_and_offset(position) for position in notes if position != IDLE})


class Patience:
    """Each mailbox of a worker notes the position of the command that it is handling; one of them may take too long."""

    def __init__(self, time_limit: float) -> None:
        self._time_limit = time_limit
        self._since: dict[int, tuple[int, float]] = {}

    def overdue(self, notes: Iterable[int], now: float) -> int | None:
        """A position that one of the mailboxes has been handling for longer than the limit."""
        for mailbox, position in enumerate(notes):
            known, since = self._since.get(mailbox, (IDLE, now))
            if position != known:
                since = now
                self._since[mailbox] = (position, now)
            if position != IDLE and now - since > self._time_limit:
                return position
        return None
