"""The members of a consumer group, and the queues that each shall own. Pure: takes and returns states and times.

A member joins, and joins again before its session ends; a silent one is dropped. Each change of members or queues
divides the queues again, which raises the generation and moves as few queues as possible. Leases decide what a member
really owns: the old owner drains a queue first, the new one waits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from enode_django.equeue.assignment import Allocate, allocated, divide
from enode_django.equeue.messages import Membership


@dataclass(frozen=True, slots=True)
class Group:
    """``sessions``: the end of each member's session, by some clock; ``division``: the queues that each shall own."""

    generation: int = 0
    sessions: Mapping[str, float] = field(default_factory=dict)
    division: Mapping[str, frozenset[int]] = field(default_factory=dict)

    def membership(self, member: str) -> Membership:
        return Membership(self.generation, self.division.get(member, frozenset()), tuple(sorted(self.division)))


def joined(
    group: Group, member: str, *, now: float, session: float, queues: Sequence[int], allocate: Allocate = divide
) -> Group:
    """Return the group after a member has joined or renewed its session."""
    return _divided(replace(group, sessions={**group.sessions, member: now + session}), now, queues, allocate)


def left(group: Group, member: str, *, now: float, queues: Sequence[int], allocate: Allocate = divide) -> Group:
    """Return the group without a member. The others learn of their queues when they join again."""
    sessions = {name: until for name, until in group.sessions.items() if name != member}
    return _divided(replace(group, sessions=sessions), now, queues, allocate)


def _divided(group: Group, now: float, queues: Sequence[int], allocate: Allocate) -> Group:
    sessions = {name: until for name, until in group.sessions.items() if until > now}
    divided: set[int] = set().union(*group.division.values())
    if sessions.keys() == group.division.keys() and (divided == set(queues) or not sessions):
        return replace(group, sessions=sessions)
    division = allocated(allocate, queues, sorted(sessions), group.division)
    return Group(group.generation + 1, sessions, division)
