"""The model of a lane's owner in a task: what `LaneWriter.java` does, step by step. Tests compare its traces with it.

`run_task` is a coroutine as `penstock.contracts.lanes` has one for the driver, with the same actions and three
of its own. An exception thrown in (fenced, no broker, task killed) leaves without another action.

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

from collections.abc import Generator
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Any

from penstock.contracts import lanes as lp
from penstock.contracts.lanes import Mark
from penstock.errors import ReplayDiffers, SystemUnavailable


@dataclass(frozen=True, slots=True)
class Take:
    """Wait for what comes next. → `Row`, `Next` or `Signal`."""


@dataclass(frozen=True, slots=True)
class SendRow:
    """Send the row, in a new transaction where none is open. → None."""

    row: Row


@dataclass(frozen=True, slots=True)
class Wait:
    """Give the driver time to open the lane. → None; a deadline ends it with an exception."""


Action = lp.Action | Take | SendRow | Wait


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


def run_task(owner: lp.Owner, begun: Mark | None, *, multiplies: bool) -> Generator[Action, Any, None]:
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
        yield lp.SendMark(place.mark)
        is_open = not (yield lp.Commit())
        if is_open:
            found = yield from _open_for_task(owner, committed)
            if found.position != place.mark.position:
                yield lp.Abort()
                raise SystemUnavailable(
                    f"Kafka did not commit the slice up to offset {place.mark.offset}, and did not answer.",
                    safe="none of its rows is visible.",
                    to_do="nothing: Spark runs the task again.",
                )
            if event is Signal.END:
                yield lp.Abort()
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


def _open_for_task(owner: lp.Owner, least: Mark | None) -> Generator[Action, Any, Mark]:
    while True:
        found = yield from lp.open_lane(owner)
        if found is not None:
            ours = found.query == owner.query
            if found.generation > owner.generation if ours else least is not None:
                yield lp.Abort()
                raise lp.superseded(owner, found)
            at_least = least is None or found.position >= least.position
            if ours and found.generation >= owner.generation and at_least:
                return replace(found, rows=0, micros=0)
        yield lp.Abort()
        if least is not None:
            raise lp.marks_lost(found, least)
        yield Wait()
