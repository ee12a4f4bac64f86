"""The connection to Redis, and its errors as ours. No message ever holds the address's user or password.

An address may hold a secret, so no message shows it whole. A password with a `/`, `#`, `?` or `@` that should have been
percent-encoded makes another address of it: parts of the password are then taken for port, path or options. So an
address that is not plainly one is refused, and not repeated.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha1
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from penstock.errors import (
    AccessDenied,
    ConfigurationError,
    DataError,
    MissingExtra,
    PenstockError,
    PreCommitFailed,
    StorageFull,
    SystemUnavailable,
    ValueTooLarge,
)
from penstock.secrets import hide

_SCHEMES = ("redis", "rediss", "unix")
_PASSWORD = re.compile(r"^\w+://[^:@/]*:(?P<password>.*)@", re.DOTALL)

#: How long one answer may take. A script works for some tens of milliseconds; a fork or a full disk takes longer.
_ANSWER_SECONDS = 15.0
_CONNECT_SECONDS = 10.0
_WHERE = ("host", "port", "path")  # what sentinels say instead

_SAFE = "nothing of this epoch is visible."
_DENIED = (
    "NOAUTH", "WRONGPASS", "NOPERM", "invalid username-password", "invalid password", "ACL failure",
    "user executing the script",
)  # fmt: skip
_AWAY = ("READONLY", "LOADING", "MASTERDOWN", "CLUSTERDOWN", "BUSY", "TRYAGAIN", "MISCONF", "NOREPLICAS")


def library() -> Any:
    try:
        import redis
    except ImportError as error:
        raise MissingExtra(
            "The Redis sink needs the package redis, which is not installed.",
            to_do="pip install 'penstock[redis]'",
        ) from error
    return redis


def connect(url: str, options: Mapping[str, Any], *, cluster: bool, sentinels: Sequence[str] = ()) -> Any:
    """A client that connects with its first command. It never sends a command a second time by itself: whoever asked
    knows whether that would be right. With `sentinels` the host of `url` is the name under which they know the primary;
    they are asked for it with every new connection."""
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
        made = library().Redis.from_url(url, **settings)
        pool = made.connection_pool
        pool.connection_class(**pool.connection_kwargs)  # does not connect yet, but looks at its settings
    except (ValueError, TypeError, library().exceptions.RedisError):
        raise refused_options() from None  # the reason repeats what could not be read
    return made


class Script:
    """One script, known to the server by its digest; sent whole where the server does not know it (any more)."""

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
    """Turns what the client raises into errors of ours. What repeats a secret is not kept as their cause either."""
    redis = library()
    try:
        yield
    except (redis.exceptions.RedisError, redis.exceptions.RedisClusterException, OSError) as error:
        raise fault(error, url) from harmless(error, url)


def harmless(error: BaseException, url: str) -> BaseException | None:
    """The error as a cause that a traceback may show; None where it repeats a secret of `url`."""
    return error if scrub(str(error), url) == str(error) else None


def is_away(error: BaseException) -> bool:
    """Whether asking again, later, may help."""
    errors = library().exceptions
    gone = (errors.ConnectionError, errors.TimeoutError, errors.BusyLoadingError, errors.RedisClusterException, OSError)
    refused = (errors.AuthenticationError, errors.AuthorizationError)
    return (isinstance(error, gone) and not isinstance(error, refused)) or str(error).startswith(_AWAY)


def fault(error: BaseException, url: str) -> PenstockError:
    """The error for what the client raised while it spoke with `url`."""
    errors = library().exceptions
    where, text = public_address(url), scrub(str(error), url)
    if isinstance(error, errors.AuthenticationError | errors.NoPermissionError) or any(one in text for one in _DENIED):
        return AccessDenied(
            f"Redis at {where} refused: {text}.",
            safe=_SAFE,
            to_do="check user and password in the sink's url, and the ACL: keys 'penstock:*' and those of the prefix.",
        )
    if "bulk length" in text or "big bulk count" in text:
        return ValueTooLarge(
            f"A value is larger than Redis at {where} takes (proto-max-bulk-len): {text}.",
            safe=_SAFE,
            to_do="leave such rows out, or raise proto-max-bulk-len.",
        )
    if isinstance(error, errors.OutOfMemoryError) or text.startswith("OOM"):
        return StorageFull(
            f"Redis at {where} has reached its maxmemory: {text}.",
            safe="nothing of this epoch is visible, or it is decided and waits, prepared.",
            to_do="raise maxmemory or free memory; the job goes on from the same positions.",
        )
    if "WRONGTYPE" in text or "not an integer" in text or "overflow" in text:
        return DataError(
            f"Redis at {where} cannot take a row: {text}.",
            safe="nothing of this row was written.",
            to_do="remove the key that is in the way, or give the sink another prefix.",
        )
    if is_away(error):
        return SystemUnavailable(
            f"Redis at {where} does not answer: {text}.",
            safe="what was committed stays committed; nothing else is visible.",
            to_do="check that the address is right and the server runs; the job tries again by its restart strategy.",
        )
    return PreCommitFailed(
        f"Redis at {where} refused a command: {text}.", safe=_SAFE, to_do="see what the server's version and ACL allow."
    )


def require_readable(url: str) -> None:
    """`ConfigurationError`, which holds nothing of `url`, unless it can be read in one way only."""
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
    """Where `url` leads, fit for people: without user, password and options."""
    parts = urlsplit(url)
    if parts.scheme == "unix":
        return parts.path
    host = parts.hostname or "localhost"
    return f"{f'[{host}]' if ':' in host else host}:{parts.port or 6379}{parts.path.rstrip('/')}"


def scrub(text: str, url: str) -> str:
    """`text` without the password of `url` and the values of its options, which clients like to repeat."""
    found = _PASSWORD.match(url)
    secrets = {found["password"]} if found else set()
    secrets |= {value for _, value in parse_qsl(url.partition("?")[2])}
    return hide(text, secrets | {unquote(secret) for secret in secrets})


def refused_options() -> ConfigurationError:
    return ConfigurationError(
        "The Redis client does not take an option of the sink's address, or of its options.",
        to_do="see the names and values behind the ? of the address; they are those of redis-py.",
    )


def _refused(happened: str) -> ConfigurationError:
    return ConfigurationError(
        happened,
        to_do="write it like redis://user:password@host:6379/0, with special characters in the password encoded "
        "(/ is %2F, # is %23, ? is %3F, @ is %40); or give the password by options={'password': …}.",
    )
