"""The connection to Redis, and its errors as ours. No message ever holds the address's user or password."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from hashlib import sha1
from typing import Any

from penstock.errors import (
    AccessDenied,
    DataError,
    MissingExtra,
    PenstockError,
    PreCommitFailed,
    StorageFull,
    SystemUnavailable,
    ValueTooLarge,
)
from penstock.sinks.redis.address import place, refused_options, scrubbed

#: How long one answer may take. A script works for some tens of milliseconds; a fork or a full disk takes longer.
_ANSWER_SECONDS = 15.0
_CONNECT_SECONDS = 10.0

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
            safe="nothing was started.",
            to_do="pip install 'penstock[redis]'",
        ) from error
    return redis


def connect(url: str, options: Mapping[str, Any], *, cluster: bool) -> Any:
    """A client that connects with its first command. It never sends a command a second time by itself: whoever asked
    knows whether that would be right."""
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
    if not cluster:
        return plain
    with answered(url):  # it asks for its nodes at once
        return redis.RedisCluster.from_url(url, **settings)


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
def answered(url: str) -> Iterator[None]:
    """Turns what the client raises into errors of ours. What repeats a secret is not kept as their cause either."""
    redis = library()
    try:
        yield
    except (redis.exceptions.RedisError, redis.exceptions.RedisClusterException, OSError) as error:
        raise fault(error, url) from (error if scrubbed(str(error), url) == str(error) else None)


def is_away(error: BaseException) -> bool:
    """Whether asking again, later, may help."""
    errors = library().exceptions
    gone = (errors.ConnectionError, errors.TimeoutError, errors.BusyLoadingError, errors.RedisClusterException, OSError)
    refused = (errors.AuthenticationError, errors.AuthorizationError)
    return (isinstance(error, gone) and not isinstance(error, refused)) or str(error).startswith(_AWAY)


def fault(error: BaseException, url: str) -> PenstockError:
    """The error for what the client raised while it spoke with `url`."""
    errors = library().exceptions
    where, said = place(url), scrubbed(str(error), url)
    if isinstance(error, errors.AuthenticationError | errors.NoPermissionError) or any(one in said for one in _DENIED):
        return AccessDenied(
            f"Redis at {where} refused: {said}.",
            safe=_SAFE,
            to_do="check user and password in the sink's url, and the ACL: keys 'penstock:*' and those of the prefix.",
        )
    if "bulk length" in said or "big bulk count" in said:
        return ValueTooLarge(
            f"A value is larger than Redis at {where} takes (proto-max-bulk-len): {said}.",
            safe=_SAFE,
            to_do="leave such rows out, or raise proto-max-bulk-len.",
        )
    if isinstance(error, errors.OutOfMemoryError) or said.startswith("OOM"):
        return StorageFull(
            f"Redis at {where} has reached its maxmemory: {said}.",
            safe="nothing of this epoch is visible, or it is decided and waits, prepared.",
            to_do="raise maxmemory or free memory; the job goes on from the same positions.",
        )
    if "WRONGTYPE" in said or "not an integer" in said or "overflow" in said:
        return DataError(
            f"Redis at {where} cannot take a row: {said}.",
            safe="nothing of this row was written.",
            to_do="remove the key that is in the way, or give the sink another prefix.",
        )
    if is_away(error):
        return SystemUnavailable(
            f"Redis at {where} does not answer: {said}.",
            safe="what was committed stays committed; nothing else is visible.",
            to_do="check that the address is right and the server runs; the job tries again by its restart strategy.",
        )
    return PreCommitFailed(
        f"Redis at {where} refused a command: {said}.", safe=_SAFE, to_do="see what the server's version and ACL allow."
    )
