"""What a sink keeps in Redis besides the user's keys, how it is named, and the scripts that change it.

    penstock:<job>:<uid>:s:<name>    list    the rows of one writer, prepared; a sentinel at its head
    penstock:<job>:<uid>:open        hash    name → what is needed to apply it; every writer not yet applied or aborted
    penstock:<job>:<uid>:begun       hash    name → elements still to apply, of a commit under way
    penstock:<job>:<uid>:done        zset    name → epoch: the proof, kept for the last epochs
    penstock:<job>:<uid>:synced      string  the epoch that replicas were last waited for, where the sink does that

<name> is `g<generation>-e<epoch>-a<attempt>-p<partition>-t<task attempt>-<token>` and never used twice. None of these
keys ever gets a TTL: what is decided must not expire. On a cluster all begin with the hash tag of the user's prefix.
Rows may not have such keys, neither this sink's nor another's, or they could overwrite a proof.

The Lua that runs inside Redis, each script in one step that nobody sees half of.

A script that fails in the middle is *not* rolled back. So `apply` looks at every key it is going to touch before it
writes the first one, and what passed that look cannot fail: neither a key of another type, nor a counter that is no
integer or would overflow. Redis refuses for lack of memory only before a script's first write. What is left are rights
that are taken away at that moment: counters that were broken off in the middle are never touched again.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass

from penstock.contracts.sink import SinkScope, WriterScope

_NAME = re.compile(r"g(?P<generation>\d+)-e(?P<epoch>\d+)-a\d+-p(?P<partition>\d+)-t\d+-[0-9a-f]+")
_TAG = re.compile(r"\{[^{}]+\}")

#: How the keys of all sinks begin.
RESERVED = rf"^({_TAG.pattern})?penstock:"


def hash_tag(prefix: str) -> str:
    """The part of a prefix that decides its slot on a cluster, with its braces; empty where there is none."""
    match = _TAG.search(prefix)
    # Redis takes what stands between the first "{" and the next "}"; a prefix like "{}{x}" has no tag.
    return match[0] if match is not None and prefix.find("{") == match.start() else ""


@dataclass(frozen=True, slots=True)
class Layout:
    """The names of one sink's own keys."""

    base: str

    @classmethod
    def of(cls, scope: SinkScope, prefix: str) -> Layout:
        return cls(f"{hash_tag(prefix)}penstock:{scope.prefix}")

    @property
    def open(self) -> str:
        return f"{self.base}:open"

    @property
    def begun(self) -> str:
        return f"{self.base}:begun"

    @property
    def done(self) -> str:
        return f"{self.base}:done"

    @property
    def synced(self) -> str:
        return f"{self.base}:synced"

    def rows(self, name: str) -> str:
        return f"{self.base}:s:{name}"


def name_of(scope: WriterScope) -> str:
    return (
        f"g{scope.sink.generation}-e{scope.epoch}-a{scope.attempt}-p{scope.partition}-t{scope.task_attempt}"
        f"-{secrets.token_hex(6)}"
    )


def numbers_of(name: str) -> dict[str, int] | None:
    """Generation, epoch and partition in a writer's name."""
    match = _NAME.fullmatch(name)
    return {key: int(value) for key, value in match.groupdict().items()} if match else None


def generation_of(name: str) -> int | None:
    found = numbers_of(name)
    return found["generation"] if found else None


#: Elements before each row's values: which of them are null, and the key.
AHEAD = 2

#: Counters stay below this, a little under 2^63, because Lua counts in doubles.
COUNTER_LIMIT = 9_220_000_000_000_000_000

# Returns a sentence about the first row that cannot be applied, or nil.
_REFUSAL = """
local function refusal(rows, head)
  local width = 2 + #head.fields
  local hashed = head.mode == 'hash' or (head.mode == 'counter' and #head.fields > 1)
  local wanted = hashed and 'hash' or 'string'
  local sums = {}
  for at = 1, #rows, width do
    local key = rows[at + 1]
    local kind = redis.call('TYPE', key).ok
    if kind ~= 'none' and kind ~= wanted then return 'the key ' .. key .. ' is a ' .. kind .. ', not a ' .. wanted end
    if head.mode == 'counter' then
      local there = {}
      if kind ~= 'none' then
        there = hashed and redis.call('HMGET', key, unpack(head.fields)) or {redis.call('GET', key)}
      end
      for n, field in ipairs(head.fields) do
        local name = hashed and key .. '\\0' .. field or key
        if sums[name] == nil then
          local found = there[n] or '0'
          if found ~= '0' and not string.match(found, '^%-?[1-9]%d*$') then
            return 'the counter ' .. key .. ' holds what is no integer'
          end
          sums[name] = tonumber(found)
        end
        sums[name] = sums[name] + (tonumber(rows[at + 1 + n]) or 0)
        if math.abs(sums[name]) > LIMIT then return 'the counter ' .. key .. ' would overflow' end
      end
    end
  end
  return nil
end
""".replace("LIMIT", f"{COUNTER_LIMIT}")

