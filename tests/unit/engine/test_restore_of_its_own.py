"""Restores against what the job's last run has left, and against each other: what is decided is finished first, what
lives is fenced first, and the history that counts is whole."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock.checkpoint.decision import Claim
from penstock.checkpoint.ledger import Ledger
from penstock.checkpoint.spark_log import STATE_FORMAT, SparkLog
from penstock.config.operations import Recovery
from penstock.engine.restore_point import RestorePoint
from penstock.errors import NotRestorable, SavepointError, Superseded
from penstock.failpoints import InjectedFault, hooked
from penstock.savepoints.restore import RestoreResult
from penstock.storage.local import LocalStorage
from tests.support.job_on_disk import SPARK, JobOnDisk, die
from tests.support.memory_sink import MemorySink


@pytest.fixture
def sink() -> MemorySink:
    return MemorySink()


@pytest.fixture
def payments(tmp_path: Path, sink: MemorySink) -> JobOnDisk:
    return JobOnDisk(tmp_path, "payments", sink)


@pytest.mark.parametrize("point", ["epoch.decided", "epoch.committed"])
def test_a_decided_epoch_that_spark_has_not_logged_is_finished_before_the_copy(
    payments: JobOnDisk, sink: MemorySink, point: str
) -> None:
    payments.run(8)
    payments.dies_at(point, 20)
    visible = len(sink.visible)
    decided = payments.complete + 1
    result = payments.restore(payments.root)
    assert result.restored.epochs == {"out": decided}
    assert result.beyond == {}
    assert len(sink.visible) >= visible
    payments.run(40)
    assert sorted(sink.visible) == list(range(40))


def test_epochs_that_a_power_cut_took_from_sparks_log_are_restored_before_the_copy(
    payments: JobOnDisk, sink: MemorySink
) -> None:
    payments.run(20)
    last = payments.complete
    payments.lose(last)
    assert payments.restore(payments.root).restored.epochs == {"out": last}
    payments.run(40)
    assert sorted(sink.visible) == list(range(40))


def test_the_newest_epochs_of_all_queries_are_restored_and_not_the_last_global_checkpoint(
    tmp_path: Path, payments: JobOnDisk, sink: MemorySink
) -> None:
    """There is none here; and once all queries rest, their newest epochs are a consistent cut."""
    other = JobOnDisk(tmp_path, "payments", sink, uid="second")
    payments.run(20)
    other.run(10)
    other.dies_at("epoch.decided", 20)
    decided = other.complete + 1
    result = payments.restore(payments.root, others=(other,))
    assert result.restored.epochs == {"out": payments.complete, "second": decided}
    assert result.beyond == {}


@pytest.mark.parametrize("part", ["all", "one"])
def test_what_only_a_replay_can_finish_is_not_restored(payments: JobOnDisk, sink: MemorySink, part: str) -> None:
    payments.run(8)
    payments.dies_at("epoch.decided", 20)
    for name in list(sink.prepared)[: None if part == "all" else 1]:
        del sink.prepared[name]
    with pytest.raises(SavepointError, match="without its plan") as refused:
        payments.restore(payments.root)
    assert "once without -s" in refused.value.to_do
    assert payments.histories.current() == "spark"
    payments.run(40)
    assert sorted(sink.visible) == list(range(40))


def test_a_log_of_an_unknown_format_is_not_restored(payments: JobOnDisk, sink: MemorySink) -> None:
    payments.run(8)
    (payments.spark / f"commits/{payments.complete}").write_text('v2\n{"nextBatchWatermarkMs":0,"stateUniqueIds":{}}')
    payments.dies_at("epoch.committed", 20)
    with pytest.raises(SavepointError, match=r"without its plan: Epoch 2 .* format of Spark's log is not known"):
        payments.restore(payments.root)
    assert payments.histories.current() == "spark"


def test_before_the_first_commit_the_state_format_is_that_of_the_session(payments: JobOnDisk) -> None:
    payments.dies_at("epoch.committed", 20)
    conf = SimpleNamespace(get=lambda key, otherwise=None: "2" if key == STATE_FORMAT else otherwise)
    session = cast("Any", SimpleNamespace(version="4.2.0", conf=conf))
    with pytest.raises(SavepointError, match="format of Spark's log is not known"):
        payments.restore(payments.root, session=session)


def test_a_checkpoint_that_cannot_be_recovered_may_be_left_for_a_savepoint(
    tmp_path: Path, payments: JobOnDisk, sink: MemorySink
) -> None:
    """The job's last run is fenced, and nothing else is asked of what it left."""
    other = JobOnDisk(tmp_path, "other", MemorySink())
    other.run(20)
    payments.run(8)
    payments.dies_at("epoch.decided", 20)
    sink.lose()
    decided = payments.complete + 1
    before = payments.generation
    assert payments.restore(f"{other.root}/chk-0").beyond == {"out": (1, decided)}
    assert payments.generation == before + 1


