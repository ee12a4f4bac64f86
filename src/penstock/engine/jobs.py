"""How the tasks of one output are run: the writer is put behind the rows anew in every epoch.

`planned` has the other way, in which the writer is part of the streaming plan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from penstock.engine.checksum import rule_for, with_hashes
from penstock.engine.task import RESULT_SCHEMA, Assignment, parse, row_bytes_of, with_plain_names, writer_task

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from penstock.contracts.sink import TwoPhaseSink

Answer = Mapping[str, Any]
"""What one task reported, see `task`."""

_BYTES, _ROWS = "spark.sql.execution.arrow.maxBytesPerBatch", "spark.sql.execution.arrow.maxRecordsPerBatch"
_UNBOUNDED = str((1 << 31) - 1)  # the one value with which Spark does not measure
_USUAL = {str(64 << 20), f"{64 << 20}b"}  # our default, which is Spark's own; another one is the user's wish
SMALL = 4 << 20  # bytes of a full batch; rows may then grow a hundredfold within an epoch and still fit


class Jobs(Protocol):
    """Of one start of one query."""

    def run(
        self, frame: DataFrame, sink: TwoPhaseSink, assign: Callable[[], Assignment], rule: int | None
    ) -> list[Answer]:
        """Run the tasks that write `frame` into `sink`, once, and give what each reported. `assign` is called when all
        else is ready. `rule` is the one by which the rows are to be summed; None: the one that they call for."""


class RowSizes:
    """How large rows are, and what follows for the batches in which they travel to Python; used by one thread.

    Spark bounds a batch by rows and by bytes. To keep the second bound it measures the batch again after every row, and
    for small rows that costs as much as all else on the way. So the bound is lifted for an output whose rows were small
    in the epoch before. A new run knows no sizes: what grew too fast for that, and failed, is tried again with it."""

    def __init__(self) -> None:
        self._largest: dict[str, float] = {}
        self._found: tuple[str, int] | None = None  # the bounds of a session of our own, before we touched it
        self._lifted = False

    def learn(self, uid: str, bytes_per_row: Iterable[float]) -> None:
        """What each writer of an epoch has seen; writers without rows say 0."""
        self._largest[uid] = max(bytes_per_row, default=0.0)

    @contextmanager
    def bound_batches(self, conf: Any, uid: str) -> Iterator[None]:
        """While this lasts, `conf` of the session that runs the plan has the bound that output `uid` needs."""
        usual = conf.get(_BYTES)
        if not self._largest.get(uid) or not self._lifts(uid, usual, lambda: int(conf.get(_ROWS))):
            yield
            return
        conf.set(_BYTES, _UNBOUNDED)
        try:
            yield
        finally:
            conf.set(_BYTES, usual)

    def bound_next(self, conf: Callable[[], Any], uid: str) -> None:
        """Give the session that nobody but this output's query uses the bound that the next epoch needs; it is in force
        when Spark plans that epoch. `conf` gives the session's settings."""
        if not self._largest.get(uid) and not self._lifted:
            return
        if self._found is None:
            found = conf()
            self._found = found.get(_BYTES), int(found.get(_ROWS))
        usual, most = self._found
        lifted = bool(self._largest.get(uid)) and self._lifts(uid, usual, lambda: most)
        if lifted != self._lifted:
            conf().set(_BYTES, _UNBOUNDED if lifted else usual)
            self._lifted = lifted

    def _lifts(self, uid: str, usual: str, most: Callable[[], int]) -> bool:
        if usual not in _USUAL:
            return False
        rows = most()
        return rows > 0 and self._largest[uid] * rows <= SMALL


class EachEpoch:
    """Puts the writer behind the rows in every epoch; whatever the rows are, and whoever made them."""

    def __init__(self) -> None:
        self._sizes = RowSizes()

    def run(
        self, frame: DataFrame, sink: TwoPhaseSink, assign: Callable[[], Assignment], rule: int | None
    ) -> list[Answer]:
        shaped = sink.shape(frame)
        rule = rule_for(shaped) if rule is None else rule
        rows, names = with_plain_names(with_hashes(shaped, rule))
        assignment = assign()
        uid = assignment.scope.uid
        with self._sizes.bound_batches(rows.sparkSession.conf, uid):
            found = rows.mapInArrow(writer_task(sink, assignment, rule=rule, names=names), RESULT_SCHEMA).collect()
        answers: list[Answer] = [parse(row[0]) for row in found]
        self._sizes.learn(uid, map(row_bytes_of, answers))
        return answers
