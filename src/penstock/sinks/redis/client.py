"""The connection to Redis, its errors as Penstock's, and the sink's own keys with the scripts that change them.

An address may hold a secret, so no message shows it whole. A password with a `/`, `#`, `?` or `@` that should have been
percent-encoded makes another address of it: parts of the password become port, path or options. So an ambiguous address
is refused, and not repeated.

    penstock:<job>:<uid>:s:<name>    list    the rows of one writer, prepared; a sentinel at its head
    penstock:<job>:<uid>:open        hash    name → what is needed to apply it; every writer not yet applied or aborted
    penstock:<job>:<uid>:begun       hash    name → elements still to apply, of an unfinished commit
    penstock:<job>:<uid>:done        zset    name → epoch: the proof, kept for the last epochs
    penstock:<job>:<uid>:synced      string  the writer for which replicas were last awaited, if the sink does that

<name> is `g<generation>-e<epoch>-a<attempt>-p<partition>-t<task attempt>-<token>` and never used twice. None of these
keys ever gets a TTL: a decided epoch must not expire. On a cluster all begin with the hash tag of the user's prefix.
Rows may not have such keys, this sink's or another's, or they could overwrite a proof.

Redis runs each Lua script atomically, but does *not* roll back one that fails in the middle. So `APPLY` checks every
key that it will touch before it writes the first one; after that neither a key of another type nor a counter that is no
integer or would overflow can fail it. Redis refuses for lack of memory only before a script's first write. The one case
left are rights that are revoked at that moment: counters that were interrupted by it are never touched again.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha1
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from penstock import errors
from penstock.contracts.sink import SinkScope
from penstock.secrets import hide

_TAG = re.compile(r"\{[^{}]+\}")

#: The beginning of all sinks' own keys.
RESERVED = rf"^({_TAG.pattern})?penstock:"

_SCHEMES = ("redis", "rediss", "unix")
_PASSWORD = re.compile(r"^\w+://[^:@/]*:(?P<password>.*)@", re.DOTALL)

#: Time for one answer. A script runs for some tens of milliseconds; a fork or a full disk takes longer.
_ANSWER_SECONDS = 15.0
_CONNECT_SECONDS = 10.0
_WHERE = ("host", "port", "path")  # the sentinels provide these

_DENIED = (
    "NOAUTH", "WRONGPASS", "NOPERM", "invalid username-password", "invalid password", "ACL failure",
    "user executing the script",
)  # fmt: skip
_AWAY = ("READONLY", "LOADING", "MASTERDOWN", "CLUSTERDOWN", "BUSY", "TRYAGAIN", "MISCONF", "NOREPLICAS")


def library() -> Any:
    try:
        import redis
    except ImportError as error:
        raise errors.MissingExtra.of("The Redis sink", "redis", error) from error
    return redis


def connect(url: str, options: Mapping[str, Any], *, cluster: bool, sentinels: Sequence[str] = ()) -> Any:
    """A client that connects with its first command. It never repeats a command by itself: only the caller knows
    whether that would be right. With `sentinels` the host of `url` is their name for the primary; every new connection
    asks them for it."""
    redis = library()
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    settings = {
        "socket_timeout": _ANSWER_SECONDS,
        "socket_connect_timeout": _CONNECT_SECONDS,
        "client_name": "penstock",
        **options,
        "decode_responses": False,
        "retry": Retry(NoBackoff(), 0),
    }
    plain = _plain(url, settings)
    if sentinels:
        return _primary(plain, url, settings, sentinels)
    if not cluster:
        return plain
    with translate_errors(url):  # it asks for its nodes at once
        return redis.RedisCluster.from_url(url, **settings)


def _primary(plain: Any, url: str, settings: Mapping[str, Any], sentinels: Sequence[str]) -> Any:
    from redis import sentinel

    sentinels_of: Any = sentinel.Sentinel  # it has no types
    name = urlsplit(url).hostname
    known = {key: value for key, value in plain.connection_pool.connection_kwargs.items() if key not in _WHERE}
    asking = {key: settings[key] for key in ("socket_timeout", "socket_connect_timeout")}
    addresses = [(host, int(port or 26379)) for host, _, port in (each.rpartition(":") for each in sentinels)]
    return sentinels_of(addresses, sentinel_kwargs=asking).master_for(name, ssl=url.startswith("rediss:"), **known)


def alone(url: str, options: Mapping[str, Any]) -> Any:
    """A plain client for one node, to ask what it is."""
    return _plain(url, {"socket_connect_timeout": _CONNECT_SECONDS, **options})


def _plain(url: str, settings: Mapping[str, Any]) -> Any:
    try:
        client = library().Redis.from_url(url, **settings)
        pool = client.connection_pool
        pool.connection_class(**pool.connection_kwargs)  # does not connect yet, but checks its settings
    except (ValueError, TypeError, library().exceptions.RedisError):
        raise errors.ConfigurationError(  # the reason repeats what could not be read
            "The Redis client does not take an option of the sink's address, or of its options.",
            to_do="see the names and values behind the ? of the address; they are those of redis-py.",
        ) from None
    return client


class Script:
    """One script, known to the server by its digest; sent whole if the server does not know it."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._digest = sha1(text.encode(), usedforsecurity=False).hexdigest()

    def __call__(self, client: Any, keys: list[str], arguments: list[Any]) -> Any:
        try:
            return client.execute_command("EVALSHA", self._digest, len(keys), *keys, *arguments)
        except library().exceptions.NoScriptError:
            return client.execute_command("EVAL", self._text, len(keys), *keys, *arguments)


