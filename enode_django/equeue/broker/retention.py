"""Decide which message files may be deleted. No I/O."""

from __future__ import annotations

import logging
from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

logger = logging.getLogger(__name__)

_NONE = (1 << 64) - 1
"""Stands for no offset."""
LONGEST_NOTICE = 86_400.0
"""The most seconds between the notice that unconsumed messages will be deleted and their deletion; a third of the age
if that is less."""

Consumed: TypeAlias = Callable[[str, int], int | None]
"""Returns the lowest offset of a topic's queue that a consumer group still needs; None if no group consumes it."""


class QueuePart(NamedTuple):
    """The part of one queue in a file. ``beyond``: the offset behind its last message. ``newest``: when its newest
    batch was stored, in seconds since 1970. ``following``: the offset of the first message behind the file, None if
    there was none."""

    topic: str
    queue: int
    beyond: int
    newest: float
    following: int | None = None


class QueueParts:
    """The contents of one file by queue, in the order in which they were added. They are kept in arrays, and iteration
    makes the tuples: a thousand stored tuples would keep the garbage collector busy for tens of milliseconds."""

    def __init__(self) -> None:
        self._names: list[tuple[str, int]] = []
        self._numbers = array("Q")

    def __iter__(self) -> Iterator[QueuePart]:
        numbers = iter(self._numbers)
        for (topic, queue), beyond, time, following in zip(self._names, numbers, numbers, numbers, strict=True):
            yield QueuePart(topic, queue, beyond, time / 1000, following if following != _NONE else None)

    def add(self, name: tuple[str, int], beyond: int, time: int, following: int | None) -> None:
        """``time`` in milliseconds since 1970."""
        self._names.append(name)
        self._numbers.extend((beyond, time, _NONE if following is None else following))


OwnAge: TypeAlias = Callable[[str], float | None]
"""Returns the seconds for which the messages of a topic are kept; None if the topic has no age of its own."""


def by_own_ages(parts: Sequence[QueuePart], max_age: float | None, own_age: OwnAge) -> Sequence[QueuePart]:
    """Return the parts with ``newest`` shifted for topics that have an age of their own: by its difference from
    ``max_age``, so that ``max_age`` can be applied to all parts."""
    if max_age is None:
        return parts
    ages = {topic: own_age(topic) for topic in {part.topic for part in parts}}
    shifts = {topic: age - max_age for topic, age in ages.items() if age is not None}
    if not shifts:
        return parts
    return [part._replace(newest=part.newest + shifts.get(part.topic, 0.0)) for part in parts]


class Notices:
    """Records when notice was given that the unconsumed messages of a topic will be deleted. Used by one thread."""

    def __init__(self) -> None:
        self._said: dict[str, float] = {}

    def allow(self, part: QueuePart, max_age: float, now: float) -> bool:
        """Return True if unconsumed messages may be deleted by their age. When they are first about to reach it, log a
        notice, and keep them for the time of the notice, however old they are."""
        notice, age = min(LONGEST_NOTICE, max_age / 3), now - part.newest
        if age > max_age - notice and part.topic not in self._said:
            self._said[part.topic] = now
            left = max(notice, max_age - age)
            logger.warning(
                "nobody consumes topic %r: what is older than %.0f hours will be deleted, for the first time in %.0f "
                "hours; let a group consume it, or raise RETENTION_AGE, to keep it",
                *(part.topic, max_age / 3600, left / 3600),
            )
        return age > max_age and now - self._said[part.topic] >= notice


class Retention(NamedTuple):
    """Decides when the oldest file is due: if it is older than ``max_age`` seconds, or all files together hold more
    than ``max_bytes`` or ``max_messages``; with ``all_limits``, only if every limit that is set is exceeded. Without
    any limit nothing is due.

    What a group still needs stays, unless ``delete_unconsumed``. What no group consumes, and dead letters, stay until
    they are older than ``max_age`` and `Notices` allow it: otherwise one of them would keep everything behind it for
    ever.
    """

    max_age: float | None = None
    max_bytes: int | None = None
    max_messages: int | None = None
    all_limits: bool = False
    delete_unconsumed: bool = False

    def is_due(self, *, age: float, size: int, messages: int) -> bool:
        """Return True if the oldest file is due: its ``age`` in seconds, ``size`` in bytes and ``messages`` of all
        files."""
        limits = ((age, self.max_age), (size, self.max_bytes), (messages, self.max_messages))
        exceeded = [value > limit for value, limit in limits if limit is not None]
        return bool(exceeded) and (all(exceeded) if self.all_limits else any(exceeded))

    def spares(self, parts: Sequence[QueuePart], consumed: Consumed, notices: Notices, *, now: float) -> bool:
        """Return True if a due file must stay: a group needs it, or nobody consumes it and it may not go yet."""
        if self.delete_unconsumed:
            return False
        stay = [not self._may_go(part, consumed(part.topic, part.queue), notices, now) for part in parts]
        return any(stay)  # a list, not a generator: each part may have to log a notice

    def _may_go(self, part: QueuePart, needed: int | None, notices: Notices, now: float) -> bool:
        if needed is None:
            return self.max_age is not None and notices.allow(part, self.max_age, now)
        return needed >= part.beyond
