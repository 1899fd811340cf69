"""Which commands may be to blame for workers that died or hung. Pure: notes and times in, positions out."""

from __future__ import annotations

from collections.abc import Iterable

from enode_django.commanding.entries import queue_and_offset
from enode_django.commanding.processor import IDLE, Note
from enode_django.concurrency.threads import THREAD_DIED

HANDLER_DIED = 71
"""The exit status of a worker whose command mailbox has died while it handled a command."""


def ended_well(status: int | None, notes: Iterable[int]) -> bool:
    """Whether a worker has drained and ended. A command that ends its process with status 0 leaves its note."""
    return status == 0 and not any(position != IDLE for position in notes)


def status_of_death(note: Note) -> int:
    """Return the exit status of a worker whose command mailbox has died, by the note of what it was handling."""
    return THREAD_DIED if note[0] == IDLE else HANDLER_DIED


def to_blame(status: int | None, notes: Iterable[int]) -> list[tuple[int, int]]:
    """Return queue and offset of each command that a worker which has died may have died of. Where one of its threads
    has, and was handling none, no command is to blame: the others were handled by chance."""
    return [] if status == THREAD_DIED else found_with(notes)


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