@contextlib.contextmanager
def translate_errors(url: str) -> Iterator[None]:
    """Turns the client's errors into Penstock's. An error that repeats a secret is not kept as their cause either."""
    redis = library()
    try:
        yield
    except (redis.exceptions.RedisError, redis.exceptions.RedisClusterException, OSError) as error:
        raise translated(error, url) from harmless(error, url)


def harmless(error: BaseException, url: str) -> BaseException | None:
    """The error as a cause that a traceback may show; None if it repeats a secret of `url`."""
    return error if scrub(str(error), url) == str(error) else None


def is_away(error: BaseException) -> bool:
    """Whether a later retry may help."""
    redis = library().exceptions
    gone = (redis.ConnectionError, redis.TimeoutError, redis.BusyLoadingError, redis.RedisClusterException, OSError)
    refused = (redis.AuthenticationError, redis.AuthorizationError)
    return (isinstance(error, gone) and not isinstance(error, refused)) or str(error).startswith(_AWAY)


def translated(error: BaseException, url: str) -> errors.PenstockError:
    """Penstock's error for one of the client's."""
    redis = library().exceptions
    where, text = public_address(url), scrub(str(error), url)
    denied = (redis.AuthenticationError, redis.NoPermissionError)
    if isinstance(error, denied) or any(word in text for word in _DENIED):
        return errors.AccessDenied(
            f"Redis at {where} refused: {text}.",
            safe="nothing of this epoch is visible.",
            to_do="check user and password in the sink's url, and the ACL: keys 'penstock:*' and those of the prefix.",
        )
    if "bulk length" in text or "big bulk count" in text:
        return errors.ValueTooLarge(
            f"A value is larger than Redis at {where} takes (proto-max-bulk-len): {text}.",
            to_do="leave such rows out, or raise proto-max-bulk-len.",
        )
    if isinstance(error, redis.OutOfMemoryError) or text.startswith("OOM"):
        return errors.StorageFull(
            f"Redis at {where} has reached its maxmemory: {text}.",
            safe="nothing of this epoch is visible, or it is decided and waits, prepared.",
            to_do="raise maxmemory or free memory; the job resumes from the same positions.",
        )
    if "WRONGTYPE" in text or "not an integer" in text or "overflow" in text:
        return errors.DataError(
            f"Redis at {where} cannot take a row: {text}.",
            safe="nothing of this row was written.",
            to_do="remove the key that is in the way, or give the sink another prefix.",
        )
    if is_away(error):
        return errors.SystemUnavailable(
            f"Redis at {where} does not answer: {text}.",
            safe="what was committed stays committed; nothing else is visible.",
            to_do="check that the address is right and the server runs; the restart strategy retries.",
        )
    return errors.PreCommitFailed(
        f"Redis at {where} refused a command: {text}.", to_do="see what the server's version and ACL allow."
    )


