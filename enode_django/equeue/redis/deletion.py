"""Delete topics and queues on Redis.

A topic and its queues may be on different servers. The queues are marked as deleted first, which refuses sends and
owners; then the use of the topic is checked; then the deletion is decided at the topic, in one step. After that the
rest is deleted. If the deleting process dies, the next one that creates or deletes the topic continues. A small rest
stays: the version and round of the topic; the end, epoch and round of each queue. So nothing that was issued for the
deleted topic is valid for a later one of the same name.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress

from enode_django.equeue.messages import GroupState
from enode_django.equeue.redis.connection import ScriptCall
from enode_django.equeue.redis.scripts import Script
from enode_django.equeue.redis.topic_scripts import DELETED, REGISTER
from enode_django.equeue.redis.topics import RedisTopics
from enode_django.equeue.refusals import check_deletable_queue, check_queues, check_unused
from enode_django.exceptions import TransportUnavailable, UnknownTopic

CONDEMN = Script("""
-- KEYS: topic. ARGV: round. From now on there is no such topic. Returns 0 when the deletion was called off meanwhile.
local topic = redis.call('HMGET', KEYS[1], 'round', 'until', 'queues')
if topic[1] ~= ARGV[1] or not topic[2] or not topic[3] then return 0 end
even_when_full(KEYS[1])
redis.call('HSET', KEYS[1], 'deleting', topic[3])
return redis.call('HDEL', KEYS[1], 'queues', 'until', 'unproduced', 'unconsumed')
""")

EMPTY = Script(f"""
-- KEYS: queue, log, times, and what groups have of it. ARGV: round. Returns 0 for a queue that has heard later news.
if tonumber(redis.call('HGET', KEYS[1], 'round') or 0) > tonumber(ARGV[1]) then return 0 end
even_when_full(KEYS[1])
redis.call('HSET', KEYS[1], 'round', ARGV[1], 'route', '{DELETED}')
redis.call('HDEL', KEYS[1], 'time', 'largest', 'largest_since', 'mark')
for i = 2, #KEYS do redis.call('UNLINK', KEYS[i]) end
return 1
""")

DELETE_QUEUE = Script("""
-- KEYS: queue, log, times, and of each group the claim and the receipts. ARGV: the end that the queue must have, or ''.
-- Returns 0, and deletes nothing, if it has another one.
local last = redis.call('HGET', KEYS[1], 'end') or '0'
if ARGV[1] ~= '' and ARGV[1] ~= last then return 0 end
even_when_full(KEYS[1])
redis.call('HSET', KEYS[1], 'end', last)  -- a write, for replicas to confirm
redis.call('HDEL', KEYS[1], 'time', 'largest', 'largest_since', 'mark')
redis.call('UNLINK', KEYS[2], KEYS[3])
for i = 4, #KEYS, 2 do
  if redis.call('HEXISTS', KEYS[i], 'offset') == 1 then
    redis.call('HDEL', KEYS[i], 'owner', 'until', 'epoch', 'run', 'previous', 'deaths')
    redis.call('HSET', KEYS[i], 'offset', last)
  end
  redis.call('UNLINK', KEYS[i + 1])
end
return 1
""")

FINISH = Script("""
-- KEYS: topic, producers, groups, and each group. ARGV: round. Returns 0 if somebody else has finished the deletion.
local topic = redis.call('HMGET', KEYS[1], 'round', 'deleting')
if topic[1] ~= ARGV[1] or not topic[2] then return 0 end
for i = 2, #KEYS do redis.call('UNLINK', KEYS[i]) end
for _, field in ipairs(redis.call('HKEYS', KEYS[1])) do
  if string.sub(field, 1, 7) == 'paused:' then redis.call('HDEL', KEYS[1], field) end
