"""The retention of topics on Redis."""

from __future__ import annotations

from enode_django.equeue.redis.connection import RedisConnection, ScriptCall
from enode_django.equeue.redis.keys import Keys
from enode_django.equeue.redis.scripts import EVEN_WHEN_FULL, Script
from enode_django.equeue.redis.topics import RedisTopics
from enode_django.equeue.transport import check_age

SET_AGE = Script(
    EVEN_WHEN_FULL
    + """
-- KEYS: topic. ARGV: seconds, or '' for as long as the driver was told. Returns 0 when there is no such topic.
if redis.call('HEXISTS', KEYS[1], 'queues') == 0 then return 0 end
even_when_full(KEYS[1])
if ARGV[1] == '' then redis.call('HDEL', KEYS[1], 'max_age') else redis.call('HSET', KEYS[1], 'max_age', ARGV[1]) end
return 1
"""
)


class RedisRetention:
    def __init__(self, keys: Keys, connection: RedisConnection, topics: RedisTopics) -> None:
        self._keys = keys
        self._connection = connection
        self._topics = topics

    def set(self, topic: str, max_age: float | None) -> None:
        check_age(max_age)
        call = ScriptCall(SET_AGE, (self._keys.topic(topic),), ("" if max_age is None else repr(float(max_age)),))
        if not self._connection.run(call, confirmed=True):
            self._topics.read(topic)  # raises

    def of(self, topic: str) -> float | None:
        self._topics.read(topic)
        found = self._connection.execute("HGET", self._keys.topic(topic), "max_age")
        return None if found is None else float(found)
