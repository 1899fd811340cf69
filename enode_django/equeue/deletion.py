"""Which topics may be deleted. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from enode_django.equeue.messages import GroupState
from enode_django.exceptions import QueueError, TopicDeleted


def topic_deleted(topic: str) -> TopicDeleted:
    return TopicDeleted(
        f"topic {topic!r} was deleted; stop who uses it, or create it anew: create_topic, manage.py equeue create"
    )


def check_unused(topic: str, groups: Mapping[str, GroupState], bounds: Mapping[int, tuple[int, int]]) -> None:
    """Raise `QueueError` while a group has living members or leases, or messages that it has not committed, and if
    there are messages that no group counts for. ``bounds``: of each queue its oldest offset and its next one."""
    uses = [use for group, state in groups.items() for use in _uses(group, state, bounds)]
    left = sum(end - first for first, end in bounds.values())
    if left and not any(state.counts for state in groups.values()):
        uses.append(f"no group consumes its {left} messages")
    if uses:
        raise QueueError(
            f"topic {topic!r} is in use: {'; '.join(uses)}; stop who consumes it when nothing is left, or delete it by "
            "force"
        )


def _uses(group: str, state: GroupState, bounds: Mapping[int, tuple[int, int]]) -> Iterator[str]:
    living = {member for member, seconds in state.members.items() if seconds > 0}
    living |= {claim.owner for claim in state.claims.values() if claim.owner is not None and claim.seconds > 0}
    if living:
        yield f"group {group!r} has members ({', '.join(sorted(living))})"
    committed = {queue: claim.committed for queue, claim in state.claims.items()}
    backlog = sum(max(0, end - max(first, committed.get(queue, 0))) for queue, (first, end) in bounds.items())
    if state.counts and backlog:
        yield f"group {group!r} has {backlog} messages left"
