"""Records of a topic and its consumer groups: queues, producers, members, leases, offsets, receipts. Pure.

`plain_group` and `restored_group` convert the record of a group into data and back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from enode_django.equeue.assignment import rotated
from enode_django.equeue.membership import Group
from enode_django.equeue.messages import Commit, GroupState, QueueOwnership, QueueState, Route
from enode_django.equeue.receipts import Receipts
from enode_django.equeue.transport import MOST_PRODUCERS, PRODUCER_SECONDS
from enode_django.exceptions import QueueBacklog, QueueError

Bounds = Mapping[int, tuple[int, int]]
"""The offset of each queue's oldest message, and the offset that its next message will get."""


@dataclass(slots=True)
class QueueClaim:
    """The lease and the offset of one group at one queue. ``owner`` is None after a release, ``offset`` before the
    group has had the queue; no commit has epoch 0. ``previous`` is the earlier owner, until the owner has shown that
    it knows. ``deaths``: the members that died at the message of an offset. ``lease``: the seconds of the owner's
    latest lease."""

    owner: str | None = None
    until: float = 0.0
    epoch: int = 0
    previous: str | None = None
    offset: int | None = None
    receipts: Receipts = field(default_factory=Receipts)
    deaths: dict[int, set[str]] = field(default_factory=dict)
    lease: float = 0.0

    @property
    def committed(self) -> int:
        return self.offset or 0

    def commit(self, commit: Commit) -> None:
        if commit.offset <= self.committed:
            return
        if commit.receipts:
            self.receipts.add(receipt.body for receipt in commit.receipts if receipt.offset >= self.committed)
            self.receipts.keep(commit.keep)
        self.move_to(commit.offset)

    def move_to(self, offset: int) -> None:
        self.offset = offset
        if self.deaths:
            self.deaths = {at: members for at, members in self.deaths.items() if at >= offset}

    def lose(self) -> None:
        self.owner, self.until, self.epoch = None, 0.0, 0

    def shown(self, now: float) -> QueueOwnership:
        return QueueOwnership(self.committed, self.epoch, self.owner, max(0.0, self.until - now) if self.owner else 0.0)


@dataclass(slots=True)
class GroupRecord:
    group: Group = field(default_factory=Group)
    claims: dict[int, QueueClaim] = field(default_factory=dict)
    retired: bool = False
    paused: bool = False

    @property
    def longest_lease(self) -> float:
        return max((claim.lease for claim in self.claims.values() if claim.owner is not None), default=0.0)

    @property
    def counts(self) -> bool:
        """Return True if trimming waits for the group: it has acquired a queue, and was not retired since."""
        return bool(self.claims) and not self.retired

    def knows(self, member: str) -> bool:
        """Return True for a member and for the owner of a queue."""
        return member in self.group.sessions or any(claim.owner == member for claim in self.claims.values())

    def ruled_by(self, queue: int, epoch: int) -> QueueClaim | None:
        claim = self.claims.get(queue)
        return claim if claim is not None and epoch and claim.epoch == epoch else None


class KnownProducers:
    """The processes that have announced themselves, the least recent first."""

    def __init__(self) -> None:
        self._heard: dict[str, float] = {}

    def hear(self, name: str, *, now: float) -> None:
        self._heard.pop(name, None)
        self._heard[name] = now
        while len(self._heard) > MOST_PRODUCERS:
            del self._heard[next(iter(self._heard))]

    def seconds(self, *, now: float) -> Mapping[str, float]:
        """Return the seconds since each announcement. Drop those older than `PRODUCER_SECONDS`."""
        self._heard = {name: heard for name, heard in self._heard.items() if now - heard < PRODUCER_SECONDS}
        return {name: max(0.0, now - heard) for name, heard in sorted(self._heard.items())}


