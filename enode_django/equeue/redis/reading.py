"""Pull from Redis Streams. Each server is asked once; an unusable one does not delay the others."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any

from enode_django.equeue.messages import PulledBatch
from enode_django.equeue.portions import PORTION_BYTES
from enode_django.equeue.redis.batches import parse_entries
from enode_django.equeue.redis.connection import LONGEST_BLOCK, Command, RedisConnection, ScriptCall
from enode_django.equeue.redis.inbox import blocks
from enode_django.equeue.redis.keys import Keys
from enode_django.equeue.redis.scripts import FIT
from enode_django.equeue.redis.sending import foreign_entries
from enode_django.equeue.redis.topics import RedisTopics
from enode_django.equeue.redis.waiting import read_first, read_waking
from enode_django.equeue.redis.wakes import Wakes
from enode_django.equeue.refusals import check_limit
from enode_django.exceptions import EnodeError, TransportUnavailable

LAST_PLACE = (1 << 64) - 1
"""The highest second part of an entry id: reading after it skips foreign entries between two messages."""
LOOK_AGAIN = 1.0
"""Seconds after which a waiting pull checks whether omitted queues are usable again."""
MOST_PULLED = 40_000
"""The most messages of all queues that one pull asks for."""
MOST_SUMMED = 2_000
"""The most messages whose sizes one pull sums up in the server, which does nothing else meanwhile."""
ENOUGH = 1_000
"""Enough messages for one pull, of all queues. If fewer of the largest size fit, sizes are summed up instead."""
LARGEST_KNOWN_SECONDS = 1.0
"""Seconds for which the size of the largest message is cached. One answer may be larger meanwhile."""


class RedisReader:
    """The part of `RedisStreamsTransport` that pulls, with the same guarantees."""

    def __init__(self, keys: Keys, connection: RedisConnection, topics: RedisTopics) -> None:
        self._keys = keys
        self._connection = connection
        self._topics = topics
        self._counts = PullCounts(keys, connection)
        self._wakes = Wakes()

    def pull(self, topic: str, offsets: Mapping[int, int], *, limit: int, wait: float) -> Sequence[PulledBatch]:
        check_limit(limit)
        self._topics.check(topic, offsets)
        if not offsets:
            return []
        counts = self._counts.counts(topic, offsets, limit)
        logs = {self._keys.log(topic, queue): queue for queue in offsets}
        after = [f"{max(offset, 0)}-{LAST_PLACE}" for offset in offsets.values()]
        read = self._read_each if self._connection.is_cluster and len(logs) > 1 else self._read_together
        found = self._read_apart(list(logs), after, list(counts.values()))
        found = found or read(list(logs), after, min(counts.values()), wait)
        batches = [parse_entries(logs[key.decode()], entries) for key, entries in found]
        pulled = [batch for batch in batches if batch.bodies]
        if batches and not pulled:
            raise foreign_entries(self._keys, topic, [batch.queue for batch in batches])
        if not pulled:
            self._topics.check_kept(topic, next(iter(offsets)))
        return pulled

    def wake(self, thread: int) -> None:
        self._wakes.wake(thread)

    def _read_apart(self, logs: Sequence[str], after: Sequence[str], counts: Sequence[int]) -> Sequence[Any]:
        """Read without waiting, if the counts differ: then there are messages."""
        if len(set(counts)) == 1:
            return ()
        places = zip(logs, after, counts, strict=True)
        reads = {log: ("XREAD", "COUNT", count, "STREAMS", log, start) for log, start, count in places}
        return _streams(self._connection.read_each(reads))

    def _read_together(self, logs: Sequence[str], after: Sequence[str], limit: int, wait: float) -> Sequence[Any]:
        def command(*block: str | int) -> Command:
            return ("XREAD", "COUNT", limit, *block, "STREAMS", *logs, *after)

        if wait <= 0:
            return self._connection.read_blocking(None, command(), key=logs[0]) or ()
        closings = self._connection.closings
        with self._wakes.waiting() as wakeup:
            for block in blocks(wait):
                found = read_waking(self._connection, command(*block), closings, key=logs[0], wakeup=wakeup)
                if found or wakeup.is_woken:
                    return found or ()
        return ()

    def _read_each(self, logs: Sequence[str], after: Sequence[str], limit: int, wait: float) -> Sequence[Any]:
        """Read without waiting first, which takes one round trip to each server; then wait. Unusable servers are left
        out and tried again soon."""
        closings = self._connection.closings
        places = list(zip(logs, after, strict=True))
        reads = {log: ("XREAD", "COUNT", limit, "STREAMS", log, start) for log, start in places}
        results = self._connection.read_each(reads)
        found = _streams(results)
        failures = [result for result in results if isinstance(result, EnodeError)]
        if len(failures) == len(results) or not all(failure.retriable for failure in failures):
            raise min(failures, key=attrgetter("retriable"))
        if found or wait <= 0:
            return found
        with self._wakes.waiting() as wakeup:
            for block in blocks(wait, LOOK_AGAIN if failures else LONGEST_BLOCK):
                waits = {log: ("XREAD", "COUNT", limit, *block, "STREAMS", log, start) for log, start in places}
                found = read_first(self._connection, waits, closings, wakeup)
                if found or wakeup.is_woken:
                    return found
        return ()


class PullCounts:
    """Chooses how many messages a pull asks for. XREAD has no limit of bytes, and answers waiting to be sent count as
    memory of the server: each consumer that wants to make room would fill a full server further.

    The numbers usually follow from the size of the largest message, which takes no round trip of its own. Thread-safe.
    """

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


def _streams(responses: Iterable[Any]) -> list[Any]:
    """Return the streams that several XREADs have found, without the errors."""
    return [stream for one in responses if one and not isinstance(one, EnodeError) for stream in one]
