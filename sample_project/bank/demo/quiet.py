"""Detection of the moment when workers have nothing left to do, and the pace of each subscriber."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import NamedTuple

from enode_django.conf import conf
from enode_django.equeue.transport import Transport
from enode_django.runtime import subscribers

Place = tuple[str, str]
"""A consumer group and its topic."""


class Pace(NamedTuple):
    """The ``seconds`` that a subscriber took for the published ``streams``."""

    streams: int
    seconds: float

    @property
    def per_second(self) -> float:
        return self.streams / max(self.seconds, 0.001)


class Lookout:
    """Watches the offsets of the command topic and, for each subscriber, of the event topic. Blocks on the queue.

    A command is committed when its events are published, and an event when the commands that follow from it are sent.
    So if everything present at the beginning of a check is committed, and nothing is added until its end, nothing is in
    transit.
    """

    def __init__(self, transport: Transport) -> None:
        current = conf()
        self._transport = transport
        self._commands = current.COMMANDS.TOPIC
        self._events = current.SUBSCRIBERS.TOPIC
        self._command_group = current.COMMANDS.CONSUMER_GROUP
        self._subscriptions = [subscriber.name for subscriber in subscribers.all()]
        self._began = time.monotonic()
        self._published_before = sum(self._ends(self._events).values())
        self._moved: dict[Place, tuple[Mapping[int, int], float]] = {}

    def commands_are_handled(self) -> bool:
        return self._is_done(self._command_group, self._commands, self._ends(self._commands))

    def is_quiet(self) -> bool:
        topics = {topic: self._ends(topic) for topic in (self._commands, self._events)}
        done = [self._is_done(self._command_group, self._commands, topics[self._commands])]
        done += [self._is_done(name, self._events, topics[self._events]) for name in self._subscriptions]
        return all(done) and all(self._ends(topic) == ends for topic, ends in topics.items())

    @property
    def seconds_without_progress(self) -> float:
        """The seconds since a watched offset last moved."""
        return time.monotonic() - max([self._began, *(since for _, since in self._moved.values())])

    def paces(self) -> dict[str, Pace]:
        """Return the pace of each subscriber. Call it when everything is quiet."""
        streams = sum(self._ends(self._events).values()) - self._published_before
        return {name: Pace(streams, self._moved[name, self._events][1] - self._began) for name in self._subscriptions}

    def followed(self) -> int:
        """Return the number of streams that every subscriber has passed."""
        totals = [sum(self._transport.committed(name, self._events).values()) for name in self._subscriptions]
        return max(0, min(totals) - self._published_before)

    def published(self) -> int:
        return sum(self._ends(self._events).values()) - self._published_before

    def _ends(self, topic: str) -> Mapping[int, int]:
        return self._transport.end_offsets(topic)

    def _is_done(self, group: str, topic: str, ends: Mapping[int, int]) -> bool:
        committed = self._transport.committed(group, topic)
        before = self._moved.get((group, topic))
        if before is None or before[0] != committed:
            self._moved[group, topic] = (dict(committed), time.monotonic())
        return all(committed.get(queue, 0) >= end for queue, end in ends.items())
