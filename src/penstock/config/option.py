"""One option: Flink's key, its name in Python, its default, what it means here, and the test that shows it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

Parser = Callable[[str, str], Any]
"""From text and the setting's name, for the error, to a value."""

Part = Literal["checkpoints", "state", "restart", "spark", "recovery", "rest"]


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
    shown_by: tuple[str, ...]
    aliases: tuple[str, ...] = ()
