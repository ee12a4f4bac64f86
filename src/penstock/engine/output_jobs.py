"""Runs the Spark job of one output, in one of two ways.

`EachEpoch` puts the writer behind the rows anew in every epoch; it works for every plan.

`Planned` is for an output whose writer is part of the streaming plan: planned once per start, run in every epoch. To
put a writer behind an epoch's rows costs Spark as much time as a small epoch takes altogether. If the same writer
follows the same plan in every epoch, it is put there before the query starts; Spark then hands over a frame of the
writers' reports, which only has to be collected. The epoch, attempt, route and hints reach the tasks in a local
property of the thread that runs the epoch: Spark copies it to every task of the jobs that this thread submits.

So a task knows nothing by itself, and must never write under another epoch's name. It accepts an assignment only for
its own sink and run and for the batch that Spark says it runs for; otherwise it writes nothing (`StrayTask`). And a
report counts only if it names this very attempt.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from penstock.contracts.sink import TRACE, Aside, SinkScope, TwoPhaseSink
from penstock.engine import task
from penstock.engine.checksum import rule_for, with_hashes
from penstock.engine.task import Assignment, Route, Writing
from penstock.errors import PreCommitFailed, StrayTask
from penstock.spark.lane_plan import traced

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark import TaskContext
    from pyspark.sql import DataFrame


Assign = Callable[[], Assignment]
Answer = Mapping[str, Any]
"""What one task reported, see `task`."""

_BYTES, _ROWS = "spark.sql.execution.arrow.maxBytesPerBatch", "spark.sql.execution.arrow.maxRecordsPerBatch"
_UNBOUNDED = str((1 << 31) - 1)  # the one value with which Spark does not measure
_USUAL = {str(64 << 20), f"{64 << 20}b"}  # our default, which is Spark's own; another one is the user's choice
SMALL = 4 << 20  # bytes of a full batch; rows may then grow a hundredfold within an epoch and still fit


class Jobs(Protocol):
    def run(self, frame: DataFrame, sink: TwoPhaseSink, assign: Assign, rule: int | None) -> list[Answer]:
        """Run the tasks that write `frame` into `sink`, once, and give what each reported. `assign` is called when all
        else is ready. `rule` is the one by which the rows are to be summed; None: the one that they call for."""


class WithAside:
    """A sink as its tasks get it, with the sink `other` that takes what it refuses."""

    def __init__(self, sink: TwoPhaseSink, aside: Aside, other: TwoPhaseSink) -> None:
        self.sink, self.aside, self.other = sink, aside, other

    def shape(self, frame: DataFrame) -> DataFrame:
        """The sink's, with `TRACE` where the plan carries it."""
        shaped = self.sink.shape(frame.drop(*TRACE))
        return traced(shaped, self.aside.topic) if frame.isStreaming or TRACE[0] in frame.columns else shaped

    def resolve(self, kept: None, after: None) -> None:
        self.sink.resolve(kept, after)


def with_aside(sinks: Mapping[str, TwoPhaseSink], uid: str, aside: Aside | None) -> Any:
    return sinks[uid] if aside is None else WithAside(sinks[uid], aside, sinks[aside.uid])


