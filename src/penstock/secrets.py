"""Secrets in settings, messages and addresses, and how to hide them. There is no other list.

A setting is known by its name: of Kafka's clients, S3A, Azure, Google's storage, JDBC, Redis, Spark, libpq, with any
prefix before it and in any spelling (`ssl.key.password`, `ssl_key_password`, `keyPassword`). A text is searched for
passwords of addresses and of connection strings, signed links, private keys. In doubt it is hidden. What only says
where a secret is, such as a file's path, is shown.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from urllib.parse import quote

MASK = "***"
MOST_CHARACTERS = 1 << 16  # of a text that is shown: many times what an error with its stack has

_WORD_ENDS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_BETWEEN = re.compile(r"[^a-z0-9]+")
_SECRET = re.compile(
    r"pass(word|wd|phrase|code)|pass$|pwd\b|pw$|secret|credential|jaas|bearer\.config"
    r"|token|\bsas\b|\bsig\b|signature$|\.pem$|\bdsn$|identified\.by$|connection\.?string|auth\.user\.info|user\.?info$|authorization"
    r"|(access|account|api|auth|client|decryption|encryption|hmac|keystore|master|private|rsa|secret|service\.account|shared"
    r"|signing|ssh|storage)\.?key\b"
    r"|\b(master)?auth$|\bcookies?$|service\.account\.json$"
)
#: The last word of settings that say where, how or how long, and not what.
_HARMLESS = re.compile(
    r"\.(algorithm|bits|class|enabled|endpoint|expiry|file|handler|id|length|lifetime|location|mechanism|ms|path|provider"
    r"|providers|renewal|retries|seconds|size|source|type|uri|url)$"
)
_REALLY = re.compile(r"\b(access|private)\.?key\.id$")  # not a secret by itself, but half of one

# A text may quote a row, which may hold anything. So each pattern reads it in one pass: what repeats is possessive
# or bounded, and where it stops, no other attempt has begun before.
_RUN = re.compile(r"[^\s'\"]++")
_USER = re.compile(  # what comes before a password; that ends at the last @ of the run: it should have been encoded
    r"://[^/@:\s'\"]*+:|https?://(?=[^/@:\s'\"]++@)|jdbc:oracle:\w{1,16}+:[^/@\s'\"]{1,128}+/", re.IGNORECASE
)
_KEY = re.compile(r"""(?<![\w.\-])(?P<key>[\w.\-]++)['"]?\s*+[=:]\s*+(?!//)""")
_OPTION = re.compile(r"(?<![\w\-])--?(?P<key>[\w.\-]++)[ \t]++(?!-)")
_SQL = re.compile(r"\b(?P<key>password|identified by)\s++(?=['\"])", re.IGNORECASE)
_VALUE = re.compile(  # a quote that is not closed reaches to the end: the text may have been cut
    r"""(?:\*{3}(?=[\s,;&}\])]|$)|"(?:[^"\\]|\\.)*+"?|'(?:[^'\\]|\\.)*+'?|\{[^{}]*+\}|[^\s;&"']++)""", re.DOTALL
)
_BRACED = re.compile(r"\{[^{}]*+\}")
_HEADER = re.compile(r"\b(?:bearer|basic)\s++(?P<secret>[\w.~+/=\-]{8,}+)", re.IGNORECASE)
_SIGNED = re.compile(r"(?<![\w\-])(?P<secret>eyJ[\w\-]++\.[\w\-]++(?:\.[\w\-]*+)?)")  # a JSON web token
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
    """`text` with every secret hidden that its surroundings give away, cut where it is too long."""
    text, parts, end = _shortened(text), [], 0
    for start, stop in sorted(_spans(text)):
        if start >= end:
            parts += [text[end:start], MASK]
        end = max(end, stop)  # one may lie within another, or reach beyond it
    return "".join([*parts, text[end:]])


def without_secrets(text: str, settings: Mapping[str, str]) -> str:
    """`text` with the secrets of `settings` hidden, wherever they occur, and what `masked` finds."""
    return masked(hide(text, secrets_of(settings)))


def hide(text: str, secrets: Iterable[str]) -> str:
    """`text` with each of `secrets` hidden, as written and as encoded in an address, except those too short to find."""
    for secret in sorted(_spellings(secrets), key=len, reverse=True):
        text = text.replace(secret, MASK)
    return text


def secrets_of(settings: Mapping[str, str]) -> set[str]:
    """The secrets in `settings`, as written and as encoded in an address, except those too short to search for."""
    values = {value for key, value in settings.items() if is_secret(key)}
    values |= {value[start:stop].strip("\"'") for value in settings.values() for start, stop in _spans(value)}
    return _spellings(values)


def _spellings(secrets: Iterable[str]) -> set[str]:
    spellings = set(secrets)
    spellings |= {quote(secret, safe="") for secret in spellings}
    return {secret for secret in spellings if len(secret) >= _SHORTEST}


def _shortened(text: str) -> str:
    """Cut before the word in which the limit lies: half a secret could not be told from other text."""
    if len(text) <= MOST_CHARACTERS:
        return text
    kept = text[:MOST_CHARACTERS].rstrip()
    kept = kept[: max(kept.rfind(" "), kept.rfind("\n"), kept.rfind("\t"), 0)]
    return f"{kept} … ({len(text) - len(kept)} more characters)"


def _spans(text: str) -> Iterator[tuple[int, int]]:
    for run in _RUN.finditer(text):
        end = text.rfind("@", *run.span())
        if end >= 0 and (user := _USER.search(text, run.start(), end + 1)) and user.end() < end:
            yield user.end(), end
    for pattern in (_HEADER, _SIGNED, _PRIVATE_KEY):
        yield from (match.span("secret") for match in pattern.finditer(text))
    for pattern in (_KEY, _OPTION, _SQL):
        yield from _values(pattern, text)


def _values(pattern: re.Pattern[str], text: str) -> Iterator[tuple[int, int]]:
    """Of secrets whose name `pattern` finds."""
    end = 0
    for match in pattern.finditer(text):
        # Within a value without quotes, another one has the same end, unless it is one in braces.
        inside = match.end() < end
        if is_secret(match["key"]) and (value := (_BRACED if inside else _VALUE).match(text, match.end())):
            yield value.span()
            if text[match.end()] not in "\"'":
                end = value.end()
