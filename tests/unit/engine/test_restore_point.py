"""What a start resumes from: its queries, the history that counts, and the savepoint that it claims."""

from __future__ import annotations

import json
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.checkpoint.history import Histories, Restored
from penstock.checkpoint.ledger import Ledger
from penstock.config.operations import Recovery
from penstock.engine import restore_point as module
from penstock.engine import settlement
from penstock.engine.restore_point import Claim, LastRun, RestorePoint
from penstock.engine.settlement import JobLedgers
from penstock.errors import MarksLost, SavepointError, SavepointIncomplete, Superseded, UidChanged
from penstock.events import Events
from penstock.progress import Step
from penstock.savepoints import savepoint
from tests.support.memory_storage import MemoryStorage

SPARK: Any = object()
PLANS: Any = {
    "out": SimpleNamespace(sources={"in": 0, "rates": 1}, sinks={"table": 1, "alerts": 2}),
    "more": SimpleNamespace(sources={}, sinks={}),
}


def restored(number: int, *, claim: bool = False, history: str = "") -> Restored:
    history = history or f"spark.{number}"
    return Restored(
        "r" * 32, f"memory:sp-{number}", f"savepoint-{number}", 1.0, history, {"out": 3}, claim, number
    )  # fmt: skip


class Job:
    """The job's folder, and what a start of it calls."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.storage, self.events = MemoryStorage("memory:job"), Events()
        self.result: Any = None
        self.calls: list[tuple[Any, ...]] = []
        self.emitted: list[dict[str, Any]] = []
        self.events.listen(lambda event: self.emitted.append(dict(event)))
        self.settings: Any = SimpleNamespace(recovery=Recovery(), state_request={"backend": "rocksdb"})
        tree = SimpleNamespace(location="memory:job")
        monkeypatch.setattr(module, "tree_of", lambda storage: tree if storage is self.storage else None)
        monkeypatch.setattr(module, "Restorer", self._restorer)
        monkeypatch.setattr(module, "report_restore", lambda *given: self.calls.append(("report", *given)))
        monkeypatch.setattr(
            module, "require_same_parallelism", lambda *given: self.calls.append(("parallelism", *given))
        )

    def _restorer(self, job: str, location: str, spark: Any, last: LastRun, report: Any) -> Any:
        assert (last._folder.location, last._plans, last._spark) == ("memory:job", PLANS, SPARK)

        def restore(recovery: Recovery, plans: Any, asked: Any) -> Any:
            self.calls.append(("restore", job, location, spark, recovery, plans, asked))
            for done in (1, 2):
                report(Step("copying", done, 3, "files"))
            self.record(restored(1))
            return self.result

        return SimpleNamespace(restore=restore)

    def record(self, one: Restored) -> None:
        Histories(self.storage).reserve(one.history)
        Histories(self.storage).record(one)

    def know(self, *uids: str) -> None:
        for uid in uids:
            self.storage.create(f"queries/{uid}.json", b"{}")

    def point(self, *, allow: bool = False, plans: Any = PLANS) -> RestorePoint:
        return RestorePoint("payments", plans, self.settings, self.storage, SPARK, allow)

    def queries(self) -> list[str]:
        return self.storage.list("queries")


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Job:
    return Job(monkeypatch)


# The history


@pytest.mark.parametrize("number", [0, 1])
def test_without_a_restore_a_start_goes_on_from_its_own_checkpoint_with_the_same_parallelism(
    job: Job, number: int
) -> None:
    if number:
        job.record(restored(1))
    job.know("out")
    current = "spark.1" if number else "spark"
    assert job.point().history(job.events) == current
    assert job.calls == [("parallelism", SPARK, "memory:job", current, PLANS, job.settings)]
    assert job.queries() == ["out.json"]


@pytest.mark.parametrize("allow", [True, False])
def test_a_restore_is_carried_out_told_and_settles_which_queries_there_are(job: Job, allow: bool) -> None:
    job.settings.recovery = Recovery(path="memory:sp", allow_non_restored=not allow, restore_id="r" * 32)
    job.result = SimpleNamespace(mapped={})
    job.know("out", "renamed")
    assert job.point(allow=allow).history(job.events) == "spark.1"
    wanted = Recovery(path="memory:sp", allow_non_restored=allow, restore_id="r" * 32)
    assert job.calls == [
        ("restore", "payments", "memory:job", SPARK, wanted, PLANS, {"backend": "rocksdb"}),
        ("report", job.result, job.events),
    ]
    assert job.queries() == []
    [told] = job.emitted
    assert {**told, "time": 0} == {"event": "restoring", "query": None, "time": 0} | asdict(
        Step("copying", 1, 3, "files")
    )


def test_a_restore_that_an_earlier_start_has_carried_out_is_an_ordinary_start(job: Job) -> None:
    job.settings.recovery = Recovery(path="memory:sp")
    job.result = SimpleNamespace(mapped=None)
    job.know("out")
    assert job.point().history(job.events) == "spark.1"
    assert [call[0] for call in job.calls] == ["restore", "parallelism"]
    assert job.queries() == ["out.json"]


def test_a_restore_that_is_recorded_while_a_run_starts_ends_that_run(job: Job) -> None:
    job.record(restored(1))
    point = job.point()
    point.history(job.events)
    point.refuse_replaced()
    job.record(restored(2))
    with pytest.raises(Superseded, match="Job 'payments' was restored while"):
        point.refuse_replaced()


def test_a_history_that_is_named_otherwise_than_the_last_replaces_it_too(job: Job) -> None:
    job.record(restored(1, history="spark.2"))
    point = job.point()
    point.history(job.events)
    job.record(restored(2, history="spark.10"))
    with pytest.raises(Superseded):
        point.refuse_replaced()


def test_a_restore_that_is_not_recorded_when_a_run_has_registered_never_counts(job: Job) -> None:
    point = job.point()
    point.history(job.events)
    Histories(job.storage).reserve("spark.1")
    point.refuse_replaced()
    with pytest.raises(SavepointError):
        Histories(job.storage).record(restored(1))
    assert Histories(job.storage).current() == "spark"


def test_a_run_that_has_asked_for_no_history_goes_by_the_first(job: Job) -> None:
    point = job.point()
    point.refuse_replaced()
    job.record(restored(1))
    with pytest.raises(Superseded):
        point.refuse_replaced()


# The queries


def test_a_query_that_only_the_checkpoint_knows_is_not_lost_unasked(job: Job) -> None:
    job.know("gone", "out")
    with pytest.raises(UidChanged) as refused:
        job.point().check_uids()
    assert refused.value.happened == (
        "The checkpoint of job 'payments' has the queries ['gone', 'out'], the program has ['more', 'out']: ['gone']"
        " would be left behind and ['more'] start from the beginning."
    )
    assert job.queries() == ["gone.json", "out.json"]
    job.know("more")
    with pytest.raises(UidChanged) as refused:
        job.point().check_uids()
    assert refused.value.happened.endswith("['gone'] would be left behind.")


def test_a_query_may_be_left_behind_on_purpose_once_and_for_all(job: Job) -> None:
    job.know("gone", "out")
    job.point(allow=True).check_uids()
    assert job.queries() == ["more.json", "out.json"]
    job.point().check_uids()


def test_the_queries_of_a_program_are_noted_once_with_what_they_read_and_write(job: Job) -> None:
    job.point().check_uids()
    job.point(plans={uid: SimpleNamespace(sources={}, sinks={}) for uid in PLANS}).check_uids()
    assert json.loads(job.storage.read("queries/out.json") or b"") == {
        "version": 1,
        "sources": ["in", "rates"],
        "sinks": ["alerts", "table"],
    }


# A savepoint that the job claims


class Claimed:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[tuple[str, Any]] = []
        self.deleted: list[tuple[str, Any]] = []
        self.found: Any = SimpleNamespace(id="savepoint-2")
        self.fails: Exception | None = None
        monkeypatch.setattr(module, "tree_at", lambda *given: self.asked.append(given) or given[0])
        monkeypatch.setattr(savepoint, "read", self._read)
        monkeypatch.setattr(savepoint, "dispose", self._dispose)

    def _read(self, tree: Any) -> Any:
        assert tree == "memory:sp-2"
        if self.found is None:
            raise SavepointIncomplete("It is gone.")
        return self.found

    def _dispose(self, *given: Any) -> None:
        self.deleted.append(given)
        if self.fails is not None:
            raise self.fails


@pytest.fixture
def claimed(monkeypatch: pytest.MonkeyPatch) -> Claimed:
    return Claimed(monkeypatch)


def complete(events: Events, *queries: str) -> None:
    for query in queries:
        events.emit("completed", query=query)


def test_a_claimed_savepoint_is_deleted_once_every_query_has_completed_an_epoch(job: Job, claimed: Claimed) -> None:
    job.record(restored(1))
    job.record(restored(2, claim=True))
    job.point().history(job.events)
    assert claimed.asked == [("memory:sp-2", SPARK)]
    [claim] = [each for each in job.events._listeners if isinstance(each, Claim)]
    for event in ("aborted", "decided"):
        for query in PLANS:
            job.events.emit(event, query=query)
    complete(job.events, "out", "out", "another")
    assert claim.thread is None, "a restart of the other query would need it"
    complete(job.events, "more")
    assert claim.thread is not None
    claim.thread.join()
    assert claim.thread.daemon
    first = claim.thread
    complete(job.events, "out", "more")
    assert claim.thread is first
    assert claimed.deleted == [("memory:sp-2", SPARK)]


def test_a_claimed_savepoint_that_cannot_be_deleted_ends_no_job(
    claimed: Claimed, caplog: pytest.LogCaptureFixture
) -> None:
    claimed.fails = OSError("no permission")
    claim = Claim.of(restored(2, claim=True), ["out"], SPARK)
    assert claim is not None
    claim._dispose()
    assert "could not delete memory:sp-2" in caplog.text


@pytest.mark.parametrize("found", ["savepoint-1", "savepoint-3", None])
def test_a_savepoint_that_is_gone_or_another_in_its_place_is_not_claimed(claimed: Claimed, found: str | None) -> None:
    claimed.found = found and SimpleNamespace(id=found)
    assert Claim.of(restored(2, claim=True), ["out"], SPARK) is None


def test_what_was_not_claimed_is_not_looked_at(claimed: Claimed) -> None:
    assert Claim.of(restored(2), ["out"], SPARK) is None
    assert Claim.of(None, ["out"], SPARK) is None
    assert claimed.asked == []


# The last run's lanes


@pytest.mark.parametrize("finish", [True, False])
@pytest.mark.parametrize("lost", [True, False])
def test_the_lanes_of_the_last_run_are_fenced_and_what_they_made_visible_is_recorded(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, finish: bool, lost: bool
) -> None:
    """A real-time query decides in its sink, so nothing but the sink tells where it ended."""
    storage, ended, recorded = MemoryStorage(), list[tuple[Any, ...]](), list[tuple[Any, ...]]()
    Ledger(storage).register({})
    folder: Any = SimpleNamespace(location="memory:job", at=lambda _: SimpleNamespace(storage=storage))
    query = SimpleNamespace(uid="out", log=object())
    ledgers = SimpleNamespace(queries=[query, SimpleNamespace(uid="gone", log=None)], job="payments")

    def end_lanes(*given: Any, **more: Any) -> None:
        ended.append((*given, more))
        if lost:
            raise MarksLost("The marks are gone.")

    monkeypatch.setattr(JobLedgers, "at", lambda *_: ledgers)
    monkeypatch.setattr(settlement, "fence", lambda *_: 1)
    monkeypatch.setattr(settlement, "finish", lambda *_: 1)
    monkeypatch.setattr(settlement, "record", lambda *given: recorded.append(given))
    monkeypatch.setattr(module, "end_lanes", end_lanes)
    LastRun(folder, PLANS, SPARK).fence(finish=finish)
    [(job, plan, log, generation, look, record, more)] = ended
    assert (job, plan, log, generation, more) == ("payments", PLANS["out"], query.log, 1, {"keep": True})
    if finish:
        record(7, "text")
        assert recorded == [("payments", query, 1, 7, "text")]
    assert (record is not None) is finish
    assert ("written again: The marks are gone" in caplog.text) is lost
    look()
    Ledger(storage).register({})
    with pytest.raises(Superseded, match="query 'out'"):
        look()
