"""Choose how many messages to ask for, so that an answer of Redis is bounded by bytes.

XREAD has no limit of bytes, and answers waiting to be sent count as memory of the server: each consumer that wants to
make room would fill a full server further.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping

from enode_django.equeue.portions import PORTION_BYTES
from enode_django.equeue.redis.connection import RedisConnection, ScriptCall
from enode_django.equeue.redis.keys import Keys
from enode_django.equeue.redis.scripts import FIT
from enode_django.exceptions import TransportUnavailable

MOST_PULLED = 40_000
"""The most messages of all queues that one pull asks for."""
MOST_SUMMED = 2_000
"""The most messages whose sizes one pull sums up in the server, which does nothing else meanwhile."""
ENOUGH = 1_000
"""Enough messages for one pull, of all queues. If fewer of the largest size fit, sizes are summed up instead."""
LARGEST_KNOWN_SECONDS = 1.0
"""Seconds for which the size of the largest message is cached. One answer may be larger meanwhile."""


class PullCounts:
    """Numbers of messages to ask for. They usually follow from the size of the largest message, which takes no round
    trip of its own. Thread-safe."""

    def __init__(self, keys: Keys, connection: RedisConnection) -> None:
        self._keys = keys
        self._connection = connection
        self._largest: dict[tuple[str, int], int] = {}
        self._asked: dict[tuple[str, int], float] = {}

    def counts(self, topic: str, offsets: Mapping[int, int], limit: int) -> Mapping[int, int]:
        """Return the number of messages to ask for from each queue, after its offset: from 1 to ``limit``. All of them
        together have at most `PORTION_BYTES`, unless the next message of a queue alone exceeds the queue's share.

        The counts are equal when only ``limit`` bounds them, and when there are no messages yet.
        """
        number = len(offsets)
        limit = min(limit, max(1, MOST_PULLED // number))
        largest = max(1, *self._largest_of(topic, offsets))
        fit = PORTION_BYTES // number // largest
        if fit >= min(limit, max(1, ENOUGH // number)):
            return dict.fromkeys(offsets, min(limit, fit))
        return self._summed(topic, offsets, min(limit, max(1, MOST_SUMMED // number)), largest)

    def _largest_of(self, topic: str, queues: Collection[int]) -> list[int]:
        """Return the sizes in bytes; 0 if nothing was ever sent. If a server of a cluster does not answer, return the
        known size, or a size at which `ENOUGH` messages fit."""
        now = time.monotonic()
        old = [queue for queue in queues if now >= self._asked.get((topic, queue), 0.0) + LARGEST_KNOWN_SECONDS]
        if old:
            self._ask(topic, old)
            self._asked.update(((topic, queue), now) for queue in old)
        return [self._largest.get((topic, queue), PORTION_BYTES // ENOUGH) for queue in queues]

    def _ask(self, topic: str, queues: Collection[int]) -> None:
        commands = [("HGET", self._keys.queue(topic, queue), "largest") for queue in queues]
        try:
            answers = self._connection.execute_all(commands)
        except TransportUnavailable:
            if not self._connection.is_cluster:
                raise
            return
        self._largest.update(((topic, queue), int(answer or 0)) for queue, answer in zip(queues, answers, strict=True))

    def _summed(self, topic: str, offsets: Mapping[int, int], most: int, largest: int) -> Mapping[int, int]:
        share = PORTION_BYTES // len(offsets)
        step = max(1, PORTION_BYTES // largest)
        calls = [
            ScriptCall(FIT, (self._keys.log(topic, queue),), (f"{max(offset, 0)}-0", most, share, step))
            for queue, offset in offsets.items()
        ]
        try:
            return dict(zip(offsets, self._connection.run_all(calls), strict=True))
        except TransportUnavailable:
            if not self._connection.is_cluster:
                raise
            return dict.fromkeys(offsets, max(1, share // largest))
