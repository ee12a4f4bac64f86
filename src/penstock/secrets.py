"""What is a secret, for everybody who shows a setting, a message or an address. There is no other list.

A setting is known by its name: of Kafka's clients, S3A, Azure, Google's storage, JDBC, Redis, Spark, libpq, with any
prefix before it and in any spelling (`ssl.key.password`, `ssl_key_password`, `keyPassword`). A text is searched for
what stands in it: passwords of addresses and of connection strings, signed links, private keys. Where it is not clear,
rather too much is hidden than too little. What only says where a secret lies, such as a file's path, is shown.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from urllib.parse import quote

MASK = "***"

_WORD_ENDS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_BETWEEN = re.compile(r"[^a-z0-9]+")
_SECRET = re.compile(
    r"pass(word|wd|phrase|code)|pass$|pwd\b|secret|credential|jaas|bearer\.config"
    r"|token|\bsas\b|\bsig\b|signature$|\.pem$|\bdsn$|connection\.?string|auth\.user\.info|user\.?info$|authorization"
    r"|(access|account|api|auth|client|decryption|encryption|keystore|master|private|secret|service\.account|shared"
    r"|signing|storage)\.?key\b"
    r"|\b(master)?auth$|\bcookies?$|service\.account\.json$"
)
#: The last word of settings that say where, how or how long, and not what.
_HARMLESS = re.compile(
    r"\.(algorithm|bits|class|enabled|endpoint|expiry|file|handler|id|length|lifetime|location|mechanism|ms|path|provider"
    r"|providers|renewal|retries|seconds|size|source|type|uri|url)$"
)
_REALLY = re.compile(r"\b(access|private)\.?key\.id$")  # not a secret by itself, but half of one

_ADDRESS = re.compile(r"://[^/@:\s'\"]*:(?P<secret>[^\s'\"]+)@")  # up to the last @: it should have been encoded
_ORACLE = re.compile(r"jdbc:oracle:\w+:[^/@\s]+/(?P<secret>[^\s'\"]+)@")
_KEY = re.compile(r"""(?<![\w.\-])(?P<key>[\w.\-]++)['"]?\s*+[=:]\s*+(?!//)""")
_VALUE = re.compile(r"""(?P<secret>\*{3}(?=[\s,;&}\])]|$)|"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|[^\s;&"']+)""")
_HEADER = re.compile(r"\b(?:bearer|basic)\s+(?P<secret>[\w.~+/=\-]{8,})", re.IGNORECASE)
_PRIVATE_KEY = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----(?P<secret>.*?)(?:-----END|\Z)", re.DOTALL)
_SHORTEST = 3  # to be looked for in a text: a shorter one would be found in every word


def is_secret(key: str) -> bool:
    """Whether the value of this setting is one."""
    words = _BETWEEN.sub(".", _WORD_ENDS.sub(".", key).lower()).strip(".")
    return bool(_SECRET.search(words)) and (not _HARMLESS.search(words) or bool(_REALLY.search(words)))


def mask_setting(key: str, value: str) -> str:
    """The value of a setting, fit for people."""
    return MASK if value and is_secret(key) else masked(value)


def masked(text: str) -> str:
    """`text` with every secret that can be known by its surroundings hidden."""
    parts, end = [], 0
    for start, stop in sorted(_found(text)):
        if start >= end:
            parts += [text[end:start], MASK]
        end = max(end, stop)  # one may lie within another, or reach beyond it
    return "".join([*parts, text[end:]])


def without_secrets(text: str, settings: Mapping[str, str]) -> str:
    """`text` with the secrets of `settings` hidden, wherever they stand in it, and what `masked` finds."""
    return masked(hide(text, secrets_of(settings)))


def hide(text: str, secrets: Iterable[str]) -> str:
    """`text` with each of `secrets` hidden, as written and as it stands in an address. Those that are too short to
    be looked for stay."""
    for secret in sorted(_spellings(secrets), key=len, reverse=True):
        text = text.replace(secret, MASK)
    return text


def secrets_of(settings: Mapping[str, str]) -> set[str]:
    """The secrets in `settings`, as written and as they stand in an address. Those that are too short to be looked for
    are left out."""
    found = {value for key, value in settings.items() if is_secret(key)}
    found |= {value[start:stop].strip("\"'") for value in settings.values() for start, stop in _found(value)}
    return _spellings(found)


def _spellings(secrets: Iterable[str]) -> set[str]:
    found = set(secrets)
    found |= {quote(secret, safe="") for secret in found}
    return {secret for secret in found if len(secret) >= _SHORTEST}


def _found(text: str) -> Iterator[tuple[int, int]]:
    for pattern in (_ADDRESS, _ORACLE, _HEADER, _PRIVATE_KEY):
        yield from (match.span("secret") for match in pattern.finditer(text))
    for match in _KEY.finditer(text):
        if is_secret(match["key"]) and (value := _VALUE.match(text, match.end())):
            yield value.span("secret")
