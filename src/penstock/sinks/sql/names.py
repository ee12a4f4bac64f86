"""Names of what a SQL sink leaves in the database, and how they are found again.

A writer's name begins with a label of its sink (`job:uid`) and carries generation, epoch, attempt, partition and task
attempt, so that a person can read it. A random token at its end makes it unique for all time: also after somebody
deleted the checkpoint, when generations and epochs begin again at one.
"""

from __future__ import annotations

import re
import secrets
from hashlib import sha256

from penstock.contracts.sink import WriterScope
from penstock.errors import ConfigurationError

#: Longest label of a sink; the rest of a writer's name takes at most 90 characters.
_LABEL = 100
_WRITER = re.compile(r":g(?P<generation>\d+):e(?P<epoch>\d+):a\d+:p(?P<partition>\d+):t\d+:[0-9a-f]{12}")
_STAGING = re.compile(r"penstock_stage_[0-9a-f]{16}_g\d+_[0-9a-f]{12}")
_PART = re.compile(r'"((?:[^"]|"")+)"|`((?:[^`]|``)+)`|([^".`\s]+)')


def digest(prefix: str, length: int = 16) -> str:
    """A short name for a sink, for places that take only some characters."""
    return sha256(prefix.encode()).hexdigest()[:length]


def label(prefix: str) -> str:
    """`prefix` itself, or, where it is too long, its beginning and a digest. No two sinks share one."""
    return prefix if len(prefix) <= _LABEL else f"{prefix[: _LABEL - 33]}#{digest(prefix, 32)}"


def writer_name(scope: WriterScope) -> str:
    """A name for one writer, at most 200 bytes, never given twice."""
    return (
        f"{label(scope.sink.prefix)}:g{scope.sink.generation}:e{scope.epoch}:a{scope.attempt}"
        f":p{scope.partition}:t{scope.task_attempt}:{secrets.token_hex(6)}"
    )


def numbers_in(name: str, prefix: str) -> dict[str, int] | None:
    """Generation, epoch and partition in a writer's name; None if it is not one of the sink `prefix`."""
    own = label(prefix)
    match = _WRITER.fullmatch(name, len(own)) if name.startswith(own) else None
    return {key: int(value) for key, value in match.groupdict().items()} if match else None


def staging_prefix(prefix: str) -> str:
    """What the names of all staging tables of a sink begin with."""
    return f"penstock_stage_{digest(prefix)}_g"


def staging_name(scope: WriterScope) -> str:
    """A name for one writer's staging table, at most 63 bytes, never given twice."""
    return f"{staging_prefix(scope.sink.prefix)}{scope.sink.generation}_{secrets.token_hex(6)}"


def staging_generation(name: str, prefix: str) -> int | None:
    """The generation in a staging table's name; None if it is not one of the sink `prefix`."""
    match = re.fullmatch(re.escape(staging_prefix(prefix)) + r"(\d+)_[0-9a-f]{12}", name)
    return int(match[1]) if match else None


def is_staging(name: str) -> bool:
    """Whether a writer's name, of whatever sink, is that of a staging table, and not of a transaction."""
    return _STAGING.fullmatch(name) is not None


def quoted(name: str, mark: str = '"') -> str:
    """`name` as an identifier in a statement."""
    return f"{mark}{name.replace(mark, mark * 2)}{mark}"


def literal(text: str) -> str:
    """`text` as a string in a statement that takes no parameters. For names made here, which hold no backslash."""
    return "'" + text.replace("'", "''") + "'"


def split_table(text: str, sink: str) -> tuple[str | None, str]:
    """Schema (or None) and table of `table`, `schema.table`, `"Odd.Schema"."Odd Table"`. Names are taken as they are
    written, without folding to lower or upper case."""
    parts: list[str] = []
    place = 0
    while place <= len(text):
        match = _PART.match(text, place)
        if match is None:
            break
        double, back, plain = match.groups()
        parts.append(plain or (double or "").replace('""', '"') or (back or "").replace("``", "`"))
        place = match.end()
        if place == len(text):
            if len(parts) <= 2:
                return (parts[0] if len(parts) == 2 else None), parts[-1]
            break
        if text[place] != ".":
            break
        place += 1
    raise ConfigurationError(
        f"{sink} cannot read {text!r} as the name of a table.",
        safe="nothing was started.",
        to_do="write table or schema.table, and quote a name that holds a dot or a blank.",
    )
