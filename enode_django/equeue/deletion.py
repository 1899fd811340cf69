"""Check which topics and queues may be deleted. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from enode_django.equeue.messages import GroupState, QueueState
from enode_django.exceptions import QueueError


def check_unused(topic: str, groups: Mapping[str, GroupState], bounds: Mapping[int, tuple[int, int]]) -> None:
    """Raise `QueueError` while a group has living members or leases, or uncommitted messages, and if there are
    messages but no group that counts. ``bounds`` has each queue's oldest offset and its next one."""
    uses = [*_living(groups), *_unconsumed(groups, bounds)]
    if uses:
        raise QueueError(
            f"topic {topic!r} is in use: {'; '.join(uses)}; stop who consumes it when nothing is left, or delete it by "
            "force"
        )


def check_deletable_queue(
    topic: str, queue: int, state: QueueState, groups: Mapping[str, GroupState], *, force: bool
) -> None:
    """Raise `QueueError` for a queue that producers or consumers see; and, unless ``force``, while it is leased, has
    messages that a group has not committed, or has messages that no group counts for."""
    place = f"queue {queue} of topic {topic!r}"
    if state.to_producers or state.to_consumers:
        who = " and ".join([*["producers"] * state.to_producers, *["consumers"] * state.to_consumers])
        raise QueueError(f"{place} is seen by {who}; hide it first: manage.py enode queue hide {topic} {queue}")
    if force:
        return
    uses = [*_leases(groups, queue), *_unconsumed(groups, {queue: (state.first, state.end)})]
    if uses:
        raise QueueError(f"{place} is in use: {'; '.join(uses)}; let it be consumed first, or delete it by force")


def _living(groups: Mapping[str, GroupState]) -> Iterator[str]:
    for group, state in groups.items():
        living = {member for member, seconds in state.members.items() if seconds > 0}
        living |= {claim.owner for claim in state.claims.values() if claim.owner is not None and claim.seconds > 0}
        if living:
            yield f"group {group!r} has members ({', '.join(sorted(living))})"


def _leases(groups: Mapping[str, GroupState], queue: int) -> Iterator[str]:
    for group, state in groups.items():
        claim = state.claims.get(queue)
        if claim is not None and claim.owner is not None and claim.seconds > 0:
            yield f"{claim.owner!r} has a lease for group {group!r}"


def _unconsumed(groups: Mapping[str, GroupState], bounds: Mapping[int, tuple[int, int]]) -> Iterator[str]:
    counting = {group: state for group, state in groups.items() if state.counts}
    for group, state in counting.items():
        committed = {queue: claim.committed for queue, claim in state.claims.items()}
        backlog = sum(max(0, end - max(first, committed.get(queue, 0))) for queue, (first, end) in bounds.items())
        if backlog:
            yield f"group {group!r} has {backlog} messages left"
    left = sum(max(0, end - first) for first, end in bounds.values())  # foreign entries on Redis come after the end
    if left and not counting:
        yield f"no group consumes its {left} messages"
