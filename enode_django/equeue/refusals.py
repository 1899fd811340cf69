"""The errors that all drivers raise with the same words."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from enode_django.exceptions import QueueError, QueueHeld, StaleRoute, TopicDeleted, UnknownTopic


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