def test_a_query_that_the_program_has_no_more_is_fenced_and_not_recovered(
    tmp_path: Path, payments: JobOnDisk, sink: MemorySink
) -> None:
    gone = JobOnDisk(tmp_path, "payments", sink, uid="gone")
    payments.run(20)
    gone.run(8)
    gone.dies_at("epoch.decided", 20)
    visible, before = len(sink.visible), gone.generation
    with pytest.raises(NotRestorable):
        payments.restore(payments.root)
    assert (len(sink.visible), gone.generation) == (visible, before + 1)


def test_the_barrier_of_a_drain_that_was_never_decided_is_not_restored(payments: JobOnDisk, sink: MemorySink) -> None:
    payments.run(20)
    last = payments.complete
    payments.log.end_of_time(last + 1)
    assert payments.restore(payments.root).restored.epochs == {"out": last}
    payments.run(40)
    assert sorted(sink.visible) == list(range(40))


def test_a_drained_job_goes_on_where_its_own_checkpoint_is_restored(payments: JobOnDisk, sink: MemorySink) -> None:
    payments.run(20)
    coordinator = payments.coordinator()
    last = coordinator.recover().epoch
    payments.log.end_of_time(last)
    coordinator.drains_at = last
    payments._query(coordinator, 20)
    coordinator.close()
    assert payments.log.drained(last)
    assert payments.restore(payments.root).drained, "which is warned of"
    payments.coordinator().close()
    assert not payments.log.drained(last)


# The fence


@pytest.mark.parametrize("what", ["its own checkpoint", "a savepoint"])
def test_a_driver_that_wakes_while_its_job_is_restored_decides_nothing(
    tmp_path: Path, payments: JobOnDisk, sink: MemorySink, what: str
) -> None:
    elsewhere = JobOnDisk(tmp_path, "elsewhere", MemorySink())
    elsewhere.run(20)
    payments.run(20)
    driver = payments.coordinator()
    driver.recover()
    woken: list[BaseException] = []

    def wake() -> None:
        with pytest.raises(Superseded) as fenced:
            payments._query(driver, 40)
        woken.append(fenced.value)

    with hooked("restore.copied", wake):
        result = payments.restore(payments.root if what == "its own checkpoint" else elsewhere.root / "chk-1")
    driver.close()
    assert woken
    assert sorted(sink.visible) == list(range(20))
    if what == "its own checkpoint":
        assert result.beyond == {}
        payments.run(40)
        assert sorted(sink.visible) == list(range(40))


def test_a_run_that_begins_while_its_job_is_restored_keeps_the_job(payments: JobOnDisk, sink: MemorySink) -> None:
    payments.run(20)
    with (
        hooked("restore.copied", lambda: payments.run(30)),
        pytest.raises(Superseded, match="Generation 2 of query 'out' has been superseded by generation 3"),
    ):
        payments.restore(payments.root)
    assert payments.histories.current() == "spark"
    payments.run(40)
    assert sorted(sink.visible) == list(range(40))


def test_the_first_run_of_a_job_that_begins_while_it_is_restored_keeps_the_job(
    tmp_path: Path, payments: JobOnDisk
) -> None:
    other = JobOnDisk(tmp_path, "other", MemorySink())
    other.run(20)
    with hooked("restore.copied", lambda: payments.run(10)), pytest.raises(Superseded, match="by generation 1"):
        payments.restore(other.root)
    assert payments.histories.current() == "spark"


def test_a_run_that_registered_before_a_restore_was_recorded_looks_for_it(payments: JobOnDisk) -> None:
    payments.run(20)
    storage = LocalStorage(payments.root)
    settings = cast("Any", SimpleNamespace(recovery=Recovery()))
    point = RestorePoint("payments", {}, settings, storage, SPARK, False)
    point._current = payments.histories.current()
    point.refuse_replaced()
    payments.restore(payments.root)
    with pytest.raises(Superseded, match="was restored while this run started"):
        point.refuse_replaced()