end
return redis.call('HDEL', KEYS[1], 'deleting', 'max_age')
""")


class DeletableTopics(RedisTopics):
    def create(self, topic: str, queues: int) -> int:
        while (count := super().create(topic, queues)) < 0:
            self._finish(topic)
        return count

    def delete(self, topic: str, groups: Callable[[], Mapping[str, GroupState]], *, force: bool) -> None:
        """Delete a topic. ``groups`` is called once nobody can begin to use the topic."""
        try:
            self.read(topic)
        except UnknownTopic:
            if self._finish(topic):
                return
            raise
        round_ = self._begin(topic)
        try:
            known = self.read(topic)
            self._tell(topic, range(known.queues), round_, DELETED)
            if not force:
                check_unused(topic, groups(), self.bounds(topic, known.queues))
        except UnknownTopic:
            raise
        except BaseException:
            self._decide(topic, round_, {})
            raise
        if not self._connection.run(CONDEMN, (self._keys.topic(topic),), (round_,), confirmed=True):
            raise TransportUnavailable(f"the deletion of topic {topic!r} took too long and was called off; try again")
        self._finish(topic)

    def delete_queue(
        self, topic: str, queue: int, groups: Callable[[], Mapping[str, GroupState]], *, force: bool
    ) -> None:
        """Delete a queue, see `DeletesQueues.delete_queue`. Messages sent meanwhile are checked, too."""
        self.check(topic, (queue,))
        is_deleted = False
        while not is_deleted:
            state, known = self.states(topic)[queue], groups()
            check_deletable_queue(topic, queue, state, known, force=force)
            keys = self._keys_of(topic, queue, known)
            end = "" if force else state.end
            is_deleted = bool(self._connection.run(DELETE_QUEUE, keys, (end,), confirmed=True))

    def revive(self, topic: str, queues: Collection[int]) -> None:
        """Reopen queues that are marked as deleted although their topic exists. Raises `TopicDeleted` if it does not,
        and `UnknownQueue` for a queue that it does not have."""
        known = self.read(topic)
        check_queues(topic, queues, known.queues)
        self.settle(topic, queues, known.version)

    def check_kept(self, topic: str, queue: int) -> None:
        """Raise `TopicDeleted` if a queue without messages is marked as deleted. Reads the queue first, not the topic:
        it is on the server that was just read, and a pull should depend on no other."""
        with suppress(TransportUnavailable):
            if self._connection.execute("HGET", self._keys.queue(topic, queue), "route") == DELETED.encode():
                self.read(topic)

    def _finish(self, topic: str) -> bool:
        """Delete the rest of a topic whose deletion is decided. Return False if there is no such deletion."""
        self._counts.pop(topic, None)
        count, round_ = self._connection.execute("HMGET", self._keys.topic(topic), "deleting", "round")
        if count is None:
            return False
        groups = [group.decode() for group in self._connection.execute("HKEYS", self._keys.groups(topic))]
        self._connection.execute("SREM", self._keys.topics(), topic)
        calls = [ScriptCall(EMPTY, self._keys_of(topic, queue, groups), (round_,)) for queue in range(int(count))]
        self._connection.run_all(calls, confirmed=True)
        keys = (self._keys.topic(topic), self._keys.producers(topic), self._keys.groups(topic))
        of_groups = (self._keys.group(topic, group) for group in groups)
        self._connection.run(FINISH, (*keys, *of_groups), (round_,), confirmed=True)
        if self._connection.execute("HEXISTS", self._keys.topic(topic), "queues"):  # another process was faster
            self._connection.run(REGISTER, (self._keys.topics(),), (topic,))
        return True

    def _keys_of(self, topic: str, queue: int, groups: Collection[str]) -> tuple[str, ...]:
        """Return the keys of the queue, its log and its times, and for each group of the claim and the receipts."""
        log, itself, times = self._keys.of_queue(topic, queue)
        of_groups = (key(topic, queue, group) for group in groups for key in (self._keys.claim, self._keys.receipts))
        return (itself, log, times, *of_groups)
