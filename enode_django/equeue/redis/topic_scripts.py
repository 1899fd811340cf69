"""Lua scripts of the Redis driver for topics, their deletion, and the members of their groups. Each is one atomic step
on the keys of one topic, or of one of its queues.

``version`` is that of the topic's route. Each queue has a copy of it for `SEND` to compare, since it may be on another
server. ``round`` orders the writes to the copies: every change of the queues takes a new round, and a queue refuses
writes of an older one. ``until`` exists while a change is under way; after that time its maker counts as dead, and any
caller that finds it cancels the change by raising the round.
"""

from __future__ import annotations

from enode_django.equeue.redis.batches import milliseconds
from enode_django.equeue.redis.scripts import Script
from enode_django.equeue.transport import MOST_PRODUCERS, PRODUCER_SECONDS

CLOSED = "closed"
"""The value of a queue in place of a version while the topic's queues change."""
DELETED = "deleted"
"""The value of a queue in place of a version from a deletion of its topic, or an attempt, to the next creation."""

CREATE = Script("""
-- KEYS: topic. ARGV: how many queues. Returns how many it has, or -1 while a deletion of the topic is not finished.
-- Workers do this when they start. What is left of a deleted topic is its version and round, so that they go on.
if redis.call('HEXISTS', KEYS[1], 'deleting') == 1 then return -1 end
even_when_full(KEYS[1])
local queues = redis.call('HGET', KEYS[1], 'queues')
if not queues then
  redis.call('HINCRBY', KEYS[1], 'version', 1)
  redis.call('HINCRBY', KEYS[1], 'round', 1)
end
redis.call('HSET', KEYS[1], 'queues', queues or ARGV[1])
return tonumber(queues or ARGV[1])
""")

SET_AGE = Script("""
-- KEYS: topic. ARGV: seconds, or '' for as long as the driver was told. Returns 0 when there is no such topic.
local queues = redis.call('HGET', KEYS[1], 'queues')
if not queues then return 0 end
even_when_full(KEYS[1])
redis.call('HSET', KEYS[1], 'queues', queues)  -- a write, for replicas to confirm
if ARGV[1] == '' then redis.call('HDEL', KEYS[1], 'max_age') else redis.call('HSET', KEYS[1], 'max_age', ARGV[1]) end
return 1
""")

REGISTER = Script("""
-- KEYS: topics. ARGV: the name of one. Even when the server is full, as `CREATE`.
redis.call('SREM', KEYS[1], '')
return redis.call('SADD', KEYS[1], ARGV[1])
""")

ANNOUNCE = Script(f"""
-- KEYS: topic, producers. ARGV: a producer. Returns 0 when there is no such topic.
if redis.call('HEXISTS', KEYS[1], 'queues') == 0 then return 0 end
even_when_full(KEYS[1])
redis.call('ZADD', KEYS[2], now(), ARGV[1])
redis.call('ZREMRANGEBYRANK', KEYS[2], 0, {-MOST_PRODUCERS - 1})
return redis.call('PEXPIRE', KEYS[2], {milliseconds(PRODUCER_SECONDS)})
""")

ANNOUNCED = Script(f"""
-- KEYS: producers. Returns the time in ms, and the producers with when each was heard of.
local now = now()
local since = string.format('(%d', now - {milliseconds(PRODUCER_SECONDS)})
return {{now, redis.call('ZRANGEBYSCORE', KEYS[1], since, '+inf', 'WITHSCORES')}}
""")

BEGIN = Script("""
-- KEYS: topic. ARGV: ms that the change may take. Returns its round, 0 while another one is under way, or false when
-- there is no such topic: sends to the next one of that name would wait for the end of the change.
local now = now()
local topic = redis.call('HMGET', KEYS[1], 'queues', 'until')
if not topic[1] then return false end
local other = topic[2]
if other and tonumber(other) > now then return 0 end
even_when_full(KEYS[1])
redis.call('HSET', KEYS[1], 'until', string.format('%d', now + ARGV[1]))
return redis.call('HINCRBY', KEYS[1], 'round', 1)
""")

DECIDE = Script("""
-- KEYS: topic. ARGV: round, then fields and their new values (none: all stays as it was).
-- Returns 1, or 0 when the change was called off meanwhile.
local topic = redis.call('HMGET', KEYS[1], 'round', 'until')
if topic[1] ~= ARGV[1] or not topic[2] then return 0 end
even_when_full(KEYS[1])
for i = 2, #ARGV, 2 do redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1]) end
return redis.call('HDEL', KEYS[1], 'until')
""")

SETTLED = Script("""
-- KEYS: topic. Returns {version, round, 1 while a change is under way}; calls off one that took too long.
local topic = redis.call('HMGET', KEYS[1], 'version', 'round', 'until', 'queues')
if not topic[4] then return false end
local pending = topic[3] and 1 or 0
if topic[3] and tonumber(topic[3]) <= now() then
  even_when_full(KEYS[1])
  pending, topic[2] = 0, redis.call('HINCRBY', KEYS[1], 'round', 1)
  redis.call('HDEL', KEYS[1], 'until')
end
return {tonumber(topic[1]), tonumber(topic[2]), pending}
""")

