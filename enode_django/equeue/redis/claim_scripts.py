"""Lua scripts of the Redis driver for leases, offsets and receipts. Each is one atomic step at one queue."""

from __future__ import annotations

from enode_django.equeue.redis.scripts import Script

LOST_AT_MOST = 1 << 20
"""The most leases that are lost in one crash or failover."""

TIMELINE = Script("-- KEYS: queue.\nreturn server_run()\n")

# Epochs of leases that were lost with a run must not be issued again: their owners may still commit. So each run
# begins far above the known epochs, at a distance of its own in case that run is lost, too.
ACQUIRE = Script(f"""
-- KEYS: claim, queue, log. ARGV: owner, lease in ms, start ('first', 'last' or an offset).
-- Returns {{1, epoch, committed, end, previous owner or '', deaths}}, {{0, owner, ms left}}, or {{-1}}: it is deleted.
local now, run = now(), server_run()
local claim = redis.call('HMGET', KEYS[1], 'owner', 'until', 'offset', 'deaths', 'previous')
local owner, previous = claim[1], claim[5]
if owner and owner ~= ARGV[1] and tonumber(claim[2]) > now then
  return {{0, owner, tonumber(claim[2]) - now}}
end
if owner ~= ARGV[1] then previous = owner end  -- else the answer may have been lost, and it is told again
local queue = redis.call('HMGET', KEYS[2], 'epoch', 'run', 'end', 'route')
if queue[4] == 'deleted' then return {{-1}} end
local epoch = tonumber(queue[1] or 0) + 1
if queue[2] ~= run and run ~= '' then
  epoch = epoch + {LOST_AT_MOST} + tonumber(string.sub(run, 1, 6), 16)
end
local number, last = string.format('%d', epoch), tonumber(queue[3] or 0)
even_when_full(KEYS[1])
if previous then
  redis.call('HSET', KEYS[1], 'previous', previous)
else
  redis.call('HDEL', KEYS[1], 'previous')
end
redis.call('HSET', KEYS[2], 'epoch', number, 'run', run)
local offset = claim[3]
if not offset then
  local first = ARGV[3] == 'last' and last or first_offset(KEYS[3], last)
  offset = string.format('%d', math.min(math.max(tonumber(ARGV[3]) or first, first), last))
end
redis.call('HSET', KEYS[1],
  'owner', ARGV[1], 'until', string.format('%d', now + ARGV[2]), 'run', run, 'epoch', number, 'offset', offset)
return {{1, epoch, tonumber(offset), last, previous or '', claim[4] or ''}}
""")

RENEW = Script("""
-- KEYS: claim. ARGV: owner, epoch, lease in ms. Returns 1, or 0 when the queue was lost.
local claim = redis.call('HMGET', KEYS[1], 'owner', 'epoch', 'run')
if claim[1] ~= ARGV[1] or claim[2] ~= ARGV[2] or claim[3] ~= server_run() then return 0 end
owner_was_told(KEYS[1])
redis.call('HSET', KEYS[1], 'until', string.format('%d', now() + ARGV[3]))
return 1
""")

RELEASE = Script("""
-- KEYS: claim. ARGV: owner, epoch.
local claim = redis.call('HMGET', KEYS[1], 'owner', 'epoch')
if claim[1] == ARGV[1] and claim[2] == ARGV[2] then
  return redis.call('HDEL', KEYS[1], 'owner', 'until')
end
return 0
""")

COMMIT = Script("""
-- KEYS: claim, receipts. ARGV: epoch, offset, how many receipts stay, then offset and body of each new one.
-- Returns 1, or 0 when the epoch is stale.
local claim = redis.call('HMGET', KEYS[1], 'epoch', 'offset', 'run', 'deaths')
if claim[1] ~= ARGV[1] or claim[3] ~= server_run() then return 0 end
owner_was_told(KEYS[1])
local before = tonumber(claim[2] or 0)
if tonumber(ARGV[2]) <= before then
  redis.call('HSET', KEYS[1], 'offset', claim[2])  -- a write, for replicas to confirm
  return 1
end
for i = 4, #ARGV, 2 do
  if tonumber(ARGV[i]) >= before then redis.call('RPUSH', KEYS[2], ARGV[i + 1]) end
end
if #ARGV > 3 then
  local over = redis.call('LLEN', KEYS[2]) - ARGV[3]
  if over > 0 then redis.call('LTRIM', KEYS[2], over, -1) end
end
redis.call('HSET', KEYS[1], 'offset', ARGV[2])
if claim[4] then keep_deaths(KEYS[1], deaths_from(claim[4], tonumber(ARGV[2]))) end
return 1
""")

BURY = Script("""
-- KEYS: claim. ARGV: the dead member, then the offset of each message of this queue that it was at.
local claim = redis.call('HMGET', KEYS[1], 'owner', 'offset', 'deaths')
even_when_full(KEYS[1])
if claim[1] == ARGV[1] then redis.call('HSET', KEYS[1], 'until', '0') end
local committed = tonumber(claim[2] or 0)
local deaths, known = deaths_from(claim[3], committed), {}
for _, death in ipairs(deaths) do known[death] = true end
local name = string.sub(redis.sha1hex(ARGV[1]), 1, 16)
for i = 2, #ARGV do
  local death = ARGV[i] .. '=' .. name
  if tonumber(ARGV[i]) >= committed and not known[death] then
    deaths[#deaths + 1] = death
    known[death] = true
  end
end
if #ARGV > 1 then keep_deaths(KEYS[1], deaths) end
return 1
""")

SET_OFFSET = Script("""
-- KEYS: claim, queue, log. ARGV: offset. Returns -1 for a queue that is deleted.
if redis.call('HGET', KEYS[2], 'route') == 'deleted' then return -1 end
local last = tonumber(redis.call('HGET', KEYS[2], 'end') or 0)
local offset = math.min(math.max(tonumber(ARGV[1]), first_offset(KEYS[3], last)), last)
even_when_full(KEYS[1])
redis.call('HSET', KEYS[1], 'offset', string.format('%d', offset))
redis.call('HDEL', KEYS[1], 'owner', 'until', 'epoch', 'run')
keep_deaths(KEYS[1], deaths_from(redis.call('HGET', KEYS[1], 'deaths'), offset))
return offset
""")

SHOW_CLAIM = Script("""
-- KEYS: claim. Returns {} when there is none, else {offset, epoch, owner or '', ms left}.
local claim = redis.call('HMGET', KEYS[1], 'offset', 'epoch', 'owner', 'until')
if redis.call('EXISTS', KEYS[1]) == 0 then return {} end
local left = claim[4] and math.max(0, tonumber(claim[4]) - now()) or 0
return {tonumber(claim[1] or 0), tonumber(claim[2] or 0), claim[3] or '', left}
""")