def require_readable(url: str) -> None:
    """`ConfigurationError`, which holds nothing of `url`, if it is ambiguous."""
    if not url.startswith(tuple(f"{scheme}://" for scheme in _SCHEMES)):
        raise _refused("RedisSink needs an address that begins with redis://, rediss:// (TLS) or unix://.")
    try:
        parts = urlsplit(url)
        readable = (parts.port or 1) > 0 and (bool(parts.path) if parts.scheme == "unix" else bool(parts.hostname))
    except ValueError:
        raise _refused("RedisSink cannot read its address.") from None  # the reason repeats a part of it
    if parts.scheme != "unix":
        readable = readable and re.fullmatch(r"/?\d*/?", parts.path) is not None
        readable = readable and re.fullmatch(r"[\w.:%-]+", parts.hostname or "") is not None
    if not readable or "#" in url or "@" in parts.path or "@" in parts.query or parts.netloc.count("@") > 1:
        raise _refused("RedisSink cannot read its address.")


def public_address(url: str) -> str:
    """`url` for messages: without user, password and options."""
    parts = urlsplit(url)
    if parts.scheme == "unix":
        return parts.path
    host = parts.hostname or "localhost"
    return f"{f'[{host}]' if ':' in host else host}:{parts.port or 6379}{parts.path.rstrip('/')}"


def scrub(text: str, url: str) -> str:
    """`text` without the password of `url` and the values of its options, which clients repeat."""
    match = _PASSWORD.match(url)
    hidden = {match["password"]} if match else set()
    hidden |= {value for _, value in parse_qsl(url.partition("?")[2])}
    return hide(text, hidden | {unquote(secret) for secret in hidden})


def _refused(happened: str) -> errors.ConfigurationError:
    return errors.ConfigurationError(
        happened,
        to_do="write it like redis://user:password@host:6379/0, with special characters in the password encoded "
        "(/ is %2F, # is %23, ? is %3F, @ is %40); or give the password by options={'password': …}.",
    )


def hash_tag(prefix: str) -> str:
    """The part of a prefix that decides its slot on a cluster, with its braces; empty if there is none."""
    match = _TAG.search(prefix)
    # Redis takes the text between the first "{" and the next "}"; a prefix like "{}{x}" has no tag.
    return match[0] if match is not None and prefix.find("{") == match.start() else ""


class Layout:
    def __init__(self, base: str) -> None:
        self.base = base
        self.open, self.begun, self.done, self.synced = (
            f"{base}:{part}" for part in ("open", "begun", "done", "synced")
        )

    @classmethod
    def of(cls, scope: SinkScope, prefix: str) -> Layout:
        return cls(f"{hash_tag(prefix)}penstock:{scope.prefix}")

    def rows(self, name: str) -> str:
        return f"{self.base}:s:{name}"


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
OPEN = Script("""
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
return redis.call('RPUSH', KEYS[2], '')
""")

# KEYS: rows. ARGV: head, first element, last element. Writes nothing.
VALIDATE = Script(
    _REFUSAL
    + """
return refusal(redis.call('LRANGE', KEYS[1], ARGV[2], ARGV[3]), cjson.decode(ARGV[1])) or ''
"""
)

# KEYS: rows, open, begun, done. ARGV: name, epoch, elements in all, elements at a time, oldest epoch to remember.
# Applies the next part of one writer's rows and takes it off the list in the same step.
APPLY = Script(
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
ABORT = Script("""
local aborted = 0
for n, name in ipairs(ARGV) do
  if redis.call('HEXISTS', KEYS[2], name) == 0 and redis.call('HDEL', KEYS[1], name) == 1 then
    redis.call('UNLINK', KEYS[2 + n])
    aborted = aborted + 1
  end
end
return aborted
""")
