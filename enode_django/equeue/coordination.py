"""Topics and their consumer groups: members, leases, offsets, receipts. Pure: no clock, no I/O, no lock.

The memory driver and the broker keep one `Coordinator` each, and call it from one thread at a time. Times and the
bounds of queues are arguments. The effect of a call depends on its arguments alone, so a broker can write down the
calls that changed something and repeat them after a restart; `plain` and `restore` convert to data and back.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

from enode_django.equeue.assignment import Allocate, divide
from enode_django.equeue.membership import Group, joined, left
from enode_django.equeue.messages import Commit, GroupState, Lease, Membership, Start
from enode_django.equeue.refusals import (
    check_age,
    check_new_topic,
    check_queues,
    queue_held,
    topic_deleted,
    unknown_group,
    unknown_topic,
)
from enode_django.equeue.topic_records import (
    Bounds,
    GroupRecord,
    QueueClaim,
    Topic,
    plain_group,
    restored_group,
    shown_group,
)

EPOCHS_PER_RUN = 1 << 32


class Coordinator:
    """The state of topics and groups. Every method that takes a topic raises `UnknownTopic`, and `UnknownQueue` for
    a queue that it does not have. ``allocate`` divides the queues among the members of a group."""

    def __init__(self, allocate: Allocate = divide) -> None:
        self.topics: dict[str, Topic] = {}
        self._deleted: dict[str, int] = {}
        self._allocate = allocate
        self._epoch = 0

    def topic(self, name: str, queues: Collection[int] = ()) -> Topic:
        topic = self.topics.get(name)
        if topic is None:
            raise topic_deleted(name) if name in self._deleted else unknown_topic(name)
        check_queues(name, queues, topic.queues)
        return topic

    def is_deleted(self, name: str) -> bool:
        return name in self._deleted

    # -- topics ---------------------------------------------------------------------------------------------------

    def create_topic(self, name: str, queues: int) -> int:
        check_new_topic(name, queues)
        if name not in self.topics:
            self.topics[name] = Topic(name, queues, self._deleted.pop(name, 0) + 1)
        return self.topics[name].queues

    def delete_topic(self, name: str) -> None:
        """Delete a topic, except the version of its route: a sender with that version must not send to a later topic
        of the same name."""
        self._deleted[name] = self.topic(name).version
        del self.topics[name]

    def add_queues(self, name: str, queues: int, *, unordered: bool, bounds: Bounds) -> int:
        topic = self.topic(name)
        if queues > topic.queues:
            if not unordered:
                topic.check_no_backlog(bounds)
            topic.queues, topic.version = queues, topic.version + 1
        return topic.queues

    def show(
        self,
        name: str,
        queue: int,
        *,
        to_producers: bool | None,
        to_consumers: bool | None,
        unordered: bool,
        bounds: Bounds,
    ) -> None:
        topic = self.topic(name, (queue,))
        if to_producers is not None and to_producers is (queue in topic.hidden_from_producers):
            hidden = topic.turned(queue)
            if not unordered:
                topic.check_no_backlog(bounds)
            topic.hidden_from_producers, topic.version = hidden, topic.version + 1
        if to_consumers is not None and to_consumers is (queue in topic.hidden_from_consumers):
            topic.hidden_from_consumers = topic.hidden_from_consumers ^ {queue}

    def delete_queue(self, name: str, queue: int, end: int) -> None:
        """Move every group to the end of a queue, and drop its leases and receipts of it."""
        for record in self.topic(name, (queue,)).groups.values():
            if queue in record.claims:
                record.claims[queue] = QueueClaim(offset=end)

    def set_retention(self, name: str, max_age: float | None) -> None:
        check_age(max_age)
        self.topic(name).max_age = max_age

    # -- members --------------------------------------------------------------------------------------------------

    def join(self, group: str, name: str, member: str, session: float, *, now: float) -> Membership:
        topic = self.topic(name)
        record = topic.record(group)
        record.group = joined(
            record.group, member, now=now, session=session, queues=topic.given(group), allocate=self._allocate
        )
        return record.group.membership(member)

    def leave(self, group: str, name: str, member: str, *, now: float) -> None:
        """End a membership, and free queues that the member owned before a restart: it has no epoch to release them
        with. The next owner gets its name, since it may still be working."""
        topic = self.topic(name)
        record = topic.groups.get(group)
        if record is None:
            return
        record.group = left(record.group, member, now=now, queues=topic.given(group), allocate=self._allocate)
        for claim in record.claims.values():
            if claim.owner == member and not claim.epoch and claim.until > 0:
                claim.until = 0.0

    def bury(self, group: str, name: str, member: str, deaths: Collection[tuple[int, int]] = (), *, now: float) -> None:
        topic = self.topic(name, [queue for queue, _ in deaths])
        self.leave(group, name, member, now=now)
        record = topic.record(group)
        for claim in record.claims.values():
            if claim.owner == member:
                claim.until = 0.0
        for queue, offset in deaths:
            claim = record.claims.setdefault(queue, QueueClaim())
            if offset >= claim.committed:
                claim.deaths.setdefault(offset, set()).add(member)

    # -- leases ---------------------------------------------------------------------------------------------------

    def acquire(
        self,
        group: str,
        name: str,
        queue: int,
        owner: str,
        lease: float,
        start: Start | int = Start.FIRST,
        *,
        bounds: tuple[int, int],
        now: float,
    ) -> Lease:
        self.check_free(group, name, queue, owner, now=now)
        record = self.topic(name).record(group)
        claim = record.claims.setdefault(queue, QueueClaim())
        if claim.owner != owner:  # else the answer may have been lost: repeat it
            claim.previous = claim.owner
        record.retired = False
        self._epoch += 1
        claim.owner, claim.until, claim.epoch, claim.lease = owner, now + lease, self._epoch, lease
        if claim.offset is None:
            claim.move_to(_start(start, bounds))
        deaths = {offset: len(members) for offset, members in claim.deaths.items()}
        return Lease(claim.epoch, claim.committed, bounds[1], claim.previous, deaths)

    def check_free(self, group: str, name: str, queue: int, owner: str, *, now: float) -> None:
        """Raise `QueueHeld` while another owner's lease runs."""
        record = self.topic(name, (queue,)).groups.get(group, GroupRecord())
        claim = record.claims.get(queue, QueueClaim())
        if claim.owner is not None and claim.owner != owner and claim.until > now:
            raise queue_held(name, queue, claim.owner, claim.until - now)

    @property
    def next_epoch(self) -> int:
        return self._epoch + 1

    def go_on_with(self, epoch: int) -> None:
        """Give the next lease this epoch, as it had before a restart."""
        self._epoch = epoch - 1

    def renew(
        self, group: str, name: str, owner: str, epochs: Mapping[int, int], lease: float, *, now: float
    ) -> AbstractSet[int]:
        lost = set()
        for queue, claim in self._ruled(group, name, epochs).items():
            if claim is None or claim.owner != owner:
                lost.add(queue)
            else:
                claim.until, claim.previous, claim.lease = now + lease, None, lease
        return lost

    def longer(self, group: str, name: str, owner: str, epochs: Mapping[int, int], lease: float) -> list[int]:
        """Return the queues whose leases are shorter than a renewal with these arguments."""
        ruled = self._ruled(group, name, epochs).items()
        return [queue for queue, claim in ruled if claim is not None and claim.owner == owner and claim.lease < lease]

    def lengthen(self, group: str, name: str, queues: Collection[int], lease: float) -> None:
        """Note that owners may trust their leases for ``lease`` seconds since the last renewal."""
        claims = self.topic(name, queues).record(group).claims
        for queue in queues:
            claims.setdefault(queue, QueueClaim()).lease = lease

    def release(self, group: str, name: str, owner: str, epochs: Mapping[int, int]) -> None:
        for claim in self._ruled(group, name, epochs).values():
            if claim is not None and claim.owner == owner:
                claim.owner = None

    def refused(self, group: str, name: str, commits: Mapping[int, Commit]) -> AbstractSet[int]:
        """Return the queues whose commits `commit` would refuse because of a stale epoch."""
        ruled = self._ruled(group, name, {queue: commit.epoch for queue, commit in commits.items()})
        return {queue for queue, claim in ruled.items() if claim is None}

    def commit(self, group: str, name: str, commits: Mapping[int, Commit]) -> AbstractSet[int]:
        ruled = self._ruled(group, name, {queue: commit.epoch for queue, commit in commits.items()})
        for queue, claim in ruled.items():
            if claim is not None:
                claim.previous = None
                claim.commit(commits[queue])
        return {queue for queue, claim in ruled.items() if claim is None}

    def _ruled(self, group: str, name: str, epochs: Mapping[int, int]) -> dict[int, QueueClaim | None]:
        record = self.topic(name, epochs).groups.get(group, GroupRecord())
        return {queue: record.ruled_by(queue, epoch) for queue, epoch in epochs.items()}

    # -- groups ---------------------------------------------------------------------------------------------------

    def receipts(self, group: str, name: str, queue: int, first: int = 0) -> Sequence[bytes]:
        claim = self.topic(name, (queue,)).groups.get(group, GroupRecord()).claims.get(queue)
        return claim.receipts.since(first) if claim is not None else []

    def committed(self, group: str, name: str) -> Mapping[int, int]:
        topic = self.topic(name)
        claims = topic.groups.get(group, GroupRecord()).claims
        return {queue: claims[queue].committed if queue in claims else 0 for queue in range(topic.queues)}

    def set_offset(self, group: str, name: str, queue: int, offset: int, *, bounds: tuple[int, int]) -> None:
        claim = self.topic(name, (queue,)).record(group).claims.setdefault(queue, QueueClaim())
        claim.lose()
        claim.move_to(min(max(offset, bounds[0]), bounds[1]))

    def groups(self, name: str, *, now: float) -> Mapping[str, GroupState]:
        return {group: shown_group(record, now) for group, record in sorted(self.topic(name).groups.items())}

    def retire_group(self, group: str, name: str) -> None:
        record = self.topic(name).groups.get(group)
        if record is not None:
            record.retired = True

    def check_group(self, group: str, name: str) -> None:
        """Raise `QueueError` for a group that the topic does not have."""
        known = self.topic(name).groups
        if group not in known:
            raise unknown_group(name, group, known)

    def pause_group(self, group: str, name: str, paused: bool) -> None:
        self.check_group(group, name)
        self.topic(name).groups[group].paused = paused

    def paused_groups(self, name: str) -> list[str]:
        return sorted(group for group, record in self.topic(name).groups.items() if record.paused)

    def delete_group(self, group: str, name: str) -> None:
        self.topic(name).groups.pop(group, None)

    # -- restarts -------------------------------------------------------------------------------------------------

    def restarted(self, run: int, *, now: float, patience: float, bounds: Mapping[str, Bounds]) -> None:
        """Begin the ``run``-th run after a restart. Leases from before are invalid, since messages and offsets may have
        been lost. Owners and members keep their queues for ``patience`` seconds, or for the time of their lease if that
        is longer: an owner that does not notice the restart trusts its lease for that time."""
        self._epoch = run * EPOCHS_PER_RUN
        for topic in self.topics.values():
            for record in topic.groups.values():
                sessions = dict.fromkeys(record.group.sessions, now + max(patience, record.longest_lease))
                record.group = Group(record.group.generation, sessions, record.group.division)
                for queue, claim in record.claims.items():
                    claim.epoch, claim.until = 0, now + max(patience, claim.lease) if claim.until > 0 else 0.0
                    if claim.offset is not None:
                        claim.offset = min(claim.offset, bounds[topic.name][queue][1])

    def plain(self) -> list[Any]:
        """Return the state as lists, dictionaries, numbers, texts and bytes; later changes do not change it. Fast for
        any number of receipts, which are packed already."""
        return [
            [
                [
                    *(topic.name, topic.queues, topic.version),
                    *(sorted(topic.hidden_from_producers), sorted(topic.hidden_from_consumers)),
                    {name: plain_group(record) for name, record in topic.groups.items()},
                    topic.max_age,
                ]
                for topic in self.topics.values()
            ],
            self._epoch,
            dict(self._deleted),
        ]

    @classmethod
    def restore(cls, plain: Sequence[Any], allocate: Allocate = divide) -> Coordinator:
        coordinator = cls(allocate)
        topics, coordinator._epoch, coordinator._deleted = plain
        for name, queues, version, producers, consumers, groups, max_age in topics:
            records = {group: restored_group(*values) for group, values in groups.items()}
            shown = set(producers), set(consumers)
            coordinator.topics[name] = Topic(name, queues, version, *shown, records, max_age=max_age)
        return coordinator


def _start(start: Start | int, bounds: tuple[int, int]) -> int:
    first, end = bounds
    if isinstance(start, Start):
        return first if start is Start.FIRST else end
    return min(max(start, first), end)
