"""Leases, offsets and receipts of consumer groups on Redis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

from enode_django.equeue.messages import Commit, Lease, Start
from enode_django.equeue.redis.batches import RECEIPTS_PER_CALL, commit_arguments, milliseconds, parse_deaths, steps
from enode_django.equeue.redis.claim_scripts import ACQUIRE, COMMIT, RELEASE, RENEW, SET_OFFSET
from enode_django.equeue.redis.connection import RedisConnection, ScriptCall
from enode_django.equeue.redis.groups import RedisGroups
from enode_django.equeue.redis.keys import Keys
from enode_django.equeue.redis.partly import ByQueue, raise_failure
from enode_django.equeue.redis.topics import RedisTopics
from enode_django.equeue.refusals import queue_held


class RedisClaims:
    """The part of `RedisStreamsTransport` that acquires queues and commits offsets, with the same guarantees."""

    def __init__(self, keys: Keys, connection: RedisConnection, topics: RedisTopics, groups: RedisGroups) -> None:
        self._keys = keys
        self._connection = connection
        self._topics = topics
        self._groups = groups

    def acquire(self, group: str, topic: str, queue: int, owner: str, lease: float, start: Start | int) -> Lease:
        self._topics.check(topic, (queue,))
        # First: otherwise a trim could overlook a group that has begun to read.
        self._groups.counts_from_now_on(group, topic, again=True)
        keys = (self._keys.claim(topic, queue, group), self._keys.queue(topic, queue), self._keys.log(topic, queue))
        begin = start.value if isinstance(start, Start) else start
        answer = self._connection.run(ACQUIRE, keys, (owner, milliseconds(lease), begin))
        if answer[0] < 0:
            self._topics.revive(topic, (queue,))
            return self.acquire(group, topic, queue, owner, lease, start)
        if answer[0] == 0:
            raise queue_held(topic, queue, answer[1].decode(), answer[2] / 1000)
        _, epoch, committed, end, previous, deaths = answer
        return Lease(epoch, committed, end, previous.decode() or None, parse_deaths(deaths))

    def renew(self, group: str, topic: str, owner: str, epochs: Mapping[int, int], lease: float) -> AbstractSet[int]:
        calls = {queue: (owner, epoch, milliseconds(lease)) for queue, epoch in epochs.items()}
        return _refused(self._claims(RENEW, topic, group, calls))

    def release(self, group: str, topic: str, owner: str, epochs: Mapping[int, int]) -> None:
        released = self._claims(RELEASE, topic, group, {queue: (owner, epoch) for queue, epoch in epochs.items()})
        raise_failure(released.failures, released.answers)

    def commit(self, group: str, topic: str, commits: Mapping[int, Commit]) -> AbstractSet[int]:
        self._topics.check(topic, commits)
        left = {queue: steps(commit) for queue, commit in commits.items()}
        done = ByQueue({}, {})
        # A step waits for the one before: if that was refused, this one would move the offset past its receipts.
        while now := {queue: step for queue, more in left.items() if (step := next(more, None)) is not None}:
            calls = [self._commit_call(group, topic, queue, step) for queue, step in now.items()]
            answers, failures = ByQueue.sorted_out(now, self._connection.run_each(calls, confirmed=True))
            known = {queue: answer for queue, answer in done.answers.items() if queue not in failures}
            done = ByQueue(known | answers, done.failures | failures)
            left = {queue: left[queue] for queue, (is_taken,) in answers.items() if is_taken}
        return _refused(done)

    def _commit_call(self, group: str, topic: str, queue: int, step: Commit) -> ScriptCall:
        keys = (self._keys.claim(topic, queue, group), self._keys.receipts(topic, queue, group))
        return ScriptCall(COMMIT, keys, commit_arguments(step))

    def receipts(self, group: str, topic: str, queue: int) -> Sequence[bytes]:
        self._topics.check(topic, (queue,))
        key, kept = self._keys.receipts(topic, queue, group), list[bytes]()
        while some := self._connection.execute("LRANGE", key, len(kept), len(kept) + RECEIPTS_PER_CALL - 1):
            kept += some
        return kept

    def set_offset(self, group: str, topic: str, queue: int, offset: int) -> None:
        self._topics.check(topic, (queue,))
        self._groups.counts_from_now_on(group, topic, again=False)
        keys = (self._keys.claim(topic, queue, group), self._keys.queue(topic, queue), self._keys.log(topic, queue))
        if self._connection.run(SET_OFFSET, keys, (offset,), confirmed=True) < 0:
            self._topics.revive(topic, (queue,))
            self.set_offset(group, topic, queue, offset)

    def _claims(self, script: Any, topic: str, group: str, arguments: Mapping[int, Sequence[Any]]) -> ByQueue:
        self._topics.check(topic, arguments)
        calls = [ScriptCall(script, (self._keys.claim(topic, q, group),), given) for q, given in arguments.items()]
        return ByQueue.sorted_out(arguments, self._connection.run_each(calls))


def _refused(answers: ByQueue) -> set[int]:
    """Return the queues that refused a call. Raises if a queue failed."""
    taken = {queue: all(answered) for queue, answered in answers.answers.items()}
    raise_failure(answers.failures, taken)
    return {queue for queue, is_taken in taken.items() if not is_taken}
