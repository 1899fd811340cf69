"""The errors that all drivers raise with the same words, and the checks that they share."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from enode_django.equeue.messages import GroupState, QueueState
from enode_django.equeue.transport import LONGEST_AGE
from enode_django.exceptions import QueueError, QueueHeld, StaleRoute, TopicDeleted, UnknownQueue, UnknownTopic


def unknown_topic(topic: str) -> UnknownTopic:
    return UnknownTopic(f"topic {topic!r} does not exist; create it: create_topic, manage.py enode queue create")


def topic_deleted(topic: str) -> TopicDeleted:
    return TopicDeleted(
        f"topic {topic!r} was deleted; stop who uses it, or create it anew: create_topic, manage.py enode queue create"
    )


def unknown_group(topic: str, group: str, known: Collection[str]) -> QueueError:
    return QueueError(f"topic {topic!r} has no group {group!r}; it has {', '.join(map(repr, known)) or 'none'}")


def queue_held(topic: str, queue: int, owner: str, seconds: float) -> QueueHeld:
    return QueueHeld(
        f"queue {queue} of topic {topic!r} is held by {owner!r}; try again when its lease has ended",
        owner=owner,
        seconds=seconds,
    )


def stale_route(topic: str, route: int, stored: Mapping[int, int]) -> StaleRoute:
    return StaleRoute(
        f"topic {topic!r} has other queues than those of route {route}; ask for its route again", stored=stored
    )


def check_new_topic(topic: str, queues: int) -> None:
    """Raise `QueueError` for a name or a number of queues that a topic cannot have."""
    if not topic or not topic.isprintable() or any(sign in topic for sign in "{} /"):
        raise QueueError(f"{topic!r} cannot name a topic; use letters, digits, '.', '-' and '_'")
    if queues < 1:
        raise QueueError(f"topic {topic!r} cannot have {queues!r} queues; give it at least one")


def check_age(max_age: float | None) -> None:
    """Raise `QueueError` for an age that `RetainsByTopic.set_retention` does not accept."""
    if max_age is not None and not 0 <= max_age < LONGEST_AGE:
        raise QueueError(f"messages are kept for 0 to {LONGEST_AGE:.0f} seconds, got {max_age!r}")


def check_queues(topic: str, queues: Collection[int], count: int) -> None:
    """Raise `UnknownQueue` for a queue number that a topic of ``count`` queues does not have."""
    if queues and (min(queues) < 0 or max(queues) >= count):
        wrong = sorted(queue for queue in queues if not 0 <= queue < count)
        raise UnknownQueue(f"topic {topic!r} has no queue {wrong[0]!r}; its queues are 0 to {count - 1}")


def check_size(bodies: Mapping[int, Sequence[bytes]], limit: int) -> None:
    size = sum(sum(map(len, some)) for some in bodies.values())
    if size > limit:
        raise QueueError(f"a send of {size} bytes is above the limit of {limit}; send fewer messages at once")


def check_limit(limit: int) -> None:
    if limit < 1:
        raise ValueError(f"limit must be at least 1, got {limit!r}")


def check_route(topic: str, route: int | None, version: int) -> None:
    if route is not None and route != version:
        raise stale_route(topic, route, {})


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
