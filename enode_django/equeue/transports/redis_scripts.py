"""The Lua scripts of the Redis driver: each is one atomic step on the keys of one queue (or one inbox).

A server that cannot write (out of memory, read-only) refuses a script's first write and none after it, so nothing is
left half done.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Script:
    text: str
    sha: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "sha", hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest())


SEND = Script("""
-- KEYS: log, next offset. ARGV: bodies. Returns the offset of the first; offset n is the entry 'n+1-0'.
local last = redis.call('INCRBY', KEYS[2], #ARGV)
local first = last - #ARGV
for i, body in ipairs(ARGV) do
  redis.call('XADD', KEYS[1], string.format('%d-0', first + i), 'b', body)
end
return first
""")

REPLY = Script("""
-- KEYS: inbox. ARGV: how many answers it may hold, seconds until it is forgotten, bodies.
for i = 3, #ARGV do
  redis.call('XADD', KEYS[1], 'MAXLEN', '~', ARGV[1], '*', 'b', ARGV[i])
end
return redis.call('EXPIRE', KEYS[1], ARGV[2])
""")

_NOW = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
"""

# Which start of the server this is. A server that crashed may have lost its last writes, and a window that goes on from
# before would pass over what is sent under the same offsets now. Who may not ask (ACL) is not protected.
_RUN = """
local info = redis.pcall('INFO', 'server')
local run = type(info) == 'string' and string.match(info, 'run_id:(%x+)') or ''
"""

ACQUIRE = Script(
    _NOW
    + _RUN
    + """
-- KEYS: claim, next offset. ARGV: owner, lease in ms, owners known to be dead.
-- Returns {1, epoch, committed, end, previous owner or ''} or {0, owner, ms left}.
local claim = redis.call('HMGET', KEYS[1], 'owner', 'until', 'epoch', 'offset')
local previous = claim[1]
if previous == ARGV[1] then previous = false end
local held = previous and tonumber(claim[2]) > now
for i = 3, #ARGV do
  if previous == ARGV[i] then held = false end
end
if held then
  return {0, previous, tonumber(claim[2]) - now}
end
local epoch = redis.call('HINCRBY', KEYS[1], 'epoch', 1)
redis.call('HSET', KEYS[1], 'owner', ARGV[1], 'until', string.format('%d', now + ARGV[2]), 'run', run)
return {1, epoch, tonumber(claim[4] or 0), tonumber(redis.call('GET', KEYS[2]) or 0), previous or ''}
"""
)

RENEW = Script(
    _NOW
    + _RUN
    + """
-- KEYS: claim. ARGV: owner, epoch, lease in ms. Returns 1, or 0 when the queue was lost.
local claim = redis.call('HMGET', KEYS[1], 'owner', 'epoch', 'run')
if claim[1] ~= ARGV[1] or claim[2] ~= ARGV[2] or claim[3] ~= run then return 0 end
redis.call('HSET', KEYS[1], 'until', string.format('%d', now + ARGV[3]))
return 1
"""
)

RELEASE = Script("""
-- KEYS: claim. ARGV: owner, epoch.
local claim = redis.call('HMGET', KEYS[1], 'owner', 'epoch')
if claim[1] == ARGV[1] and claim[2] == ARGV[2] then
  return redis.call('HDEL', KEYS[1], 'owner', 'until')
end
return 0
""")

COMMIT = Script(
    _RUN
    + """
-- KEYS: claim, receipts. ARGV: epoch, offset, how many receipts stay, then offset and body of each new one.
-- Returns 1, or 0 when the epoch is stale.
local claim = redis.call('HMGET', KEYS[1], 'epoch', 'offset', 'run')
if claim[1] ~= ARGV[1] or claim[3] ~= run then return 0 end
local before = tonumber(claim[2] or 0)
if tonumber(ARGV[2]) <= before then return 1 end
for i = 4, #ARGV, 2 do
  if tonumber(ARGV[i]) >= before then redis.call('RPUSH', KEYS[2], ARGV[i + 1]) end
end
if #ARGV > 3 then
  local over = redis.call('LLEN', KEYS[2]) - ARGV[3]
  if over > 0 then redis.call('LTRIM', KEYS[2], over, -1) end
end
redis.call('HSET', KEYS[1], 'offset', ARGV[2])
return 1
"""
)
