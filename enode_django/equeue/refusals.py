"""The errors that all drivers raise with the same words, and the checks of arguments that they share."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

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
    """Raise `QueueError` for a send of more bytes than their ``max_send``."""
    size = sum(sum(map(len, some)) for some in bodies.values())
    if size > limit:
        raise QueueError(f"a send of {size} bytes is above the limit of {limit}; send fewer messages at once")


def check_limit(limit: int) -> None:
    """Raise `ValueError` for a ``limit`` of `Transport.pull` below 1."""
    if limit < 1:
        raise ValueError(f"limit must be at least 1, got {limit!r}")


def check_route(topic: str, route: int | None, version: int) -> None:
    """Raise `StaleRoute` for a send with another route version than the topic's."""
    if route is not None and route != version:
        raise stale_route(topic, route, {})
