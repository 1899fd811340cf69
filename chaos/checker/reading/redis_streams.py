"""The queue in Redis: a stream for each queue, whose entry ``n+1-0`` is the message at offset n."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import redis
from redis.cluster import RedisCluster

from chaos.checker.facts import Appended, Sample
from chaos.checker.reading.problems import Problems
from chaos.checker.reading.queue import MessageReader, QueueLog, Topics

ENTRIES_AT_ONCE = 1_000


def read_redis(url: str, prefix: str, topics: Topics, problems: Problems, *, is_cluster: bool = False) -> QueueLog:
    """Read the queue from Redis. ``url`` is that of the server, or of any node of a cluster."""
    found = QueueLog(is_whole=False)
    messages = MessageReader(found, topics, problems)
    client: Any = None
    try:
        client = RedisCluster.from_url(url) if is_cluster else redis.Redis.from_url(url)
        for topic in sorted(name.decode() for name in client.smembers(f"{prefix}:topics")):
            queues = int(client.hget(f"{prefix}:{{{topic}}}:topic", "queues") or 0)
            for queue in range(queues):
                _read_queue(client, prefix, topic, queue, found, messages)
                if topic == topics.events and not _begins_at_zero(client, prefix, topic, queue):
                    found.trimmed.add(queue)
            found.samples.extend(_claims(client, prefix, topic, queues))
    except (redis.RedisError, ValueError, TypeError) as error:
        problems.add("redis", f"{error!r}")
    finally:
        if client is not None:
            client.close()
    return found


def _read_queue(client: Any, prefix: str, topic: str, queue: int, found: QueueLog, messages: MessageReader) -> None:
    """Read a queue. Each run of messages without a gap becomes one record."""
    first = end = -1
    for offset, body in _entries(client, f"{prefix}:{{{topic}:{queue}}}:log"):
        if offset != end:
            _append(found, topic, queue, first, end)
            first = offset
        end = offset + 1
        if messages.reads(topic):
            messages.read(topic, queue, offset, body)
    _append(found, topic, queue, first, end)


def _append(found: QueueLog, topic: str, queue: int, first: int, end: int) -> None:
    if end > first:
        found.log.append(Appended("redis", topic, queue, first, end - first))


def _entries(client: Any, key: str) -> Iterator[tuple[int, bytes]]:
    start = "-"
    while entries := client.xrange(key, start, "+", count=ENTRIES_AT_ONCE):
        for id, fields in entries:
            yield int(id.split(b"-")[0]) - 1, fields[b"b"]
        start = "(" + entries[-1][0].decode()


def _begins_at_zero(client: Any, prefix: str, topic: str, queue: int) -> bool:
    oldest = client.xrange(f"{prefix}:{{{topic}:{queue}}}:log", "-", "+", count=1)
    end = int(client.hget(f"{prefix}:{{{topic}:{queue}}}:queue", "end") or 0)
    return bool(oldest[0][0] == b"1-0") if oldest else not end


def _claims(client: Any, prefix: str, topic: str, queues: int) -> Iterator[Sample]:
    groups = sorted(name.decode() for name in client.hgetall(f"{prefix}:{{{topic}}}:groups"))
    for group in groups:
        for queue in range(queues):
            key = f"{prefix}:{{{topic}:{queue}}}:claim:{group}"
            offset, owner, epoch = client.hmget(key, "offset", "owner", "epoch")
            if offset is not None:
                owner_name = (owner or b"").decode()
                yield Sample(time.time(), (group, topic, queue), int(offset), owner_name, int(epoch or 0))
