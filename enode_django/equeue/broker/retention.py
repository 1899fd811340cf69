"""Which message files may be deleted. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

Consumed: TypeAlias = Callable[[str, int], int | None]
"""Of a topic's queue, the lowest offset that any consumer group still needs; None if no group consumes the topic."""


class QueuePart(NamedTuple):
    """What a file holds of one queue: the offset of the message behind it, and when its newest batch was taken
    (seconds since 1970)."""

    topic: str
    queue: int
    beyond: int
    newest: float


class Retention(NamedTuple):
    """When the oldest file is due: it is older than ``max_age`` seconds, or all files together hold more than
    ``max_bytes`` or ``max_messages``; with ``all_limits`` only when every limit that is set says so. Without any limit
    nothing is ever due.

    What a group still needs stays, and so does what no group consumes, unless ``delete_unconsumed``.
    """

    max_age: float | None = None
    max_bytes: int | None = None
    max_messages: int | None = None
    all_limits: bool = False
    delete_unconsumed: bool = False

    def is_due(self, *, age: float, size: int, messages: int) -> bool:
        """``age`` of the oldest file in seconds, ``size`` in bytes and number of messages of all files."""
        reached = (
            None if self.max_age is None else age > self.max_age,
            None if self.max_bytes is None else size > self.max_bytes,
            None if self.max_messages is None else messages > self.max_messages,
        )
        limits = [limit for limit in reached if limit is not None]
        return bool(limits) and (all(limits) if self.all_limits else any(limits))

    def spares(self, parts: Sequence[QueuePart], consumed: Consumed) -> bool:
        """Whether a file that is due has to stay because of what it holds."""
        return not self.delete_unconsumed and not all(_is_consumed(part, consumed) for part in parts)


def _is_consumed(part: QueuePart, consumed: Consumed) -> bool:
    needed = consumed(part.topic, part.queue)
    return needed is not None and needed >= part.beyond
