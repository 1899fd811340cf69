"""Which commands may be to blame for workers that died or hung. Pure: notes and times in, positions out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from enode_django.commanding.processor import IDLE


def ended_well(status: int | None, notes: Iterable[int]) -> bool:
    """Whether a worker has drained and ended. A command that ends its process with status 0 leaves its note."""
    return status == 0 and not any(position != IDLE for position in notes)


class Suspicion:
    """A worker notes the position of the command that each of its mailboxes is handling.

    What is found there when a worker ends abnormally is a suspect, handled one at a time from then on, so that the
    innocent beside it are not found again; what is found ``max_ends`` times is condemned: never handled again.
    """

    def __init__(self, max_ends: int, time_limit: float) -> None:
        self._max_ends = max_ends
        self._time_limit = time_limit
        self._ends: Counter[int] = Counter()
        self._since: dict[tuple[str, int], tuple[int, float]] = {}

    @property
    def suspects(self) -> set[int]:
        return set(self._ends) - self.condemned

    @property
    def condemned(self) -> set[int]:
        return {position for position, ends in self._ends.items() if ends >= self._max_ends}

    def died(self, worker: str, notes: Iterable[int]) -> list[int]:
        """Take note of what a worker was handling when it died; returns what is condemned for it now."""
        for key in [key for key in self._since if key[0] == worker]:
            del self._since[key]
        found = {position for position in notes if position != IDLE}
        before = self.condemned
        self._ends.update(found)
        return sorted(self.condemned - before)

    def overdue(self, worker: str, notes: Iterable[int], now: float) -> int | None:
        """A position that one of the worker's mailboxes has been handling for longer than the limit."""
        for mailbox, position in enumerate(notes):
            known, since = self._since.get((worker, mailbox), (IDLE, now))
            if position != known:
                since = now
                self._since[(worker, mailbox)] = (position, now)
            if position != IDLE and now - since > self._time_limit:
                return position
        return None
