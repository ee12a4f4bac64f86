"""Writers in the streaming plan, with Spark: the same decisions as by writers that are put there in every epoch, the
same checkpoints, and nothing written outside of an epoch."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.dataset as ds
import pytest

from penstock import Checkpoints, FileSink, Job, RestartStrategy
from penstock.checkpoint.decision import Committable, Decision, DecisionId
from penstock.contracts.sink import SinkScope
from penstock.engine.checksum import NESTED, checksum_of
from penstock.engine.output_jobs import PROPERTY, EachEpoch, Planned, to_text
from penstock.engine.protocol import Replay
from penstock.engine.streaming import planned_once
from penstock.engine.task import Assignment
from penstock.errors import PreCommitFailed, StrayTask, from_json
from penstock.failpoints import InjectedFault
from tests.support.run_job import Checkpoint, CrashAt, Numbers, failing, run_all, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame, SparkSession

    from penstock.contracts.source import QueryPlan

ROWS, PER_EPOCH = 400, 100
#: Flat and nested, never null and sometimes, with names that Spark takes for something else.
FLAT = {"id": "id", "`a.b`": "if(id % 3 = 0, null, cast(id AS string))", "amount": "cast(id AS decimal(20, 2))"}
NESTED_TOO = {**FLAT, "inner": "named_struct('x', if(id % 2 = 0, null, id))", "many": "array(id, null)"}


@pytest.fixture
def each_epoch() -> Iterator[Callable[[bool], None]]:
    """Whether the jobs to come put their writer behind the rows in each epoch."""
    patch = pytest.MonkeyPatch()

    def choose(chosen: bool) -> None:
        patch.undo()
        if chosen:
            patch.setattr("penstock.engine.streaming.planned_once", lambda *_: None)

    yield choose
    patch.undo()


@pytest.fixture
def ways(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """By which way each output of each attempt was run."""
    found: list[str] = []
    for kind in (Planned, EachEpoch):
        real = kind.run

        def run(self: Any, *given: Any, real: Any = real, name: str = kind.__name__) -> Any:
            found.append(name)
            return real(self, *given)

        monkeypatch.setattr(kind, "run", run)
    return found


def job(
    session: SparkSession,
    storage: str,
    folder: Path,
    columns: dict[str, str],
    shape: Callable[[DataFrame], DataFrame] = lambda frame: frame,
    output_mode: str = "append",
    rows: int = ROWS,
) -> Job:
    made = Job("job", checkpoints=Checkpoints(storage=storage), spark=session, restart=RestartStrategy.none())
    frame = shape(made.read(Numbers(rows, columns, per_epoch=PER_EPOCH), uid="in"))
    made.write(frame, FileSink(str(folder)), uid="out", output_mode=output_mode)
    return made


def seen(folder: Path, column: str) -> Counter[Any]:
    files = [str(path) for path in folder.glob("part-*")]
    return Counter(row[column] for row in ds.dataset(files).to_table().to_pylist()) if files else Counter()


@pytest.mark.parametrize("columns", [FLAT, NESTED_TOO], ids=["flat", "nested"])
def test_both_ways_decide_the_same(
    session: SparkSession, tmp_path: Path, columns: dict[str, str], each_epoch: Callable[[bool], None]
) -> None:
    """Row by row: or a replay by one way could not be compared with a decision by the other."""
    found = []
    for anew in (False, True):
        each_epoch(anew)
        storage = tmp_path / f"checkpoints-{anew}"
        run_all(job(session, str(storage), tmp_path / f"out-{anew}", columns))
        found.append(Checkpoint(str(storage), "job", "out").outputs)
    assert found[0] == found[1]
    assert sum(rows for epoch in found[0].values() for _, _, rows, _ in epoch) == ROWS
    assert seen(tmp_path / "out-False", "id") == seen(tmp_path / "out-True", "id") == Counter(range(ROWS))


def counted(frame: DataFrame) -> DataFrame:
    return frame.selectExpr("id % 5 AS id").groupBy("id").count()


@pytest.mark.parametrize("first", ["Planned", "EachEpoch"])
def test_a_checkpoint_with_state_goes_on_by_the_other_way(
    session: SparkSession,
    storage: str,
    tmp_path: Path,
    crash_at: CrashAt,
    ways: list[str],
    each_epoch: Callable[[bool], None],
    first: str,
) -> None:
    each_epoch(first == "EachEpoch")
    crash_at("epoch.decided", 2)
    failing(job(session, storage, tmp_path / "out", FLAT, counted, "update"), InjectedFault)
    crash_at.no_more()
    assert set(ways) == {first}
    each_epoch(first != "EachEpoch")
    run_all(job(session, storage, tmp_path / "out", FLAT, counted, "update"))
    assert set(ways) == {"Planned", "EachEpoch"}
    each = PER_EPOCH // 5
    assert seen(tmp_path / "out", "count") == Counter({each * (epoch + 1): 5 for epoch in range(4)})


def test_jobs_take_the_short_way(session: SparkSession, storage: str, tmp_path: Path, ways: list[str]) -> None:
    run_all(job(session, storage, tmp_path / "out", FLAT))
    assert set(ways) == {"Planned"}


@pytest.mark.parametrize("adaptive", ["true", "false"])
def test_rows_that_are_dealt_out_anew(session: SparkSession, storage: str, tmp_path: Path, adaptive: str) -> None:
    """An adaptive plan runs its first stages before the epoch is told to anybody."""
    session.conf.set("spark.sql.adaptive.enabled", adaptive)
    try:
        run_all(job(session, storage, tmp_path / "out", FLAT, lambda frame: frame.repartition(3)))
    finally:
        session.conf.unset("spark.sql.adaptive.enabled")
    assert seen(tmp_path / "out", "id") == Counter(range(ROWS))


def plan_of(made: Job) -> QueryPlan:
    return made._plans["out"]


def test_what_a_replay_must_equal_decides_the_way(session: SparkSession, storage: str, tmp_path: Path) -> None:
    plan = plan_of(job(session, storage, tmp_path / "out", FLAT))

    def replay(rule: int, rows: int = 3) -> Replay:
        committable = Committable("out", 0, rows, checksum_of(5, rule), {})
        return Replay(Decision(DecisionId(0, 1), (committable,), 0), frozenset())

    assert planned_once("job", plan, 2, None) is not None
    assert planned_once("job", plan, 2, replay(0)) is not None
    assert planned_once("job", plan, 2, replay(NESTED)) is None
    assert planned_once("job", plan, 2, replay(NESTED, rows=0)) is not None, "no rows, nothing to equal"


def test_what_others_make_of_an_epoch_goes_the_other_way(session: SparkSession, storage: str, tmp_path: Path) -> None:
    made = Job("job", checkpoints=Checkpoints(storage=storage), spark=session)
    frame = made.read(Numbers(ROWS, FLAT), uid="in")
    made.epoch(frame, uid="out", sinks={"files": FileSink(str(tmp_path / "out"))})(lambda batch, epoch: None)
    assert planned_once("job", plan_of(made), 2, None) is None


class Narrow(FileSink):
    """Leaves columns out on the way."""

    shapes_once = True

    def shape(self, frame: DataFrame) -> DataFrame:
        return frame.select("id")


def test_state_is_not_changed_by_what_a_sink_leaves_out(session: SparkSession, storage: str, tmp_path: Path) -> None:
    """Spark would not keep what nobody reads, and the state would be another one than in the checkpoint."""

    def planned(shape: Callable[[DataFrame], DataFrame], mode: str) -> bool:
        made = Job("job", checkpoints=Checkpoints(storage=storage), spark=session)
        frame = shape(made.read(Numbers(ROWS, FLAT), uid="in"))
        made.write(frame, Narrow(str(tmp_path / "out")), uid="out", output_mode=mode)
        return planned_once("job", plan_of(made), 1, None) is not None

    assert planned(lambda frame: frame, "append")
    assert not planned(counted, "update")
    assert not planned(lambda frame: frame.dropDuplicates(["id"]), "append")
    assert planned(lambda frame: counted(frame).select("id"), "update")


@pytest.mark.parametrize("told", ["nothing", "another epoch", "another run"])
def test_outside_of_its_epoch_a_writer_writes_nothing(
    session: SparkSession, storage: str, tmp_path: Path, told: str
) -> None:
    planned = planned_once("job", plan_of(job(session, storage, tmp_path / "out", FLAT)), 3, None)
    assert planned is not None
    texts = {
        "nothing": None,
        "another epoch": to_text(Assignment(SinkScope("job", "out", 3), 77, 1)),
        "another run": to_text(Assignment(SinkScope("job", "out", 2), 0, 1)),
    }
    lines: list[Any] = []

    def collect(batch: DataFrame, number: int) -> None:
        context: Any = session.sparkContext
        context.setLocalProperty(PROPERTY, texts[told])
        lines.extend(row[0] for row in batch.collect())
        context.setLocalProperty(PROPERTY, None)

    query = planned[0].writeStream.foreachBatch(collect).option("checkpointLocation", storage).start()
    try:
        until(lambda: lines or not query.isActive, "an epoch")
    finally:
        query.stop()
    assert lines
    for line in lines:
        answer = json.loads(line)
        assert isinstance(from_json(answer["error"]), StrayTask), answer
    assert not list((tmp_path / "out").rglob("*.parquet"))


def test_a_task_s_own_error_comes_back(session: SparkSession, storage: str, tmp_path: Path) -> None:
    columns = {"id": "if(id = 150, raise_error('row 150 is bad'), id)"}
    error = failing(job(session, storage, tmp_path / "out", columns), PreCommitFailed)
    assert "row 150 is bad" in str(error)
    assert seen(tmp_path / "out", "id") == Counter(range(PER_EPOCH))


def test_no_checksum_file_is_written_unless_it_is_asked_for(
    session: SparkSession, storage: str, tmp_path: Path
) -> None:
    def checksums(folder: str) -> set[str]:
        return {path.name for path in Path(folder).rglob(".*.crc")}

    run_all(job(session, storage, tmp_path / "out", FLAT, counted, "update"))
    assert checksums(storage) == set()
    jvm: Any = session._jvm
    files = jvm.org.apache.hadoop.fs.FileSystem.get(jvm.java.net.URI("file:///"), session._jsc.hadoopConfiguration())
    session.conf.set("spark.penstock.checksum-files", "true")
    files.setWriteChecksum(True)
    try:
        run_all(job(session, f"{storage}-2", tmp_path / "out-2", FLAT, counted, "update", rows=PER_EPOCH))
    finally:
        session.conf.set("spark.penstock.checksum-files", "false")
    assert {".0.crc", ".metadata.crc"} <= checksums(f"{storage}-2")
    # And it goes on without, from files that have them.
    run_all(job(session, f"{storage}-2", tmp_path / "out-2", FLAT, counted, "update"))
    assert ".1.crc" not in checksums(f"{storage}-2/job/out/spark/commits")
    assert seen(tmp_path / "out-2", "count") == seen(tmp_path / "out", "count")