@dataclass(slots=True)
class Topic:
    name: str
    queues: int
    version: int = 1
    hidden_from_producers: set[int] = field(default_factory=set)
    hidden_from_consumers: set[int] = field(default_factory=set)
    groups: dict[str, GroupRecord] = field(default_factory=dict)
    producers: KnownProducers = field(default_factory=KnownProducers, compare=False)
    max_age: float | None = None

    @property
    def route(self) -> Route:
        return Route(self.version, tuple(q for q in range(self.queues) if q not in self.hidden_from_producers))

    def given(self, group: str) -> list[int]:
        """Return the queues that are assigned to the members of a group, `rotated`: none while it is paused."""
        record = self.groups.get(group)
        if record is not None and record.paused:
            return []
        return rotated(set(range(self.queues)) - self.hidden_from_consumers, group)

    def shown(self, bounds: Bounds) -> dict[int, QueueState]:
        return {
            queue: QueueState(*at, queue not in self.hidden_from_producers, queue not in self.hidden_from_consumers)
            for queue, at in bounds.items()
        }

    def record(self, group: str) -> GroupRecord:
        return self.groups.setdefault(group, GroupRecord())

    def lowest_committed(self, queue: int) -> int:
        return self.needed(queue) or 0

    def needed(self, queue: int) -> int | None:
        """Return the lowest uncommitted offset of all groups; None if trimming waits for no group."""
        committed = [
            claim.committed if (claim := record.claims.get(queue)) is not None else 0
            for record in self.groups.values()
            if record.counts
        ]
        return min(committed) if committed else None

    def turned(self, queue: int) -> set[int]:
        """Return the queues that are hidden from producers after this one is hidden or shown. Raises `QueueError` if
        that would be all."""
        hidden = self.hidden_from_producers ^ {queue}
        if len(hidden) == self.queues:
            raise QueueError(f"queue {queue} is the last of topic {self.name!r} that producers see; show another first")
        return hidden

    def check_no_backlog(self, bounds: Bounds) -> None:
        for queue, (first, end) in bounds.items():
            left_over = end - max(first, self.lowest_committed(queue))
            if left_over > 0:
                raise QueueBacklog(
                    f"queue {queue} of topic {self.name!r} has {left_over} messages that not every group has finished, "
                    "and keys would go to other queues now; wait until there is no backlog, or say that order does not "
                    "matter (unordered)"
                )


def shown_group(record: GroupRecord, now: float) -> GroupState:
    """Return the state of a group for people and other processes."""
    group = record.group
    members = {member: max(0.0, until - now) for member, until in sorted(group.sessions.items())}
    claims = {queue: claim.shown(now) for queue, claim in sorted(record.claims.items())}
    return GroupState(group.generation, members, dict(group.division), claims, record.counts)


def plain_group(record: GroupRecord) -> list[Any]:
    """Return a value for `restored_group`; later changes do not change it."""
    group = record.group
    division = {member: sorted(queues) for member, queues in group.division.items()}
    claims = [
        [
            *(queue, claim.owner, claim.until, claim.epoch, claim.previous, claim.offset, claim.receipts.plain()),
            *(_plain_deaths(claim), claim.lease),
        ]
        for queue, claim in record.claims.items()
    ]
    return [group.generation, dict(group.sessions), division, claims, record.retired, record.paused]


def _plain_deaths(claim: QueueClaim) -> Sequence[Any]:
    if not claim.deaths:
        return ()  # the usual case, without a new object
    return [[offset, sorted(members)] for offset, members in claim.deaths.items()]


def restored_group(
    generation: int, sessions: Any, division: Any, claims: Any, retired: bool, paused: bool
) -> GroupRecord:
    group = Group(generation, sessions, {member: frozenset(queues) for member, queues in division.items()})
    restored = {
        queue: QueueClaim(
            *(owner, until, epoch, previous, offset),
            Receipts.restore(receipts),
            {at: set(members) for at, members in deaths},
            lease,
        )
        for queue, owner, until, epoch, previous, offset, receipts, deaths, lease in claims
    }
    return GroupRecord(group, restored, retired, paused)
