"""Trim Redis Streams by age, by length and by consumption; delete foreign entries."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from enode_django.equeue.redis.connection import RedisConnection, ScriptCall
from enode_django.equeue.redis.keys import Keys
from enode_django.equeue.redis.partly import ByQueue, raise_failure
from enode_django.equeue.redis.scripts import CLOCK_STEP, COPY_LOG, MEND, TRIM_TIMES
from enode_django.equeue.redis.topics import RedisTopics
from enode_django.exceptions import EnodeError

TIMES_PER_CALL = 500
MENDED_PER_CALL = 1_000
COPIED_PER_CALL = 100
TRIM_SECONDS = 1.0
"""Seconds for one cut, beyond its first step."""


class RedisTrimmer:
    """The part of `RedisStreamsTransport` that finds offsets by time and deletes messages. Its limits are the
    transport's options."""

    def __init__(
        self,
        keys: Keys,
        connection: RedisConnection,
        topics: RedisTopics,
        *,
        max_age: float | None,
        max_length: int | None,
        delete_unconsumed: bool,
    ) -> None:
        self._keys = keys
        self._connection = connection
        self._topics = topics
        self._max_age = max_age
        self._max_length = max_length
        self._delete_unconsumed = delete_unconsumed

    def offsets_at(self, topic: str, time: float) -> Mapping[int, int]:
        offsets, failures = self._offsets_at(topic, time)
        raise_failure(failures, {})
        return offsets

    def _offsets_at(self, topic: str, time: float) -> tuple[dict[int, int], dict[int, EnodeError]]:
        bounds, failures = self._topics.bounds_each(topic, self._topics.count(topic))
        # Messages stored within a step of the one before have no time of their own.
        since = max(0, int(time * 1000) - CLOCK_STEP + 1)
        commands = [("XRANGE", self._keys.times(topic, queue), since, "+", "COUNT", 1) for queue in bounds]
        found = ByQueue.sorted_out(bounds, self._connection.execute_each(commands))
        offsets: dict[int, int] = {}
        for queue, (entries,) in found.answers.items():
            ((first, end),) = bounds[queue]
            offsets[queue] = max(first, int(entries[0][1][1])) if entries else end  # the value of its only field
        return offsets, failures | found.failures

    def trim(self, topic: str) -> None:
        known = self._topics.read(topic)
        queues = range(known.queues)
        groups = self._topics.counting(topic)
        failures: dict[int, EnodeError] = {}
        aged: dict[int, int] | None = None
        max_age = self._max_age if known.max_age is None else known.max_age
        if max_age is not None:
            aged, failures = self._offsets_at(topic, time.time() - max_age)
        if groups:
            consumed, failed = self._topics.consumed(topic, len(queues), groups)
            failures |= failed
            if aged is not None:
                short = self._topics.short_of_memory(topic, list(aged))
                consumed = {queue: at for queue, at in consumed.items() if queue in aged}
                consumed = {queue: at if queue in short else min(at, aged[queue]) for queue, at in consumed.items()}
            failures |= self._cut_before(topic, consumed)
        if not groups or self._delete_unconsumed:
            failures |= self._cut_before(topic, aged or {})
            if self._max_length is not None:
                failures |= self._cut(topic, {queue: ("MAXLEN", str(self._max_length)) for queue in queues})
        raise_failure(failures, {})

    def _cut_before(self, topic: str, offsets: Mapping[int, int]) -> dict[int, EnodeError]:
        return self._cut(topic, {queue: ("MINID", f"{offset + 1}-0") for queue, offset in offsets.items()})

    def mend(self, topic: str) -> Mapping[int, int]:
        """Delete foreign entries above the ends of the queues. Return their number for each queue."""
        calls = {
            queue: ScriptCall(MEND, (self._keys.log(topic, queue), self._keys.queue(topic, queue)), (MENDED_PER_CALL,))
            for queue in range(self._topics.count(topic))
        }
        deleted = dict.fromkeys(calls, 0)
        while calls:
            answers = dict(zip(calls, self._connection.run_all(list(calls.values())), strict=True))
            for queue, (number, is_stuck) in answers.items():
                deleted[queue] += number
                if is_stuck:
                    self._copy_log(topic, queue)
            calls = {queue: calls[queue] for queue, (number, _) in answers.items() if number == MENDED_PER_CALL}
        return deleted

    def _copy_log(self, topic: str, queue: int) -> None:
        """Replace a log by a copy of its messages, which goes on from the queue's end. Needs memory for the copy."""
        log, copy = self._keys.log(topic, queue), self._keys.copy(topic, queue)
        self._connection.execute("DEL", copy)  # a mend that broke off, of a topic that was deleted since
        while not self._connection.run(COPY_LOG, (log, self._keys.queue(topic, queue), copy), (COPIED_PER_CALL,)):
            pass

    def _cut(self, topic: str, limits: Mapping[int, tuple[str, str]]) -> dict[int, EnodeError]:
        """Cut whole nodes of the streams, in steps that do not block the server; then the times of deleted messages.
        The rest is left to the next call: the caller may have leases to renew. Return the errors by queue."""
        logs = {q: ("XTRIM", self._keys.log(topic, q), kind, "~", at) for q, (kind, at) in limits.items()}
        times = {q: ScriptCall(TRIM_TIMES, self._keys.of_queue(topic, q), (TIMES_PER_CALL,)) for q in limits}
        failures: dict[int, EnodeError] = {}
        until = time.monotonic() + TRIM_SECONDS
        phases: list[tuple[dict[int, Any], Callable[[list[Any]], list[Any]]]]
        phases = [(logs, self._connection.execute_each), (times, self._connection.run_each)]
        for left, run in phases:
            while left := {queue: call for queue, call in left.items() if queue not in failures}:
                cut = ByQueue.sorted_out(left, run(list(left.values())))
                failures |= cut.failures
                left = {queue: left[queue] for queue, (deleted,) in cut.answers.items() if deleted}
                if time.monotonic() >= until:
                    return failures
        return failures