class RowSizes:
    """How large rows are, and what follows for the batches in which they travel to Python; used by one thread.

    Spark bounds a batch by rows and by bytes. To keep the second bound it measures the batch again after every row, and
    for small rows that costs as much as all else on the way. So the bound is lifted for an output whose rows were small
    in the epoch before. A new run knows no sizes: what grew too fast for that, and failed, is tried again with it."""

    def __init__(self) -> None:
        self._largest: dict[str, float] = {}
        self._bounds: tuple[str, int] | None = None  # of a session of the query's own, before they were changed
        self._lifted = False

    def learn(self, uid: str, bytes_per_row: Iterable[float]) -> None:
        """What each writer of an epoch has seen; writers without rows say 0."""
        self._largest[uid] = max(bytes_per_row, default=0.0)

    @contextmanager
    def bound_batches(self, conf: Any, uid: str) -> Iterator[None]:
        """While this lasts, `conf` of the session that runs the plan has the bound that output `uid` needs."""
        usual = conf.get(_BYTES)
        if not self._lifts(uid, usual, lambda: int(conf.get(_ROWS))):
            yield
            return
        conf.set(_BYTES, _UNBOUNDED)
        try:
            yield
        finally:
            conf.set(_BYTES, usual)

    def bound_next(self, conf: Callable[[], Any], uid: str) -> None:
        """Give the session, which only this output's query uses, the bound that the next epoch needs; it is in force
        when Spark plans that epoch. `conf` gives the session's settings."""
        if not self._largest.get(uid) and not self._lifted:
            return
        if self._bounds is None:
            settings = conf()
            self._bounds = settings.get(_BYTES), int(settings.get(_ROWS))
        usual, most = self._bounds
        lifted = self._lifts(uid, usual, lambda: most)
        if lifted != self._lifted:
            conf().set(_BYTES, _UNBOUNDED if lifted else usual)
            self._lifted = lifted

    def _lifts(self, uid: str, usual: str, most: Callable[[], int]) -> bool:
        largest = self._largest.get(uid, 0.0)
        return largest > 0 and usual in _USUAL and 0 < largest * most() <= SMALL


class EachEpoch:
    """Puts the writer behind the rows in every epoch; works for every plan."""

    def __init__(self) -> None:
        self._sizes = RowSizes()

    def run(self, frame: DataFrame, sink: TwoPhaseSink, assign: Assign, rule: int | None) -> list[Answer]:
        shaped = sink.shape(frame)
        sink.resolve(None, None)
        rule = rule_for(shaped) if rule is None else rule
        rows, names = task.with_plain_names(with_hashes(shaped, rule))
        assignment = assign()
        uid = assignment.scope.uid
        with self._sizes.bound_batches(rows.sparkSession.conf, uid):
            writer = task.writer_task(sink, lambda _: assignment, rule=rule, names=names)
            reports = rows.mapInArrow(writer, task.RESULT_SCHEMA).collect()
        answers: list[Answer] = [json.loads(row[0]) for row in reports]
        self._sizes.learn(uid, map(task.row_bytes_of, answers))
        return answers


PROPERTY = "penstock.assignment"
VERSION = 1
SPARK_BATCH = "streaming.sql.batchId"
"""The local property in which Spark names the batch that a thread, or a task, runs."""

_LONG = 4096  # characters; every task's description holds the text, and hints of many writers are much alike
_PACKED = "zlib:"
_FEW = 32  # writers


def to_text(assignment: Assignment) -> str:
    """As it travels to the tasks, versioned."""
    scope, writing, to = assignment.scope, assignment.writing, assignment.aside
    text = json.dumps(
        {
            "version": VERSION,
            "job": scope.job,
            "uid": scope.uid,
            "of": assignment.of,
            "route": writing.route.value,
            "log": writing.log,
            "seconds": writing.seconds,
            "hints": dict(assignment.hints),
            "aside": None if to is None else [to.scope.uid, to.writing.route.value, dict(to.hints)],
            "refused": assignment.refused,
        },
        separators=(",", ":"),
    )
    return text if len(text) < _LONG else _PACKED + base64.b64encode(zlib.compress(text.encode(), 1)).decode()


