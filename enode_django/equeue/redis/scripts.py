"""Lua scripts of the Redis driver for messages and answers. Each is one atomic step on the keys of one queue or inbox.

A server that cannot write (out of memory, read-only) refuses the first write of a script but no later one, so no script
stops halfway. A server that is out of memory refuses only commands that may need some: a script whose first write is
``even_when_full`` runs to its end. All scripts that let consumers go on begin with it, since only consumers make room.
`SEND` does not.

Scripts that replicas confirm write also when they are repeated: replicas confirm the last write of a connection, and
the first call may have been made over another one.
"""

from __future__ import annotations

import hashlib

from enode_django.equeue.transport import KNOWN_SENDS

KNOWN_SECONDS = 600
COPIED_SECONDS = 600
CLOCK_STEP = 10
"""Milliseconds. Of the messages stored within such a step only the first one's time is kept."""


HELPERS = {
    "now": """
local function now()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end
""",
    # A write that changes nothing and is never refused for lack of memory. After it, the other writes of the script are
    # not refused either. Redis 7 has a flag for this (allow-oom), which is an error in Redis 6.2.
    "even_when_full": """
local function even_when_full(hash) redis.call('HDEL', hash, '') end
""",
    # The identity of a server's time as a master, new with each start and each promotion, also if a server takes over
    # again. A server that crashed may have lost its last writes, and a replica that took over may never have had them;
    # a window from before would skip messages that get the same offsets now. It is new, too, when the first replica
    # attaches, and an hour after the last one has left (`repl-backlog-ttl`): then leases are lost for no reason, and
    # what was in flight is handled again. A user who may not ask (ACL) is not protected.
    "server_run": """
local function server_run()
  local info = redis.pcall('INFO', 'replication')
  return type(info) == 'string' and string.match(info, 'master_replid:(%x+)') or ''
end
""",
    "first_offset": """
local function first_offset(log, last)
  local oldest = redis.call('XRANGE', log, '-', '+', 'COUNT', 1)[1]
  return oldest and tonumber(string.match(oldest[1], '^%d+')) - 1 or last
end
""",
    "is_above": """
local function is_above(log, last)
  local newest = redis.call('XREVRANGE', log, '+', string.format('(%d-0', last), 'COUNT', 1)[1]
  return newest ~= nil
end
""",
    "last_id": """
local function last_id(log)
  local about = redis.call('XINFO', 'STREAM', log)
  for i = 1, #about, 2 do if about[i] == 'last-generated-id' then return about[i + 1] end end
end
""",
    # Deaths are text, like '5=0a1b,7=0a1b,7=2c3d': the offset of the message and the beginning of a hash of the
    # member's name, so that the same death is not counted twice.
    "deaths_from": """
local function deaths_from(text, offset)
  local kept = {}
  for death, at in string.gmatch(text or '', '((%d+)=%x+)') do
    if tonumber(at) >= offset then kept[#kept + 1] = death end
  end
  return kept
end
""",
    "keep_deaths": """
local function keep_deaths(claim, deaths)
  if #deaths > 0 then
    redis.call('HSET', claim, 'deaths', table.concat(deaths, ','))
  else
    redis.call('HDEL', claim, 'deaths')
  end
end
""",
    # As a first write it has the effect of `even_when_full`.
    "owner_was_told": """
local function owner_was_told(claim) redis.call('HDEL', claim, 'previous') end
""",
}
"""Functions in Lua by their names. They call none of each other."""


class Script:
    """A script, with the `HELPERS` that it calls in front of it."""

    def __init__(self, body: str) -> None:
        helpers = (helper for name, helper in HELPERS.items() if f"{name}(" in body)
        self.text = "".join((*helpers, body))
        self.sha = hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest()


