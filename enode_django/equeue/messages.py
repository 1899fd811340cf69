"""The values that travel between the queue and its clients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from types import MappingProxyType
from typing import NamedTuple, Self

__all__ = [
    "Commit",
    "GroupState",
    "Lease",
    "Membership",
    "Once",
    "PulledBatch",
    "QueueOwnership",
    "QueueState",
    "Receipt",
    "Route",
    "SendResult",
    "Start",
]


class SendResult(NamedTuple):
    """The place of a message: its topic, its queue, and its offset in that queue (0, 1, 2 …)."""

    topic: str
    queue: int
    offset: int


class Once(NamedTuple):
    """The identity of a send: its sender and its number. A repeated send with the same identity is stored once.

    ``producer`` is a UUID in 32 hexadecimal digits, ``sequence`` a number that it uses for one send only.
    """

    producer: str
    sequence: int


class Route(NamedTuple):
    """The route of a topic's messages: a key chooses among ``queues``. ``version`` rises whenever they change."""

    version: int
    queues: tuple[int, ...]


class PulledBatch(NamedTuple):
    """Messages of one queue. ``offsets`` ascend; a gap means that messages in between were deleted. ``route`` is the
    version of the topic's route when they were read, so none of them was sent by a later one; None: the transport did
    not ask."""

    queue: int
    offsets: Sequence[int]
    bodies: Sequence[bytes]
    route: int | None = None


class MalformedBatch(bytes):
    """All bytes of a stored batch that cannot be decoded. A transport returns them as one message; ``reason`` says
    what is wrong with them."""

    reason: str

    def __new__(cls, content: bytes, reason: str) -> Self:
        self = super().__new__(cls, content)
        self.reason = reason
        return self


class Start(Enum):
    """The place where a group begins to consume a queue in which it has committed nothing."""

    FIRST = "first"
    LAST = "last"


class Membership(NamedTuple):
    """The queues that a member of a consumer group shall own. ``generation`` rises with each division."""

    generation: int
    queues: frozenset[int]
    members: tuple[str, ...]


_NONE: Mapping[int, int] = MappingProxyType({})


class Lease(NamedTuple):
    """The right to consume one queue for a consumer group until the lease ends.

    ``epoch`` is higher than that of every earlier lease of this queue and group; each commit carries it. ``committed``
    is the offset to continue from, ``end`` the offset that the next message sent will get. ``previous_owner`` is set
    when the previous lease ran out without being released, or its owner was buried: that owner may have left something
    running. ``deaths`` counts, by the offset of an uncommitted message, the owners that died while they worked on it.
    """

    epoch: int
    committed: int
    end: int
    previous_owner: str | None
    deaths: Mapping[int, int] = _NONE


class QueueOwnership(NamedTuple):
    """The ownership of one queue in a group. ``owner`` is None without a lease; ``seconds`` is its remaining time."""

    committed: int
    epoch: int
    owner: str | None
    seconds: float


class GroupState(NamedTuple):
    """``members`` has the seconds left of their sessions, ``division`` the queues that each shall own, ``claims`` the
    queues that were ever acquired. ``counts``: `Transport.trim` waits for the group."""

    generation: int
    members: Mapping[str, float]
    division: Mapping[str, frozenset[int]]
    claims: Mapping[int, QueueOwnership]
    counts: bool


class QueueState(NamedTuple):
    """``first`` is the offset of the oldest message left, ``end`` the offset that the next message will get."""

    first: int
    end: int
    to_producers: bool
    to_consumers: bool


class Receipt(NamedTuple):
    """The record that a consumer group keeps of a finished message, for the next consumer of the queue."""

    offset: int
    body: bytes

    @property
    def size(self) -> int:
        return len(self.body)


class Commit(NamedTuple):
    """``offset`` is the lowest unfinished one; everything below it is never delivered again.

    ``receipts`` (by ascending offset) are those of messages that this commit moves past. When there are any, only the
    newest ``keep`` of all receipts of the queue stay.
    """

    epoch: int
    offset: int
    receipts: Sequence[Receipt] = ()
    keep: int = 0