def test_a_restore_of_another_job_fences_it_not(tmp_path: Path, payments: JobOnDisk) -> None:
    other = JobOnDisk(tmp_path, "other", MemorySink())
    other.run(20)
    before = other.generation
    payments.restore(other.root)
    assert other.generation == before


# Another job's checkpoint


@pytest.mark.parametrize("lost", ["not logged", "lost"])
def test_the_newest_checkpoint_of_another_job_is_the_one_that_is_decided(
    tmp_path: Path, payments: JobOnDisk, lost: str
) -> None:
    other = JobOnDisk(tmp_path, "other", MemorySink())
    other.run(8)
    if lost == "lost":
        other.lose(other.complete)
    else:
        other.dies_at("epoch.committed", 20)
    with pytest.raises(SavepointError, match="is decided, but not in Spark's log"):
        payments.restore(other.root)
    assert payments.restore(f"{other.root}/chk-0").restored.epochs == {"out": 0}, "by name it can be had"


def test_a_decision_that_does_not_count_is_no_checkpoint(tmp_path: Path, payments: JobOnDisk) -> None:
    other = JobOnDisk(tmp_path, "other", MemorySink())
    other.run(8)
    last = other.complete
    other.dies_at("epoch.decided", 20)
    ledger = Ledger(LocalStorage(other.folder / "ledger"))
    newer = ledger.register({"sources": ["in"], "sinks": ["out"]})
    ledger.claim(Claim(newer, last + 1, None), other.log.query_id())
    assert payments.restore(other.root).restored.epochs == {"out": last}


def test_a_barrier_that_is_not_the_decided_one_is_not_restored(tmp_path: Path, payments: JobOnDisk) -> None:
    other = JobOnDisk(tmp_path, "other", MemorySink())
    other.run(8)
    last = other.complete
    text = (other.spark / f"offsets/{last}").read_text()
    (other.spark / f"offsets/{last}").write_text(text.replace('"0":', '"0":1'))
    with pytest.raises(Exception, match="is not what epoch"):
        payments.restore(f"{other.root}/chk-{last}")


def test_what_is_visible_beyond_a_savepoint_is_what_the_ledger_knows(
    tmp_path: Path, payments: JobOnDisk, sink: MemorySink
) -> None:
    other = JobOnDisk(tmp_path, "other", MemorySink())
    other.run(8)
    payments.run(20)
    newest = payments.complete
    for epoch in range(1, newest + 1):
        payments.lose(epoch)
    assert payments.restore(f"{other.root}/chk-0").beyond == {"out": (1, newest)}


# Two at once


def files(job: JobOnDisk) -> set[str]:
    folder = job.folder / job.histories.current()
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("point", ["restore.verified", "restore.copied"])
def test_of_two_restores_at_once_one_counts_and_is_whole(tmp_path: Path, payments: JobOnDisk, point: str) -> None:
    other = JobOnDisk(tmp_path, "other", MemorySink())
    other.run(20)
    last = other.complete
    calls: list[RestoreResult] = []

    def meanwhile() -> None:
        if not calls:
            calls.append(cast("Any", None))
            calls[0] = payments.restore(other.root, "b")

    with hooked(point, meanwhile), pytest.raises(SavepointError, match="Another restore into"):
        payments.restore(other.root, "a")
    assert payments.histories.current() == calls[0].restored.history
    assert {f"offsets/{last}", f"commits/{last}", "metadata"} <= files(payments)
    assert [one.id[0] for one in payments.histories.all()] == ["b"]
    payments.coordinator().close()
    assert payments.log.next_epoch() == (last + 1, False)


def test_a_copy_that_is_not_whole_is_not_recorded(tmp_path: Path, payments: JobOnDisk) -> None:
    other = JobOnDisk(tmp_path, "other", MemorySink())
    other.run(20)

    def lose() -> None:
        for folder in payments.folder.glob("spark-*"):
            shutil.rmtree(folder / "commits")

    with hooked("restore.copied", lose), pytest.raises(SavepointError, match="is missing"):
        payments.restore(other.root)
    assert payments.histories.current() == "spark"


def test_what_killed_restores_have_left_goes_with_the_next(tmp_path: Path, payments: JobOnDisk) -> None:
    other = JobOnDisk(tmp_path, "other", MemorySink())
    other.run(20)
    with hooked("restore.copied", die), pytest.raises(InjectedFault):
        payments.restore(other.root)
    [half] = payments.folder.glob("spark-*")
    payments.restore(other.root, "b")
    assert not half.exists()
    assert SparkLog(LocalStorage(payments.folder / payments.histories.current())).next_epoch()[0] == other.complete + 1
