"""What a sink keeps in Redis besides the user's keys, and how it is named.

    penstock:<job>:<uid>:s:<name>    list    the rows of one writer, prepared; a sentinel at its head
    penstock:<job>:<uid>:open        hash    name → what is needed to apply it; every writer not yet applied or aborted
    penstock:<job>:<uid>:begun       hash    name → elements still to apply, of a commit under way
    penstock:<job>:<uid>:done        zset    name → epoch: the proof, kept for the last epochs

<name> is `g<generation>-e<epoch>-a<attempt>-p<partition>-t<task attempt>-<token>` and never used twice. None of these
keys ever gets a TTL: what is decided must not expire. On a cluster all begin with the hash tag of the user's prefix.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass

from penstock.contracts.sink import SinkScope, WriterScope

_NAME = re.compile(r"g(?P<generation>\d+)-e(?P<epoch>\d+)-a\d+-p(?P<partition>\d+)-t\d+-[0-9a-f]+")
_TAG = re.compile(r"\{[^{}]+\}")


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
