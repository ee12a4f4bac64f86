"""Where the lanes of a real-time query begin and end: the driver's decisions, without I/O.

`contracts/lanes.py` has the steps of opening a lane (sinks carry them out, and import nothing from
here). A run's driver does this, in this order:

1. It registers a generation and recovers (`protocol.recover`): older runs write no epoch any more.
2. It opens every lane with the mark from `begin`. At that moment the lane is fenced and its mark not yet committed, and
   the driver looks for newer generations once more: a run that was superseded leaves no mark.
3. Unless the newest barrier is of this query's lanes, it runs an epoch (`protocol.run_epoch`) at the lanes' positions.
4. Only then does Spark's query start.

A clean stop ends Spark's query, opens every lane with the mark from `end`, and runs an epoch. A start in micro-batches
that finds lanes in the newest barrier, of any query id, opens them as above, and runs an epoch without lanes at the
positions from `for_micro_batches` before anything else. Where a task ends with `Superseded` and the ledger has no newer
generation, the query starts again, with a new generation.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from penstock.contracts.lanes import Mark, Owner, marks_lost
from penstock.errors import NotRestorable, Superseded


@dataclass(frozen=True, slots=True)
class Known:
    """What a driver knows of a lane before it opens it. `lanes` is the query id of the lanes in the newest complete
    barrier, None where that is of micro-batches, or there is none. `position` is the lane's in that barrier, if it has
    one. `replaced`: the marks topic has another id than the barrier says. `first` is the source's starting offset."""

    lanes: str | None = None
    position: Mark | None = None
    replaced: bool = False
    first: int = 0


def begin(owner: Owner, known: Known, found: Mark | None) -> Mark:
    """The mark that a lane begins with; `found` is the newest committed one, of any query.

    Raises `MarksLost` where the marks topic has less than the ledger, and `Superseded` where another history of the
    query, of which this ledger knows nothing, has opened the lane since."""
    at = known.position
    if known.lanes == owner.query:
        if known.replaced:
            raise marks_lost(found, None)
        ours = found if found is not None and found.query == owner.query else None
        if at is not None and found is not None and ours is None:
            raise Superseded(
                f"Query {found.query} has opened the lanes of query {owner.query}.",
                safe="nothing was written.",
                to_do="stop the other job, and restore this one from its newest checkpoint or give it another name.",
            )
        if at is not None and (ours is None or ours.position < at.position):
            raise marks_lost(ours, at)
        at = ours
    if at is None:
        return Mark(owner.query, owner.generation, known.first)
    return replace(at, query=owner.query, generation=owner.generation, rows=0, micros=0)


def end(owner: Owner, known: Known, found: Mark | None) -> Mark:
    """The mark of a clean stop. Only the next generation may go on from it: a task of this run that Spark could not
    stop is superseded."""
    return replace(begin(owner, known, found), generation=owner.generation + 1)


def for_micro_batches(mark: Mark) -> int:
    """The position for micro-batches, which read whole source rows; `NotRestorable` where one is visible in part."""
    if mark.part:
        raise NotRestorable(
            f"Micro-batches read whole source rows, but {mark.part} rows of offset {mark.offset} are visible.",
            safe="nothing was started; rows and marks are as they were.",
            to_do="start the query with `latency` again.",
        )
    return mark.offset
