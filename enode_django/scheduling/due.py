"""The time at which a scheduled command is due, and the key of a deadline."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from enode_django.exceptions import InvalidField, shown
from enode_django.outbox.rows import NewRow

LONGEST_AFTER = timedelta(days=366 * 1000)


class Due(NamedTuple):
    """A time: ``at``, or ``after`` the time ``since`` by this duration. Without ``since`` it counts from now, by the
    clock of the database."""

    at: datetime | None = None
    after: timedelta = timedelta()
    since: datetime | None = None

    @property
    def moment(self) -> datetime | None:
        """The time; None if only the database knows."""
        return self.at if self.at is not None or self.since is None else self.since + self.after


class DeadlineKey(NamedTuple):
    """A process manager's key, the id that its deadline belongs to, and the name of the deadline. Scheduling it again
    replaces it."""

    subscriber: str
    scope: str
    name: str


class Scheduled(NamedTuple):
    """A command that waits for its time."""

    command: NewRow
    due: Due


Changes = Mapping[DeadlineKey, Scheduled | None]
"""Deadlines to be set (None: cancelled)."""

ChangeDeadlines = Callable[[str, Changes], None]
"""(alias, changes): write the changes in the transaction that is open in the database."""


def due_of(at: datetime | None, after: timedelta | float | None, since: datetime | None = None) -> Due:
    """Return the time that a caller names. Raises `InvalidField` unless exactly one of ``at``, a datetime with a time
    zone, and ``after``, a timedelta or a number of seconds, is given."""
    if (at is None) == (after is None):
        raise InvalidField(f"at={shown(at)}, after={shown(after)}: give one of them")
    if after is None:
        if not isinstance(at, datetime) or at.utcoffset() is None:
            raise InvalidField(
                f"at={shown(at)} is not a datetime with a time zone; give one, such as datetime.now(UTC)"
            )
        try:
            at.astimezone(UTC)
        except OverflowError:  # PostgreSQL would store it, but nobody could read it again
            raise InvalidField(f"at={shown(at)} is outside the years 1 to 9999 in UTC") from None
        return Due(at)
    wait = after
    if isinstance(wait, int | float) and not isinstance(wait, bool):  # NaN becomes -1
        wait = timedelta(seconds=max(-1.0, min(wait, 2 * LONGEST_AFTER.total_seconds())))
    if not isinstance(wait, timedelta) or not timedelta() <= wait <= LONGEST_AFTER:
        raise InvalidField(
            f"after={shown(after)} is not a timedelta, or a number of seconds, from 0 to {LONGEST_AFTER.days} days"
        )
    return Due(None, wait, since)
