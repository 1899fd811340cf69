"""Send to queues on Redis, which may be on several servers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from enode_django.equeue.messages import Once
from enode_django.equeue.redis.batches import chunks
from enode_django.equeue.redis.connection import RedisConnection, ScriptCall
from enode_django.equeue.redis.keys import Keys
from enode_django.equeue.redis.partly import ByQueue, raise_failure
from enode_django.equeue.redis.scripts import SEND, Script
from enode_django.equeue.redis.topics import RedisTopics
from enode_django.equeue.refusals import stale_route
from enode_django.exceptions import EnodeError, ForeignEntries, TransportUnavailable

HOLDS_FOREIGN = -2
"""The answer of `SEND` for a queue that has foreign entries."""


class RedisSender:
    """Sends messages. ``script`` is `SEND` or `SEND_WITH_RESERVE`."""

    def __init__(self, keys: Keys, connection: RedisConnection, topics: RedisTopics, script: Script = SEND) -> None:
        self._keys = keys
        self._connection = connection
        self._topics = topics
        self._script = script

    def send(
        self, topic: str, bodies: Mapping[int, Sequence[bytes]], route: int | None, once: Once | None
    ) -> dict[int, int]:
        """Send as `Transport.send` does, to queues that the topic has."""
        first: dict[int, int] = {}
        failures: dict[int, EnodeError] = {}
        left = [queue for queue, added in bodies.items() if added]
        while left:
            answers, failed = self.append(topic, {queue: bodies[queue] for queue in left}, route, once)
            first |= answers
            failures |= failed
            left = [queue for queue, offset in answers.items() if offset < 0]
            if left:
                self._settle(topic, left, route, first)
        raise_failure(failures, _stored(first))
        return first

    def _settle(self, topic: str, queues: Sequence[int], route: int | None, first: Mapping[int, int]) -> None:
        """Make queues accept a send that they refused, if its route is valid or their topic was not deleted. ``first``
        has the offsets that `append` returned."""
        try:
            if route is None:
                return self._topics.revive(topic, queues)
            is_settled = self._topics.settle(topic, queues, route)
        except TransportUnavailable as error:
            return raise_failure(dict.fromkeys(queues, error), _stored(first))
        if not is_settled:
            raise stale_route(topic, route, _stored(first))

    def append(
        self, topic: str, bodies: Mapping[int, Sequence[bytes]], route: int | None, once: Once | None
    ) -> tuple[dict[int, int], dict[int, EnodeError]]:
        """Return the offset of each queue's first body (-1 if the queue has another route or is deleted), and the
        errors of the other queues, which have stored nothing as far as is known."""
        queues: list[int] = []
        calls: list[ScriptCall] = []
        producer, sequence = once if once is not None else ("", "")
        for queue, added in bodies.items():
            keys = self._keys.of_queue(topic, queue)
            if producer:
                keys = (*keys, self._keys.sent(topic, queue, producer))
            for number, chunk in enumerate(chunks(added)):
                queues.append(queue)
                calls.append(ScriptCall(self._script, keys, ("" if route is None else route, sequence, number, *chunk)))
        # No other sender may come between a queue's chunks.
        parted = len(calls) > len(bodies)
        results = self._connection.run_each(calls, atomically=parted, confirmed=True)
        answers, failures = ByQueue.sorted_out(queues, results)
        foreign = [queue for queue, offsets in answers.items() if HOLDS_FOREIGN in offsets]
        for queue in foreign:
            del answers[queue]
            failures[queue] = foreign_entries(self._keys, topic, foreign)
        return {queue: offsets[0] for queue, offsets in answers.items()}, failures


def foreign_entries(keys: Keys, topic: str, queues: Sequence[int]) -> ForeignEntries:
    logs = ", ".join(keys.log(topic, queue) for queue in queues)
    return ForeignEntries(
        f"the streams {logs} of topic {topic!r} hold entries of somebody else (by XADD); stop whoever writes them, "
        f"then delete them with manage.py enode queue mend {topic}"
    )


def _stored(first: Mapping[int, int]) -> dict[int, int]:
    return {queue: offset for queue, offset in first.items() if offset >= 0}