# Offsets of a sequence are kept by chunk, so that a send which broke off between two chunks is completed. The turns
# are a ring of the newest sequences.
_SEND = f"""
-- KEYS: log, queue, times, sent. ARGV: route ('': any), sequence ('': none), chunk, bodies.
-- Returns the offset of the first; offset n is the entry 'n+1-0'. Returns -1 when the queue has another route or
-- is deleted, and -2 when there are, or were, entries above its end, which no script of ours has written.
local queue = redis.call('HMGET', KEYS[2], 'end', 'route', 'time', 'largest', 'largest_since')
local sequence, chunk = ARGV[2], ARGV[3]
if sequence ~= '' then
  local stored = redis.call('HGET', KEYS[4], sequence .. ':' .. chunk)
  if stored then
    redis.call('EXPIRE', KEYS[4], {KNOWN_SECONDS})  -- a write, for replicas to confirm
    return tonumber(stored)
  end
end
if queue[2] == 'deleted' or (ARGV[1] ~= '' and ARGV[1] ~= (queue[2] or '1')) then return -1 end
local first = tonumber(queue[1] or 0)
local added = redis.pcall('XADD', KEYS[1], string.format('%d-0', first + 1), 'b', ARGV[4])
if type(added) == 'table' and added.err then
  local were_above = string.find(added.err, 'equal or smaller', 1, true)
  return (were_above or is_above(KEYS[1], first)) and -2 or added
end
for i = 5, #ARGV do
  redis.call('XADD', KEYS[1], string.format('%d-0', first + i - 3), 'b', ARGV[i])
end
local last = string.format('%d', first + #ARGV - 3)
local now = now()
if now >= tonumber(queue[3] or 0) + {CLOCK_STEP} then
  local moment = string.format('%d', now)
  redis.call('XADD', KEYS[3], moment .. '-0', 'o', first)
  redis.call('HSET', KEYS[2], 'end', last, 'time', moment)
else
  redis.call('HSET', KEYS[2], 'end', last)
end
local largest = 0
for i = 4, #ARGV do largest = math.max(largest, #ARGV[i]) end
if largest > tonumber(queue[4] or 0) then redis.call('HSET', KEYS[2], 'largest', largest) end
if largest > tonumber(queue[5] or 0) then redis.call('HSET', KEYS[2], 'largest_since', largest) end
if sequence ~= '' then
  redis.call('HSET', KEYS[4], sequence .. ':' .. chunk, string.format('%d', first))
  if chunk == '0' then
    local turn = 'turn:' .. redis.call('HINCRBY', KEYS[4], 'turns', 1) % {KNOWN_SENDS}
    local oldest, part = redis.call('HGET', KEYS[4], turn), 0
    while oldest and redis.call('HDEL', KEYS[4], oldest .. ':' .. part) == 1 do part = part + 1 end
    redis.call('HSET', KEYS[4], turn, sequence)
  end
  redis.call('EXPIRE', KEYS[4], {KNOWN_SECONDS})
end
return first
"""
SEND = Script(_SEND)

# For a full server, too.
SEND_WITH_RESERVE = Script(f"even_when_full(KEYS[2]){_SEND}")

MEND = Script("""
-- KEYS: log, queue. ARGV: how many entries to delete at most.
-- Deletes entries above the queue's end, which no script of ours has written. When none is left, the stream goes on
-- from its end. Returns how many were deleted, and 1 if the stream cannot go on: Redis 7 and Valkey set no id below
-- that of a deleted entry.
even_when_full(KEYS[2])
local last = string.format('%d-0', tonumber(redis.call('HGET', KEYS[2], 'end') or 0))
local foreign = redis.call('XRANGE', KEYS[1], '(' .. last, '+', 'COUNT', ARGV[1])
for _, entry in ipairs(foreign) do redis.call('XDEL', KEYS[1], entry[1]) end
local stays = #foreign == tonumber(ARGV[1]) or redis.call('EXISTS', KEYS[1]) == 0 or last_id(KEYS[1]) == last
local set = stays or redis.pcall('XSETID', KEYS[1], last)
return {#foreign, type(set) == 'table' and set.err and 1 or 0}
""")

