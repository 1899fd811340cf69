"""What travels between the queue and its clients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class SendResult(NamedTuple):
    """Where a message lies: its topic, its queue, and its offset in that queue (0, 1, 2 …)."""

    topic: str
    queue: int
    offset: int


class PulledBatch(NamedTuple):
    """Messages of one queue. ``offsets`` ascend; a gap means that messages in between were deleted."""

    queue: int
    offsets: Sequence[int]
    bodies: Sequence[bytes]


class Lease(NamedTuple):
    """The right to consume one queue for a consumer group until the lease ends.

    ``epoch`` is higher than that of every earlier lease of this queue and group; each commit carries it.
    ``committed`` is the offset to go on from, ``end`` the offset that the next message sent will get.
    ``previous_owner`` is set when the lease before was not released but ran out: that owner may still be alive.
    """

    epoch: int
    committed: int
    end: int
    previous_owner: str | None


class Receipt(NamedTuple):
    """What a consumer group keeps of a finished message, for whoever consumes the queue after it."""

    offset: int
    body: bytes


class Commit(NamedTuple):
    """``offset`` is the lowest one that is not finished; everything below it is never delivered again.

    ``receipts`` (by ascending offset) are those of messages that this commit moves past. When there are any, the newest
    ``keep`` of all receipts of the queue stay.
    """

    epoch: int
    offset: int
    receipts: Sequence[Receipt] = ()
    keep: int = 0
