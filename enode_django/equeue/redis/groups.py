"""Consumer groups on Redis: members, and the state of a topic's groups.

Each member's session is a field of its own, so heartbeats do not compete. A member that finds a division which does
not fit the members makes a new one, by compare-and-set.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgpack

from enode_django.equeue.assignment import Allocate, rotated
from enode_django.equeue.membership import Group, joined, left
from enode_django.equeue.messages import GroupState, Membership, QueueOwnership
from enode_django.equeue.redis.batches import milliseconds, parse_queues
from enode_django.equeue.redis.claim_scripts import BURY, SHOW_CLAIM
from enode_django.equeue.redis.connection import RedisConnection, ScriptCall
from enode_django.equeue.redis.keys import Keys
from enode_django.equeue.redis.topic_scripts import COUNT, DIVIDE, MEMBERS, PAUSE, RETIRE
from enode_django.equeue.redis.topics import RedisTopics
from enode_django.equeue.refusals import unknown_group, unknown_topic


class RedisGroups:
    def __init__(self, keys: Keys, connection: RedisConnection, topics: RedisTopics, allocate: Allocate) -> None:
        self._allocate = allocate
        self._keys = keys
        self._connection = connection
        self._topics = topics

    def join(self, group: str, topic: str, member: str, session: float) -> Membership:
        while True:
            now, queues, division, known = self._members("join", group, topic, member, session)
            after = joined(known, member, now=now, session=session, queues=queues, allocate=self._allocate)
            if self._divided(group, topic, known, after, division):
                return after.membership(member)

    def leave(self, group: str, topic: str, member: str) -> None:
        while True:
            now, queues, division, known = self._members("leave", group, topic, member)
            if not division:
                return
            after = left(known, member, now=now, queues=queues, allocate=self._allocate)
            if self._divided(group, topic, known, after, division):
                return

    def bury(self, group: str, topic: str, member: str, deaths: Collection[tuple[int, int]]) -> None:
        self._topics.check(topic, [queue for queue, _ in deaths])
        self.leave(group, topic, member)
        calls = [
            ScriptCall(
                BURY,
                (self._keys.claim(topic, queue, group),),
                (member, *(offset for at, offset in deaths if at == queue)),
            )
            for queue in range(self._topics.count(topic))
        ]
        self._connection.run_all(calls, confirmed=True)

    def show(self, topic: str) -> Mapping[str, GroupState]:
        count = self._topics.count(topic)
        states = self._connection.execute("HGETALL", self._keys.groups(topic))
        return {
            group.decode(): self._shown(group.decode(), topic, count, state == b"counts")
            for group, state in sorted(states.items())
        }

    def _shown(self, group: str, topic: str, count: int, counts: bool) -> GroupState:
        now, _, _, known = self._members("look", group, topic, "")
        calls = [ScriptCall(SHOW_CLAIM, (self._keys.claim(topic, queue, group),)) for queue in range(count)]
        claims = {
            queue: QueueOwnership(
                answer[0], answer[1], answer[2].decode() or None, answer[3] / 1000 if answer[2] else 0.0
            )
            for queue, answer in enumerate(self._connection.run_all(calls))
            if answer
        }
        sessions = {member: max(0.0, until - now) for member, until in sorted(known.sessions.items())}
        return GroupState(known.generation, sessions, dict(known.division), claims, counts)

    def counts_from_now_on(self, group: str, topic: str, *, again: bool) -> None:
        """Make trimming wait for a group; a retired one only with ``again``.

        Confirmed by replicas each time: a new master without the group would trim messages that it has not read, and a
        stored entry may come from a call whose confirmation failed.
        """
        keys = (self._keys.groups(topic), self._keys.topic(topic))
        if self._connection.run(COUNT, keys, (group, "1" if again else "0"), confirmed=True) < 0:
            self._topics.read(topic)  # raises

    def retire(self, group: str, topic: str) -> None:
        self._topics.count(topic)
        self._connection.run(RETIRE, (self._keys.groups(topic),), (group,))

    def pause(self, group: str, topic: str, paused: bool) -> None:
        self._topics.read(topic)
        keys = (self._keys.topic(topic), self._keys.groups(topic))
        if not self._connection.run(PAUSE, keys, (group, "1" if paused else "0"), confirmed=True):
            raise unknown_group(topic, group, self.show(topic))

    def paused(self, topic: str) -> list[str]:
        self._topics.read(topic)
        fields = self._connection.execute("HKEYS", self._keys.topic(topic))
        return sorted(name.decode().removeprefix("paused:") for name in fields if name.startswith(b"paused:"))

    def delete(self, group: str, topic: str) -> None:
        count = self._topics.count(topic)
        # First from the list: an owner that acquires a queue meanwhile adds the group again, and no trim overlooks it.
        self._connection.execute("HDEL", self._keys.groups(topic), group)
        commands = [("HDEL", self._keys.topic(topic), f"paused:{group}"), ("DEL", self._keys.group(topic, group))]
        for queue in range(count):
            commands += [
                ("DEL", self._keys.claim(topic, queue, group)),
                ("DEL", self._keys.receipts(topic, queue, group)),
            ]
        self._connection.execute_all(commands)

    def _members(
        self, action: str, group: str, topic: str, member: str, session: float = 0.0
    ) -> tuple[float, Sequence[int], bytes, Group]:
        """Return the server's time, the queues to divide, the stored division, and the group that it decodes to."""
        keys = (self._keys.topic(topic), self._keys.groups(topic), self._keys.group(topic, group))
        answer = self._connection.run(MEMBERS, keys, (action, group, member, milliseconds(session)))
        if answer is None:
            self._topics.read(topic)
            raise unknown_topic(topic)
        now, count, hidden, division, members = answer
        sessions = {name.decode(): until / 1000 for name, until in zip(members[::2], members[1::2], strict=True)}
        generation, shares = msgpack.unpackb(division) if division else (0, {})
        known = Group(generation, sessions, {name: frozenset(queues) for name, queues in shares.items()})
        return now / 1000, rotated(set(range(count)) - parse_queues(hidden), group), division, known

    def _divided(self, group: str, topic: str, before: Group, after: Group, division: bytes) -> bool:
        """Return True if ``after`` is the stored division; False if another process has divided meanwhile."""
        if after.generation == before.generation:
            return True
        shares: dict[str, Any] = {member: sorted(queues) for member, queues in after.division.items()}
        ended = before.sessions.keys() - after.sessions.keys()
        arguments: list[bytes | str] = [division, msgpack.packb((after.generation, shares)), *sorted(ended)]
        return bool(self._connection.run(DIVIDE, (self._keys.group(topic, group),), arguments))