# No send changes the log meanwhile: it refuses a log that has, or had, entries above its end.
COPY_LOG = Script(f"""
-- KEYS: log, queue, copy. ARGV: how many entries to copy at most.
-- Copies the next entries up to the queue's end. Returns 1 when the copy has all and has taken the place of the log.
local last = string.format('%d-0', tonumber(redis.call('HGET', KEYS[2], 'end') or 0))
local newest = redis.call('XREVRANGE', KEYS[3], '+', '-', 'COUNT', 1)[1]
local entries = redis.call('XRANGE', KEYS[1], newest and '(' .. newest[1] or '-', last, 'COUNT', ARGV[1])
for _, entry in ipairs(entries) do redis.call('XADD', KEYS[3], entry[1], unpack(entry[2])) end
if #entries == tonumber(ARGV[1]) then
  redis.call('EXPIRE', KEYS[3], {COPIED_SECONDS})
  return 0
end
if last == '0-0' then
  redis.call('DEL', KEYS[1])
  return 1
end
if redis.call('EXISTS', KEYS[3]) == 0 or last_id(KEYS[3]) ~= last then  -- the last message was trimmed
  redis.call('XADD', KEYS[3], last, 'b', '')
  redis.call('XDEL', KEYS[3], last)
end
redis.call('RENAME', KEYS[3], KEYS[1])
redis.call('PERSIST', KEYS[1])
return 1
""")

FIT = Script("""
-- KEYS: log. ARGV: an entry, how many to look at, how many bytes they may have, how many to look at in one step.
-- Returns how many of those after it have so many bytes together, at least 1; if all have, how many to look at.
local after, most, left, step = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local count = 0
while count < most do
  local some = redis.call('XRANGE', KEYS[1], '(' .. after, '+', 'COUNT', step)
  for _, entry in ipairs(some) do
    for _, word in ipairs(entry[2]) do left = left - #word end
    if left < 0 and count < most then return math.max(1, count) end
    count, after = count + 1, entry[1]
  end
  if #some < step then return most end
end
return most
""")

BOUNDS = Script("""
-- KEYS: log, queue. Returns the offset of the oldest message, and the next one's.
local last = tonumber(redis.call('HGET', KEYS[2], 'end') or 0)
return {first_offset(KEYS[1], last), last}
""")

# One large message must not slow pulls down for ever: once all messages up to the mark are deleted, the largest one
# since the mark counts.
TRIM_TIMES = Script("""
-- KEYS: log, queue, times. ARGV: how many entries to look at.
-- Returns how many it deleted of those times that only belong to messages which are deleted.
local queue = redis.call('HMGET', KEYS[2], 'end', 'mark', 'largest_since')
local last = tonumber(queue[1] or 0)
local first = first_offset(KEYS[1], last)
if queue[3] and first >= tonumber(queue[2] or 0) then
  even_when_full(KEYS[2])
  redis.call('HSET', KEYS[2], 'largest', queue[3], 'largest_since', 0, 'mark', last)
end
local entries = redis.call('XRANGE', KEYS[3], '-', '+', 'COUNT', ARGV[1])
local keep = false
for i = 2, #entries do
  if tonumber(entries[i][2][2]) <= first then keep = entries[i][1] end
end
return keep and redis.call('XTRIM', KEYS[3], 'MINID', keep) or 0
""")

MEMORY_USED = Script("""
-- KEYS: any one of the server. Returns how many percent of its memory are used; 0 if it has no limit, or if this user
-- may not ask (ACL).
local info = redis.pcall('INFO', 'memory')
local most = type(info) == 'string' and tonumber(string.match(info, 'maxmemory:(%d+)')) or 0
if most == 0 then return 0 end
return math.floor(100 * tonumber(string.match(info, 'used_memory:(%d+)')) / most)
""")

HAZARDS = Script("""
-- KEYS: any one of the server. Returns its policy of eviction, and whether it writes an append-only file (0, 1). Both
-- are empty texts if this user may not ask (ACL).
local function of(section, pattern)
  local info = redis.pcall('INFO', section)
  return type(info) == 'string' and string.match(info, pattern) or ''
end
return {of('memory', 'maxmemory_policy:([%a-]+)'), of('persistence', 'aof_enabled:(%d)')}
""")

REPLY = Script("""
-- KEYS: inbox. ARGV: how many answers it may hold, seconds until it is forgotten, bodies.
-- Even when the server is full: workers commit nothing before they have answered.
redis.call('XDEL', KEYS[1], '0-1')
for i = 3, #ARGV do
  redis.call('XADD', KEYS[1], 'MAXLEN', '~', ARGV[1], '*', 'b', ARGV[i])
end
return redis.call('EXPIRE', KEYS[1], ARGV[2])
""")