# KEYS: open, rows. ARGV: name, head.
OPEN = """
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
return redis.call('RPUSH', KEYS[2], '')
"""

# KEYS: rows. ARGV: head, first element, last element. Writes nothing.
VALIDATE = (
    _REFUSAL
    + """
return refusal(redis.call('LRANGE', KEYS[1], ARGV[2], ARGV[3]), cjson.decode(ARGV[1])) or ''
"""
)

# KEYS: rows, open, begun, done. ARGV: name, epoch, elements in all, elements at a time, oldest epoch to remember.
# Applies the next part of one writer's rows and takes it off the list in the same step.
APPLY = (
    _REFUSAL
    + """
local name, most = ARGV[1], tonumber(ARGV[4])
if redis.call('ZSCORE', KEYS[4], name) then return {'already'} end
local head = redis.call('HGET', KEYS[2], name)
local left = redis.call('HGET', KEYS[3], name)
local length = redis.call('LLEN', KEYS[1])
if not left then
  if not head then return {'lost'} end
  if length == 0 then
    redis.call('HDEL', KEYS[2], name)
    return {'lost'}
  end
  if length ~= tonumber(ARGV[3]) + 1 then return {'refused', 'its prepared rows are not as they were written'} end
elseif not head or length ~= tonumber(left) then
  return {'refused', 'part of it is applied, and the rest cannot be told from it any more'}
end
head = cjson.decode(head)
local first = left and 0 or 1
local rows = redis.call('LRANGE', KEYS[1], first, first + most - 1)
local why = refusal(rows, head)
if why then return {'refused', why} end

local width, wrote = 2 + #head.fields, false
local function write()
  for at = 1, #rows, width do
    local nulls, key, touched = rows[at], rows[at + 1], true
    if head.mode == 'string' then
      if nulls ~= '' then redis.call('DEL', key)
      elseif head.ttl then redis.call('SET', key, rows[at + 2], 'PX', head.ttl)
      else redis.call('SET', key, rows[at + 2]) end
    elseif head.mode == 'counter' then
      touched = false
      for n, field in ipairs(head.fields) do
        if string.byte(nulls, n) ~= 48 then  -- a null adds nothing, and makes no counter
          if #head.fields > 1 then redis.call('HINCRBY', key, field, rows[at + 1 + n])
          else redis.call('INCRBY', key, rows[at + 1 + n]) end
          wrote, touched = true, true  -- keys that are overwritten may be written again, counters must not
        end
      end
    else
      local set, gone = {}, {}
      for n, field in ipairs(head.fields) do
        if string.byte(nulls, n) == 48 then
          gone[#gone + 1] = field
        else
          set[#set + 1] = field
          set[#set + 1] = rows[at + 1 + n]
        end
      end
      for from = 1, #set, 4000 do redis.call('HSET', key, unpack(set, from, math.min(from + 3999, #set))) end
      for from = 1, #gone, 4000 do redis.call('HDEL', key, unpack(gone, from, math.min(from + 3999, #gone))) end
    end
    if head.ttl and touched and head.mode ~= 'string' then redis.call('PEXPIRE', key, head.ttl) end
  end
  redis.call('LTRIM', KEYS[1], first + #rows, -1)
end

local fine, err = pcall(write)
if not fine then
  local said = string.gsub(type(err) == 'table' and err.err or tostring(err), '^@user_script: ?%d+: %-?', '')
  if not wrote then return redis.error_reply(said) end
  redis.call('HSET', KEYS[3], name, 'broken')
  return {'refused', said}
end
local rest = length - first - #rows
if rest > 0 then
  redis.call('HSET', KEYS[3], name, rest)
  return {'more'}
end
redis.call('HDEL', KEYS[2], name)
redis.call('HDEL', KEYS[3], name)
redis.call('ZADD', KEYS[4], ARGV[2], name)
redis.call('ZREMRANGEBYSCORE', KEYS[4], '-inf', '(' .. ARGV[5])
return {'done'}
"""
)

# KEYS: open, begun, then the rows of each. ARGV: their names. A writer whose commit has begun stays: it is decided.
ABORT = """
local aborted = 0
for n, name in ipairs(ARGV) do
  if redis.call('HEXISTS', KEYS[2], name) == 0 and redis.call('HDEL', KEYS[1], name) == 1 then
    redis.call('UNLINK', KEYS[2 + n])
    aborted = aborted + 1
  end
end
return aborted
"""