CATCH_UP = Script("""
-- KEYS: topic. ARGV: round and version that a queue has, which are later than the topic's: it has lost writes.
local topic = redis.call('HMGET', KEYS[1], 'version', 'round', 'until')
if topic[3] or not topic[2] or tonumber(topic[2]) >= tonumber(ARGV[1]) then return 0 end
local version = math.max(tonumber(topic[1]), tonumber(ARGV[2]) or 0) + 1
even_when_full(KEYS[1])
redis.call('HSET', KEYS[1], 'version', version, 'round', tonumber(ARGV[1]) + 1)
return 1
""")

TELL = Script("""
-- KEYS: queue. ARGV: round, version or 'closed'. Returns {} or, when it has heard later news, {round, version}.
local known = redis.call('HMGET', KEYS[1], 'round', 'route')
if tonumber(known[1] or 0) > tonumber(ARGV[1]) then return {tonumber(known[1]), known[2]} end
even_when_full(KEYS[1])
redis.call('HSET', KEYS[1], 'round', ARGV[1], 'route', ARGV[2])
return {}
""")

HIDE = Script("""
-- KEYS: topic. ARGV: queue, '1' to hide it from consumers or '0' to show it. Returns 0 if there is no such queue.
if tonumber(ARGV[1]) >= tonumber(redis.call('HGET', KEYS[1], 'queues') or 0) then return 0 end
local text = redis.call('HGET', KEYS[1], 'unconsumed') or ''
local hidden = {}
for queue in string.gmatch(text, '%d+') do
  if queue ~= ARGV[1] then hidden[#hidden + 1] = queue end
end
if ARGV[2] == '1' then hidden[#hidden + 1] = ARGV[1] end
even_when_full(KEYS[1])
redis.call('HSET', KEYS[1], 'unconsumed', table.concat(hidden, ','))
return 1
""")

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

COUNT = Script("""
-- KEYS: groups, topic. ARGV: group, '1' if one that is retired counts again.
-- Trimming waits for the group from now on. Returns 0 when it is retired and stays so, -1 when there is no such topic.
if redis.call('HEXISTS', KEYS[2], 'queues') == 0 then return -1 end
if ARGV[2] ~= '1' and redis.call('HGET', KEYS[1], ARGV[1]) == 'retired' then return 0 end
even_when_full(KEYS[1])
redis.call('HSET', KEYS[1], ARGV[1], 'counts')
return 1
""")

RETIRE = Script("""
-- KEYS: groups. ARGV: group. Trimming does not wait for it any more; an unknown one stays unknown.
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return 0 end
even_when_full(KEYS[1])
return redis.call('HSET', KEYS[1], ARGV[1], 'retired')
""")

PAUSE = Script("""
-- KEYS: topic, groups. ARGV: group, '1' to pause it or '0'. Returns 0 when the topic has no such group.
local state = redis.call('HGET', KEYS[2], ARGV[1])
if not state then return 0 end
even_when_full(KEYS[1])
redis.call('HSET', KEYS[2], ARGV[1], state)  -- a write, for replicas to confirm
if ARGV[2] == '1' then
  redis.call('HSET', KEYS[1], 'paused:' .. ARGV[1], 1)
else
  redis.call('HDEL', KEYS[1], 'paused:' .. ARGV[1])
end
return 1
""")

# All members send heartbeats: they must not need compare-and-set.
MEMBERS = Script("""
-- KEYS: topic, groups, group. ARGV: 'join', 'leave' or 'look', group, member, session in ms.
-- Returns {now, queues (0 while the group is paused), hidden queues, division, members and until when each is one}.
local now = now()
local topic = redis.call('HMGET', KEYS[1], 'queues', 'unconsumed', 'paused:' .. ARGV[2])
if not topic[1] then return false end
if ARGV[1] == 'join' then
  even_when_full(KEYS[2])
  redis.call('HSETNX', KEYS[2], ARGV[2], 'joined')
  redis.call('HSET', KEYS[3], 'member:' .. ARGV[3], string.format('%d', now + ARGV[4]))
elseif ARGV[1] == 'leave' then
  redis.call('HDEL', KEYS[3], 'member:' .. ARGV[3])
end
local members = {}
local all = redis.call('HGETALL', KEYS[3])
local division = ''
for i = 1, #all, 2 do
  if all[i] == 'division' then
    division = all[i + 1]
  else
    members[#members + 1] = string.sub(all[i], 8)
    members[#members + 1] = tonumber(all[i + 1])
  end
end
return {now, topic[3] and 0 or tonumber(topic[1]), topic[2] or '', division, members}
""")

DIVIDE = Script("""
-- KEYS: group. ARGV: division as it was, as it shall be, members whose sessions have ended.
-- Returns 1, or 0 when somebody has divided it meanwhile.
local now = now()
if (redis.call('HGET', KEYS[1], 'division') or '') ~= ARGV[1] then return 0 end
even_when_full(KEYS[1])
redis.call('HSET', KEYS[1], 'division', ARGV[2])
for i = 3, #ARGV do
  local session = redis.call('HGET', KEYS[1], 'member:' .. ARGV[i])
  if session and tonumber(session) <= now then redis.call('HDEL', KEYS[1], 'member:' .. ARGV[i]) end
end
return 1
""")
