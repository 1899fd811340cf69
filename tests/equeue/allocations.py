"""Functions that divide queues, which tests name by their dotted paths."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

Shares = Mapping[str, frozenset[int]]


def all_to_the_first(queues: Sequence[int], members: Sequence[str], current: Shares) -> Mapping[str, Collection[int]]:
    return {members[0]: queues} if members else {}


def nonsense(queues: Sequence[int], members: Sequence[str], current: Shares) -> Mapping[str, Collection[int]]:
    """Give each queue to every member, which a division must not do."""
    return dict.fromkeys(members, queues)


NO_FUNCTION = 3
