"""The protocol of lanes: how a driver opens one. Pure, without I/O, clock, Spark or Kafka.

`open_by_driver` yields an action, is sent its result, and goes on. It opens a lane at a start, at a clean stop, and
before micro-batches take over; a sink's `LaneClient` carries it out. A lane's owner in a task writes it: the writer in
the JVM, which follows `run_task` of `tests/support/lane_model.py` step by step.

An exception thrown in (fenced, no broker) leaves without another action. Whatever the owner left open is aborted by
the next `Init`, or by the broker when it expires.

Why each row is visible exactly once, in the order of its source partition:

* A transaction holds a slice's rows and the mark behind them, so both are visible or neither. Kafka's commit of it is
  the decision.
* `Init` fences every older owner before anything is read: the newest committed mark is final from then on.
* The owner's opening lies in the marks partition, in a transaction that is open, so a reader of committed records comes
  exactly to it. It depends on no coordinator's answer, and on no high watermark that may be stale.
* A task reads its source from somewhere at or before the mark, in order, and drops what is at or before the mark.
* Only the newest committed mark counts. A driver commits one before its tasks write, so a task goes on from a mark of
  its own query and generation alone. Another query's, or a higher generation: it has been superseded, and two runs
  never fence each other in turn. In a partition that was added since, the task waits for its driver's mark: the driver
  may ask the ledger whether a newer run exists, the task cannot.
* A commit without an answer, or one during which a connection was closed: the request may still be under way, and
  would end the *next* transaction. The owner opens the lane anew, which shows what became of the slice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.contracts.lanes import Mark, Opening
from penstock.errors import MarksLost, PenstockError, Superseded

if TYPE_CHECKING:
    from collections.abc import Generator


@dataclass(frozen=True, slots=True)
class Owner:
    """One run's driver or task. `query` is the id of the query's history."""

    query: str
    generation: int


# Actions. Each says what is sent back.


@dataclass(frozen=True, slots=True)
class Init:
    """`InitProducerId` for the lane's transactional id: fence older owners, abort what they left open. → None."""


@dataclass(frozen=True, slots=True)
class SendOpening:
    """Begin a transaction and send the opening. → `int`, its offset in the marks partition."""

    opening: Opening


@dataclass(frozen=True, slots=True)
class ReadMark:
    """Read committed records up to `end`, the own opening's offset. → `Mark`, the newest, of any query; or None."""

    end: int


@dataclass(frozen=True, slots=True)
class Begin:
    """The driver decides where the lane begins. → `Mark`, or a `PenstockError` where it must not."""

    found: Mark | None


@dataclass(frozen=True, slots=True)
class SendMark:
    """Send the mark, in a new transaction where none is open. → None."""

    mark: Mark


@dataclass(frozen=True, slots=True)
class Commit:
    """Commit the transaction. → True; or False where there was no answer, or a connection was closed since it began."""


@dataclass(frozen=True, slots=True)
class Abort:
    """Abort the transaction. → None."""


Action = Init | SendOpening | ReadMark | Begin | SendMark | Commit | Abort


def open_by_driver(owner: Owner) -> Generator[Action, Any, Mark]:
    """Fence the lane and commit the mark that `Begin` decides on. Returns it."""
    sent: Mark | None = None
    while True:
        found = yield from open_lane(owner)
        if sent is not None and found == sent:  # the commit without an answer was carried out
            yield Abort()
            return sent
        if found is not None and found.query == owner.query and found.generation > owner.generation:
            yield Abort()
            raise superseded(owner, found)
        begin: Mark | PenstockError = yield Begin(found)
        if isinstance(begin, PenstockError):
            yield Abort()
            raise begin
        sent = begin
        yield SendMark(sent)
        if (yield Commit()):
            return sent


def open_lane(owner: Owner) -> Generator[Action, Any, Mark | None]:
    """Fence the lane and read its newest mark; the opening's transaction stays open."""
    yield Init()
    end: int = yield SendOpening(Opening(owner.query, owner.generation))
    found: Mark | None = yield ReadMark(end)
    return found


def superseded(owner: Owner, found: Mark) -> Superseded:
    """A newer run has the lane."""
    return Superseded(
        f"Generation {owner.generation} of query {owner.query} has lost a lane to generation {found.generation} of"
        f" query {found.query}.",
        safe="this run has committed nothing since.",
        to_do="nothing, if a newer run of the job is meant to be there; otherwise stop it and start this one again.",
    )


def marks_lost(found: Mark | None, least: Mark | None) -> MarksLost:
    """The marks topic has an older mark than is known, or none."""
    known = f"offset {least.offset} (part {least.part}) is known to be visible" if least else "the topic was replaced"
    there = f"the newest mark is offset {found.offset} (part {found.part})" if found else "there is no mark"
    return MarksLost(
        f"The marks topic has lost marks: {known}, but {there}.",
        safe="nothing was written.",
        to_do="restore the job from its newest checkpoint; rows that became visible after it come again.",
    )
