"""The members of a consumer group, and the queues that each shall own. Pure: states and times in, states out.

A member joins, and joins again before its session ends; one that falls silent is dropped. Whenever members or queues
change, the queues are divided anew, which raises the generation and moves as few of them as it can. What a member
really owns is decided by leases: whoever shall give up a queue drains it first, whoever shall have it waits.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from enode_django.equeue.assignment import Allocate, allocated, divide
from enode_django.equeue.messages import Membership


@dataclass(frozen=True, slots=True)
class Group:
    """``sessions``: until when each member counts, by some clock; ``division``: what each shall own."""

    generation: int = 0
    sessions: Mapping[str, float] = field(default_factory=dict)
    division: Mapping[str, frozenset[int]] = field(default_factory=dict)

    def membership(self, member: str) -> Membership:
        return Membership(self.generation, self.division.get(member, frozenset()), tuple(sorted(self.division)))


def joined(
    group: Group, member: str, *, now: float, session: float, queues: Collection[int], allocate: Allocate = divide
) -> Group:
    """The group after a member has joined, or said that it is still there."""
    return _divided(replace(group, sessions={**group.sessions, member: now + session}), now, queues, allocate)


def left(group: Group, member: str, *, now: float, queues: Collection[int], allocate: Allocate = divide) -> Group:
    """The group without a member. What the others get is known to each when it joins again."""
    sessions = {name: until for name, until in group.sessions.items() if name != member}
    return _divided(replace(group, sessions=sessions), now, queues, allocate)


def _divided(group: Group, now: float, queues: Collection[int], allocate: Allocate) -> Group:
    sessions = {name: until for name, until in group.sessions.items() if until > now}
    divided: set[int] = set().union(*group.division.values())
    if sessions.keys() == group.division.keys() and (divided == set(queues) or not sessions):
        return replace(group, sessions=sessions)
    division = allocated(allocate, sorted(queues), sorted(sessions), group.division)
    return Group(group.generation + 1, sessions, division)
