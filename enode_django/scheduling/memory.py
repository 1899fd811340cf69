"""Scheduled commands in memory, with a clock that is turned by hand."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import count

from enode_django.outbox.rows import NewRow
from enode_django.scheduling.due import Changes, DeadlineKey, Due


class MemorySchedule:
    """Commands and deadlines that wait for the time ``now``, which begins with that of the machine and stands still."""

    def __init__(self) -> None:
        self.now = datetime.now(UTC)
        self._numbers = count()
        self._waiting: dict[DeadlineKey | int, tuple[datetime, int, NewRow]] = {}

    def __iter__(self) -> Iterator[tuple[datetime, NewRow]]:
        """Yield times and commands in the order in which they are due."""
        return ((at, command) for at, _, command in sorted(self._waiting.values(), key=lambda one: one[:2]))

    def add(self, command: NewRow, due: Due) -> None:
        number = next(self._numbers)
        self._waiting[number] = (self._moment(due), number, command)

    def cancel(self, command_id: str) -> bool:
        """Remove a command that is not a deadline. Return False if it does not wait here."""
        found = [
            key for key, (*_, row) in self._waiting.items() if isinstance(key, int) and row.command_id == command_id
        ]
        for key in found:
            del self._waiting[key]
        return bool(found)

    def change(self, changes: Changes) -> None:
        """Set and cancel deadlines, in the order of their keys, as the database does. One that is set again for a time
        keeps its place among those that are due together; one after an event is due after those of earlier events."""
        for key, scheduled in sorted(changes.items(), key=lambda item: item[0]):
            before = self._waiting.pop(key, None)
            if scheduled is not None:
                keeps_place = scheduled.due.at is not None
                number = before[1] if before is not None and keeps_place else next(self._numbers)
                self._waiting[key] = (self._moment(scheduled.due), number, scheduled.command)

    def _moment(self, due: Due) -> datetime:
        """Events have the time of the machine, which does not follow this clock: a delay after an event counts from
        now. Times are of UTC: Python compares and adds those of a zone by their clock faces."""
        return due.at.astimezone(UTC) if due.at is not None else self.now + due.after

    def next_due(self, until: datetime) -> NewRow | None:
        """Remove and return the first command that is due at ``until``, and set the clock to its time. Return None if
        there is none."""
        first = min(self._waiting.items(), key=lambda item: item[1][:2], default=None)
        if first is None or first[1][0] > until:
            return None
        key, (at, _, command) = first
        del self._waiting[key]
        self.now = max(self.now, at)
        return command
