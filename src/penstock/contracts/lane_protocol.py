"""The protocol of lanes: how one is opened and written. Pure, without I/O, clock, Spark or Kafka.

Two coroutines define everything. Each yields an action, is sent its result, and goes on. `open_by_driver` opens a lane
at a start, at a clean stop, and before micro-batches take over; a sink's `LaneClient` carries it out. `run_task` is a
lane's owner in a task. The writer in the JVM follows it step by step: tests compare its traces with this module.

An exception thrown in (fenced, no broker, task killed) leaves without another action. Whatever the owner left open is
aborted by the next `Init`, or by the broker when it expires.

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

A trace of the writer has one line for each action, in these words:

    task QUERY GENERATION single|several none         an owner begins; `several`: a source row may give several rows
    task QUERY GENERATION single|several OFFSET PART  the same, with the mark that its driver has committed
    init                                              InitProducerId is answered
    open O                                            the opening is in the marks partition, at offset O
    read none                                         no committed mark before O
    read QUERY GENERATION OFFSET PART DIGEST          the newest one
    row OFFSET DIGEST                                 sent; DIGEST over the rows of OFFSET so far, 0 with `single`
    drop OFFSET DIGEST                                not sent: visible already
    mark OFFSET PART DIGEST                           sent
    commit                                            answered, and no connection was closed in this transaction
    unsure                                            not answered, or a connection was closed
    abort                                             sent
    wait                                              the driver has not opened this lane yet (an added partition)
    next OFFSET                                       the first row of OFFSET has come, not yet taken (before `mark`)
    end                                               the task has read its input to the end (before `mark`)
    begin                                             another task goes on with this owner, from its own start
    superseded, lost, gone, failed                    the owner ends: `Superseded`, `MarksLost`, an aborted slice
                                                      (Spark tries again), any other error, perhaps after `abort`
    differs OFFSET DIGEST                             the owner ends at this row: `ReplayDiffers`
    differs                                           the same after `end`
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import TYPE_CHECKING, Any

from penstock.contracts.lanes import Mark, Opening
from penstock.errors import MarksLost, PenstockError, ReplayDiffers, Superseded, SystemUnavailable

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
class Take:
    """Wait for what comes next. → `Row`, `Next` or `Signal`."""


@dataclass(frozen=True, slots=True)
class SendRow:
    """Send the row, in a new transaction where none is open. → None."""

    row: Row


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


@dataclass(frozen=True, slots=True)
class Wait:
    """Give the driver time to open the lane. → None; a deadline ends it with an exception."""


Action = Init | SendOpening | ReadMark | Begin | Take | SendRow | SendMark | Commit | Abort | Wait


@dataclass(frozen=True, slots=True)
class Row:
    """A row from the source row at `offset`; `digest` is over this one and those before it of the same offset."""

    offset: int
    digest: int = 0


@dataclass(frozen=True, slots=True)
class Next:
    """The interval is over, and the first row of the source row at `offset` has come: the one before is complete. The
    row itself follows as a `Row`."""

    offset: int


class Signal(Enum):
    """What else may come."""

    CUT = auto()  # the interval is over
    END = auto()  # the task has read its input to the end
    BEGIN = auto()  # another task goes on with this owner


def open_by_driver(owner: Owner) -> Generator[Action, Any, Mark]:
    """Fence the lane and commit the mark that `Begin` decides on. Returns it."""
    sent: Mark | None = None
    while True:
        found = yield from _open(owner)
        if sent is not None and found == sent:  # the commit without an answer was carried out
            yield Abort()
            return sent
        if found is not None and found.query == owner.query and found.generation > owner.generation:
            yield Abort()
            raise _superseded(owner, found)
        begin: Mark | PenstockError = yield Begin(found)
        if isinstance(begin, PenstockError):
            yield Abort()
            raise begin
        sent = begin
        yield SendMark(sent)
        if (yield Commit()):
            return sent


def run_task(owner: Owner, begun: Mark | None, *, multiplies: bool) -> Generator[Action, Any, None]:
    """Write slices until an exception ends it. `begun` is the mark that the driver has committed, None for a partition
    that was added since. `multiplies`: a source row may give several rows, so a mark may lie between them."""
    committed = yield from _open_for_task(owner, begun)
    place, is_open = Place(committed, multiplies), True
    while True:
        event: Row | Next | Signal = yield Take()
        if isinstance(event, Row):
            if place.admit(event):
                yield SendRow(event)
            continue
        if event is Signal.BEGIN:
            place.begin()
            continue
        if isinstance(event, Next):
            place.complete(event.offset)
        elif event is Signal.END:
            place.end()
        if not is_open and place.mark == committed:
            continue
        yield SendMark(place.mark)
        is_open = not (yield Commit())
        if is_open:
            found = yield from _open_for_task(owner, committed)
            if found.position != place.mark.position:
                yield Abort()
                raise SystemUnavailable(
                    f"Kafka did not commit the slice up to offset {place.mark.offset}, and did not answer.",
                    safe="none of its rows is visible.",
                    to_do="nothing: Spark runs the task again.",
                )
            if event is Signal.END:
                yield Abort()
                is_open = False
        committed = place.mark


class Place:
    """Where a lane is: `mark`, behind the last row that was sent; and how far its task has come in the source."""

    def __init__(self, mark: Mark, multiplies: bool) -> None:
        self.mark, self._multiplies = mark, multiplies
        self.begin()

    def begin(self) -> None:
        """A task begins, at or before the mark."""
        self._offset, self._rows, self._proven = -1, 0, not self.mark.part

    def admit(self, row: Row) -> bool:
        """Whether the row is to be sent; the mark is then behind it. Raises `ReplayDiffers` where the rows of a source
        row that is visible in part are not the same as before."""
        self._rows = self._rows + 1 if row.offset == self._offset else 1
        self._offset = row.offset
        here = (row.offset, self._rows)
        if here == self.mark.position:
            self._proven = row.digest == self.mark.digest
        if (here >= self.mark.position and not self._proven) or (self._rows > 1 and not self._multiplies):
            raise self._differs()
        if here <= self.mark.position:
            return False
        offset, part, digest = (*here, row.digest) if self._multiplies else (row.offset + 1, 0, 0)
        self.mark = replace(self.mark, offset=offset, part=part, digest=digest, rows=self.mark.rows + 1)
        return True

    def end(self) -> None:
        """The task has read its input to the end, so its last source row is complete."""
        if self.mark.part and self._offset >= self.mark.offset:
            if not self._proven:
                raise self._differs()
            self.complete(self._offset + 1)

    def complete(self, offset: int) -> None:
        """All rows of source rows before `offset` have come: a mark inside the last of them moves behind it."""
        if self.mark.part and self._proven and self.mark.offset < offset:
            self.mark = replace(self.mark, offset=offset, part=0, digest=0)

    def _differs(self) -> ReplayDiffers:
        return ReplayDiffers(
            f"Source offset {self._offset} gives other rows than before: {self.mark.part} of them are visible.",
            safe="no row of it was written twice.",
            to_do="make the query deterministic, or restore it from its newest checkpoint.",
        )


def _open(owner: Owner) -> Generator[Action, Any, Mark | None]:
    yield Init()
    end: int = yield SendOpening(Opening(owner.query, owner.generation))
    found: Mark | None = yield ReadMark(end)
    return found


def _open_for_task(owner: Owner, least: Mark | None) -> Generator[Action, Any, Mark]:
    while True:
        found = yield from _open(owner)
        if found is not None:
            ours = found.query == owner.query
            if found.generation > owner.generation if ours else least is not None:
                yield Abort()
                raise _superseded(owner, found)
            at_least = least is None or found.position >= least.position
            if ours and found.generation >= owner.generation and at_least:
                return replace(found, rows=0, micros=0)
        yield Abort()
        if least is not None:
            raise marks_lost(found, least)
        yield Wait()


def _superseded(owner: Owner, found: Mark) -> Superseded:
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
