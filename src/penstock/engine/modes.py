"""The weaker modes, as coroutines over the protocol's actions and four of their own: see docs/concepts/modes.md.

All modes start with the same recovery, and an epoch that an exactly-once run has decided is carried out as decided.
Each coroutine returns what is visible, None if the epoch was skipped.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any

from penstock.checkpoint.decision import Committable, Outcome, WriterId
from penstock.engine.protocol import Failed, NotPrepared, PreCommit, Prepared


@dataclass(frozen=True, slots=True)
class Begin:
    """Mark the epoch as begun, durably. → False if it was before."""

    epoch: int


@dataclass(frozen=True, slots=True)
class CommitOnce:
    """Commit without a decision. → mapping of `WriterId` to `Outcome`."""

    epoch: int
    committables: tuple[Committable, ...]


@dataclass(frozen=True, slots=True)
class AbortAll:
    """Abort what is open, as far as the sinks answer. → None."""


@dataclass(frozen=True, slots=True)
class Drop:
    """Report rows that are never written. → None."""

    epoch: int
    why: str
    committables: tuple[Committable, ...]


Visible = tuple[Committable, ...] | None


def at_least_once(epoch: int) -> Generator[Any, Any, Visible]:
    """Rows are visible as soon as their task is done."""
    prepared: Prepared | Failed = yield PreCommit(epoch, None)
    if isinstance(prepared, Failed):
        yield AbortAll()
        raise NotPrepared(epoch, prepared.error)
    return prepared.committables


def at_most_once(epoch: int) -> Generator[Any, Any, Visible]:
    """An epoch is begun once. Whatever fails afterwards, its rows are dropped, never repeated."""
    if not (yield Begin(epoch)):
        yield from _skip(epoch, "an earlier run had begun it")
        return None
    prepared: Prepared | Failed = yield PreCommit(epoch, None)
    if isinstance(prepared, Failed):
        yield AbortAll()
        yield from _skip(epoch, f"{type(prepared.error).__name__}: {prepared.error}")
        return None
    wanted = tuple(committable for committable in prepared.committables if committable.rows)
    outcomes: Mapping[WriterId, Outcome] = yield CommitOnce(epoch, wanted)
    missing = tuple(committable for committable in wanted if not outcomes.get(committable.id, Outcome.UNKNOWN).visible)
    if missing:
        yield Drop(epoch, f"{len(missing)} writers could not be committed", missing)
        yield AbortAll()
    return tuple(committable for committable in prepared.committables if committable not in missing)


def _skip(epoch: int, why: str) -> Generator[Any, Any, None]:
    """Run the plan, so that positions and state go on, and write nothing."""
    prepared: Prepared | Failed = yield PreCommit(epoch, frozenset())
    if isinstance(prepared, Failed):
        raise NotPrepared(epoch, prepared.error)
    yield Drop(epoch, why, prepared.committables)
