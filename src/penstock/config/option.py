"""An option, and the parsers of its text: what they cannot read is an error that names the setting."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal, TypeVar

from penstock.errors import ConfigurationError

Parser = Callable[[str, str], Any]
"""From text and the setting's name, for the error, to a value."""

Keys = tuple[str, ...]
Part = Literal["checkpoints", "state", "restart", "spark", "recovery", "availability", "rest", "log"]


@dataclass(frozen=True)
class Option:
    """`part` and `name` say which argument of which Python class it is; `python` says it for people."""

    key: str
    part: Part
    name: str
    python: str
    default: str  # as one would write it in a file; empty where there is none
    parse: Parser
    meaning: str
    aliases: Keys = ()


def option(
    part: Part,
    python: str,
    key: str,
    name: str,
    default: str,
    parse: Parser,
    meaning: str,
    aliases: tuple[str, ...] = (),
) -> Option:
    """An `Option`; `python` has places for its key and its name."""
    return Option(key, part, name, python.format(key=key, name=name), default, parse, meaning, aliases)


Kind = TypeVar("Kind", bound=StrEnum)

_BYTES = {"b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_SIZE = re.compile(
    r"^\s*(?P<number>\d+(\.\d+)?)\s*"
    r"(?P<unit>b|bytes|[kmgt]b?|[kmgt]ib|kibibytes|mebibytes|gibibytes|tebibytes)\s*$",
    re.IGNORECASE,
)
_SCHEME = re.compile(r"^[a-z][a-z0-9+.-]*$")
_TRUE, _FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")


def size(value: int | str, name: str) -> int:
    """Bytes; text has a unit: `64mb`, `1 gb`, in powers of 1024 as Flink and Spark count."""
    if isinstance(value, str):
        match = _SIZE.match(value)
        if match is None:
            raise ConfigurationError(
                f"{name}={value!r} is not a size.",
                to_do="write a number of bytes, or a number with kb, mb, gb or tb, for example '64mb'.",
            )
        return int(float(match["number"]) * _BYTES[match["unit"].lower()[:1]])
    if value < 0:
        raise ConfigurationError(f"{name}={value} is negative.", to_do="give a size of 0 or more.")
    return int(value)


def size_text(text: str, name: str) -> int:
    """A size from a file or the command line, where a bare number is bytes."""
    return int(text) if text.strip().isdecimal() else size(text, name)


def boolean(text: str, name: str) -> bool:
    word = text.strip().lower()
    if word in _TRUE or word in _FALSE:
        return word in _TRUE
    raise ConfigurationError(f"{name}={text!r} is neither true nor false.", to_do="write true or false.")


def whole(text: str, name: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ConfigurationError(f"{name}={text!r} is not a whole number.", to_do="write digits only.") from None


def whole_or_infinite(text: str, name: str) -> int | None:
    return None if text.strip().lower() in ("infinite", "inf", "2147483647") else whole(text, name)


def number(text: str, name: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ConfigurationError(f"{name}={text!r} is not a number.", to_do="write a number such as 1.5.") from None


def ratio(value: float | str, name: str) -> float:
    share = number(value, name) if isinstance(value, str) else float(value)
    if not 0 <= share <= 1:
        raise ConfigurationError(f"{name}={value} is not between 0 and 1.", to_do="give a share, for example 0.5.")
    return share


def plain(text: str, name: str) -> str:
    return text


def schemes(value: str | Sequence[str], name: str) -> tuple[str, ...]:
    texts = value.split(",") if isinstance(value, str) else value
    names = tuple(scheme.strip().lower().removesuffix("://").removesuffix(":") for scheme in texts if scheme.strip())
    for scheme in names:
        if not _SCHEME.match(scheme):
            raise ConfigurationError(
                f"{name}={value!r}: {scheme!r} is not a scheme.", to_do="write for example 'abfss, ofs'."
            )
    return names


def one_of(kind: type[Kind], value: str, name: str) -> Kind:
    """`AT_LEAST_ONCE`, `at-least-once` and `at_least_once` are one."""
    try:
        return kind(str(value).strip().lower().replace("-", "_"))
    except ValueError:
        kinds = ", ".join(kind)
        raise ConfigurationError(f"{name}={value!r} is none of {kinds}.", to_do=f"choose one of {kinds}.") from None
