"""The connection to Redis, its errors as Penstock's, and the sink's own keys with the scripts that change them.

An address may hold a secret, so no message shows it whole. A password with a `/`, `#`, `?` or `@` that should have been
percent-encoded makes another address of it, so an ambiguous address is refused, and not repeated.

    penstock:<job>:<uid>:s:<name>    list    the rows of one writer, prepared; a sentinel at its head
    penstock:<job>:<uid>:open        hash    name → what is needed to apply it; every writer not yet applied or aborted
    penstock:<job>:<uid>:begun       hash    name → elements still to apply, of an unfinished commit
    penstock:<job>:<uid>:done        zset    name → epoch: the proof, kept for the last epochs
    penstock:<job>:<uid>:synced      string  the writer for which replicas were last awaited, if the sink does that

No <name> is ever used twice, and none of these keys ever gets a TTL: a decided epoch must not expire. Rows may not have
such keys, this sink's or another's, or they could overwrite a proof.

Redis runs each Lua script atomically, but does *not* roll back one that fails in the middle. So `APPLY` checks every
key that it will touch before it writes the first one; Redis itself refuses for lack of memory only before that. The one
case left are rights that are revoked at that moment: counters that were interrupted by it are never touched again.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha1
from importlib.resources import files
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from penstock import errors
from penstock.contracts.sink import SinkScope
from penstock.secrets import hide

_TAG = re.compile(r"\{[^{}]+\}")

#: The beginning of all sinks' own keys.
RESERVED = rf"^({_TAG.pattern})?penstock:"

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
    with errors.MissingExtra.named("The Redis sink", "redis"):
        import redis
    return redis


def connect(url: str, options: Mapping[str, Any], *, cluster: bool, sentinels: Sequence[str] = ()) -> Any:
    """A client that connects with its first command. It never repeats a command by itself: only the caller knows
    whether that would be right."""
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
    if not url.startswith(("redis://", "rediss://", "unix://")):
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


def _script(*names: str) -> Script:
    """From the Lua files beside this module, one behind the other; each says what its keys and arguments are."""
    folder = files(__package__)
    return Script("\n".join(folder.joinpath(f"{name}.lua").read_text("utf-8") for name in names))


OPEN, ABORT = _script("open"), _script("abort")
VALIDATE, APPLY = _script("refusal", "validate"), _script("refusal", "apply")
