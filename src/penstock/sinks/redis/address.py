"""The address of a Redis: read, shown to people, and kept out of messages where it may hold a secret.

A password with a `/`, `#`, `?` or `@` that should have been percent-encoded makes another address of it: parts of the
password are then taken for port, path or options. So an address that is not plainly one is refused, and not repeated.
"""

from __future__ import annotations

import re
from urllib.parse import parse_qsl, unquote, urlsplit

from penstock.errors import ConfigurationError
from penstock.secrets import hide

_SCHEMES = ("redis", "rediss", "unix")
_PASSWORD = re.compile(r"^\w+://[^:@/]*:(?P<password>.*)@", re.DOTALL)


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


def place(url: str) -> str:
    """Where `url` leads, fit for people: without user, password and options."""
    parts = urlsplit(url)
    if parts.scheme == "unix":
        return parts.path
    host = parts.hostname or "localhost"
    return f"{f'[{host}]' if ':' in host else host}:{parts.port or 6379}{parts.path.rstrip('/')}"


def scrubbed(text: str, url: str) -> str:
    """`text` without the password of `url` and the values of its options, which clients like to repeat."""
    found = _PASSWORD.match(url)
    secrets = {found["password"]} if found else set()
    secrets |= {value for _, value in parse_qsl(url.partition("?")[2])}
    return hide(text, secrets | {unquote(secret) for secret in secrets})


def refused_options() -> ConfigurationError:
    return ConfigurationError(
        "The Redis client does not take an option of the sink's address, or of its options.",
        safe="nothing was started.",
        to_do="see the names and values behind the ? of the address; they are those of redis-py.",
    )


def _refused(happened: str) -> ConfigurationError:
    return ConfigurationError(
        happened,
        safe="nothing was started.",
        to_do="write it like redis://user:password@host:6379/0, with special characters in the password encoded "
        "(/ is %2F, # is %23, ? is %3F, @ is %40); or give the password by options={'password': …}.",
    )