def from_text(text: str | None, scope: SinkScope, batch: str | None) -> Assignment:
    """What the tasks of `scope` are to do in Spark's batch `batch`. `StrayTask` where the text does not say it."""
    if text is None:
        raise _stray(scope, "has no assignment")
    try:
        if text.startswith(_PACKED):
            text = zlib.decompress(base64.b64decode(text[len(_PACKED) :])).decode()
        body = json.loads(text)
        if body["version"] != VERSION:
            raise _stray(scope, f"has an assignment in version {body['version']} of the format, not {VERSION}")
        generation, epoch, attempt = body["of"]
        writing = Writing(Route(body["route"]), body["log"], body["seconds"])
        named, hints = (body["job"], body["uid"], generation), body["hints"]
        other = None
        if body["aside"] is not None:
            uid, route, more = body["aside"]
            other = Assignment(replace(scope, uid=uid), epoch, attempt, Writing(Route(route)), more)
    except (ValueError, KeyError, TypeError, zlib.error) as error:
        raise _stray(scope, f"cannot read its assignment ({type(error).__name__})") from None
    if named != (scope.job, scope.uid, scope.generation):
        raise _stray(scope, f"has the assignment of sink {named[1]!r}, run {named[2]}, of job {named[0]!r}")
    if batch != str(epoch):
        raise _stray(scope, f"runs for batch {batch}, but its assignment is for epoch {epoch}")
    return Assignment(scope, epoch, attempt, writing, hints, other, body["refused"])


def _stray(scope: SinkScope, why: str) -> StrayTask:
    return StrayTask(
        f"A task of sink {scope.uid!r}, run {scope.generation}, {why}.",
        safe="it wrote nothing; the epoch is not decided, and replays.",
        to_do="nothing, if it happens once; otherwise report it, with the plan of the query.",
    )


def planned_task(
    sink: TwoPhaseSink, scope: SinkScope, *, rule: int, names: list[str] | None
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function for `mapInArrow` in the streaming plan; see `task.writer_task`."""

    def assign(context: TaskContext) -> Assignment:
        return from_text(context.getLocalProperty(PROPERTY), scope, context.getLocalProperty(SPARK_BATCH))

    return task.writer_task(sink, assign, rule=rule, names=names)


class Planned:
    """Of one start of a query whose plan ends in `planned_task`, its rows summed by `rule`."""

    def __init__(self, rule: int) -> None:
        self._rule = rule
        self._sizes = RowSizes()
        self._few, self._holds_rdd = True, True  # writers in the epoch before; what Spark hands over

    def run(self, frame: DataFrame, sink: TwoPhaseSink, assign: Assign, rule: int | None) -> list[Answer]:
        if rule is not None and rule != self._rule:
            raise _not_this_attempt(f"its rows are summed by rule {self._rule}, and the decision's were by {rule}")
        assignment = assign()
        uid, session = assignment.scope.uid, frame.sparkSession
        context: Any = session.sparkContext
        context.setLocalProperty(PROPERTY, to_text(assignment))
        try:
            answers = self._collect(frame._jdf)
        finally:
            context.setLocalProperty(PROPERTY, None)
        for answer in answers:
            if "error" not in answer and answer.get("of") != assignment.of:
                raise _not_this_attempt(f"Spark gave an answer to {answer.get('of')}, not to {assignment.of}")
        self._few = len(answers) <= _FEW
        self._sizes.learn(uid, map(task.row_bytes_of, answers))
        self._sizes.bound_next(lambda: session.conf, uid)
        return answers

    def _collect(self, frame: Any) -> list[Answer]:
        """Run the tasks. `frame` is a JVM object, and what Spark hands over is an RDD inside of a plan: to collect the
        RDD itself spares Spark another plan. Its rows cost a question each, so many are collected as a frame's."""
        from py4j.protocol import Py4JError

        if self._few and self._holds_rdd:
            try:
                rdd = frame.queryExecution().analyzed().rdd()
            except Py4JError:
                self._holds_rdd = False  # another plan than we know, and nothing has run
            else:
                return [json.loads(row.getUTF8String(0).toString()) for row in rdd.collect()]
        # Rows of one JSON text each, in a list: the text of it all is JSON again, and is had by one question.
        return [row[0] for row in json.loads(frame.collectAsList().toString())]


def _not_this_attempt(why: str) -> PreCommitFailed:
    return PreCommitFailed(
        f"The writers did not run as this attempt at the epoch needs it: {why}.",
        safe="the epoch is not decided; what was prepared is aborted, and it replays.",
        to_do="nothing, if it happens once; otherwise report it.",
    )
