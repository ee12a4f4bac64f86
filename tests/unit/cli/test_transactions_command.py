"""What a dead job left open: judged by its ledger, committed or aborted accordingly, and never the other way round."""

from __future__ import annotations

import io
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from penstock import FileSink
from penstock.checkpoint.decision import CheckpointState, Committable, Decision, DecisionId, Outcome, honoured
from penstock.checkpoint.ledger import Ledger
from penstock.checkpoint.open import check_sources
from penstock.cli import program
from penstock.contracts.sink import Committer, Leftover, SinkScope, WriterScope
from penstock.deadline import Deadline
from penstock.engine import protocol, settlement
from penstock.engine.driver import LedgerRun
from penstock.engine.protocol import recover
from penstock.engine.settlement import Decided, JobLedgers, QueryLedger
from penstock.errors import ConfigurationError, LedgerLost, OutcomeUnknown, TransactionRefused, WritersLost
from penstock.events import Events
from penstock.ops import transactions
from penstock.ops.process.registry import Entry, Registry, State
from penstock.ops.transactions import DecisionState, judge, look
from penstock.processes import mark
from penstock.sinks.files.commit import FileCommitter
from penstock.storage.local import LocalStorage
from tests.support.command import run_command

BARRIER = 'v1\n{"batchWatermarkMs":0,"batchTimestampMs":1,"conf":{}}\n{"n":1}'


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "250")


@pytest.fixture(scope="module")
def dead() -> int:
    """The number of a process that is gone."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


class World:
    """The folder of a job whose driver died in epoch 1, and its file sink, as a run of it would have left them."""

    def __init__(self, root: Path, pid: int, *, drop_in: bool = False, complete: int = 1) -> None:
        self.folder = root / "checkpoints" / "orders"
        self.sink = FileSink(str(root / "out"), format="json")
        self.log = self.folder if drop_in else self.folder / "copy" / "spark"
        self.ledger = Ledger(LocalStorage(self.folder / ("_penstock" if drop_in else "copy/ledger")))
        self.facts: dict[str, Any] = {
            "job": "orders",
            "host": socket.gethostname(),
            "pid": pid,
            "sinks": ["copy"],
            "sources": ["rows"],
            "history": "spark",
        }
        self.generation = self.ledger.register(self.facts)
        self.epoch = complete
        for number in range(complete + 1):
            self._write(f"offsets/{number}", BARRIER)
        for number in range(complete):
            self._write(f"commits/{number}", 'v1\n{"nextBatchWatermarkMs":0}')
        self._write("metadata", '{"id":"q-1"}')

    def prepare(self, partition: int, generation: int | None = None) -> Committable:
        scope = SinkScope("orders", "copy", generation or self.generation)
        writer = self.sink.open_writer(WriterScope(scope, self.epoch, 1, partition, 0))
        writer.write(pa.RecordBatch.from_pydict({"id": [partition]}))
        return Committable("copy", partition, 1, partition, writer.pre_commit())

    def decide(self, *committables: Committable, generation: int | None = None) -> None:
        decision = Decision(DecisionId(self.epoch, generation or self.generation), committables)
        self.ledger.decide(decision, query="q-1", barrier=None)

    @property
    def ledgers(self) -> JobLedgers:
        return JobLedgers.at(str(self.folder))

    @property
    def query(self) -> QueryLedger:
        return self.ledgers.queries[0]

    def commit(self) -> settlement.CommitResult:
        return settlement.commit(self.ledgers, self.query, {"copy": self.sink})

    def seen(self) -> dict[int | None, tuple[str, str]]:
        """By partition: state and verdict."""
        found = look(self.ledgers, {"copy": self.sink}).orphans
        return {one.partition: (one.state, one.decision.value) for one in found}

    def visible(self) -> list[int]:
        files = sorted(Path(self.sink.path).glob("part-*"))
        return sorted(int(line) for file in files for line in file.read_text().splitlines())

    def _write(self, name: str, text: str) -> None:
        path = self.log / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.fixture
def world(tmp_path: Path, dead: int) -> World:
    return World(tmp_path, dead)


@pytest.fixture
def penstock(
    world: World, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> Callable[..., tuple[int, str, str]]:
    """`penstock transactions … --job JOB.py`: exit status, stdout, stderr. The job is one without Spark."""
    script = tmp_path / "job.py"
    script.write_text("")
    checkpoints = SimpleNamespace(storage=str(world.folder.parent))
    job = SimpleNamespace(name="orders", checkpoints=checkpoints, spark=None, _sinks={"copy": world.sink})
    monkeypatch.setattr(program, "load_job", lambda path: job)

    def call(command: str, *arguments: str, by_job: bool = True) -> tuple[int, str, str]:
        given = [*arguments, "--job", str(script)] if by_job else arguments
        return run_command(monkeypatch, capfd, "transactions", command, *given)

    return call


# Judging


def kafka(name: str, started: int) -> dict[str, Any]:
    return {"transactional_id": name, "producer_id": 7, "producer_epoch": 0, "started": started}


def test_each_is_put_beside_the_decision_that_names_it() -> None:
    decided = [
        Decided(Committable("s", number, 10, 0, {**kafka(f"id-{number}", 5), "sequence": 3}), 4, 2) for number in (0, 1)
    ]
    found = [Leftover(f"id-{number}", 2, payload=kafka(f"id-{number}", 5)) for number in (1, 2)]
    rows = judge("q", "s", found, decided)
    assert [(one.id, one.state, one.decision, one.epoch, one.decided_by) for one in rows] == [
        ("id-0", "not open", DecisionState.DECIDED, 4, 2),
        ("id-1", "open", DecisionState.DECIDED, 4, 2),
        ("id-2", "open", DecisionState.UNDECIDED, None, None),
    ]
    assert [one.state for one in judge("q", "s", None, decided)] == ["not asked", "not asked"]


def test_a_later_transaction_under_the_same_id_is_not_the_decided_one() -> None:
    decided = [Decided(Committable("s", 0, 10, 0, {**kafka("id", 5), "sequence": 3}), 4, 2)]
    rows = judge("q", "s", [Leftover("id", 2, payload=kafka("id", 6))], decided)
    assert [(one.state, one.decision.value) for one in rows] == [("not open", "decided"), ("open", "undecided")]


def test_the_ledger_is_asked(world: World) -> None:
    world.decide(world.prepare(0))
    world.prepare(1)
    assert world.seen() == {0: ("open", "decided"), 1: ("open", "undecided")}
    report = look(world.ledgers, {})
    assert [(one.state, one.decision.value) for one in report.orphans] == [("not asked", "decided")]
    assert [(query, sink) for query, sink, _ in report.unseen] == [("copy", "copy")]


def test_a_complete_epoch_is_nothing_to_list(world: World) -> None:
    """Its manifest stays in the ledger for long."""
    world.decide(world.prepare(0))
    world.commit()
    assert world.seen() == {}


def test_a_decision_that_a_newer_claim_does_not_honour_is_void(world: World) -> None:
    one = world.prepare(0)
    transactions.abort(world.ledgers, world.query, {}, (), ())  # a newer run has claimed: nothing decided
    world.decide(one)  # the zombie, afterwards
    assert world.seen() == {0: ("open", "undecided")}


def test_a_drop_ins_checkpoint_is_read_as_well(tmp_path: Path, dead: int) -> None:
    world = World(tmp_path, dead, drop_in=True)
    world.decide(world.prepare(0))
    assert (world.ledgers.job, world.query.uid) == ("orders", "copy")
    assert world.commit().complete
    assert world.visible() == [0]


def test_a_drop_ins_transactions_are_ended_by_a_file_that_names_its_checkpoint_and_sink(
    world: World, tmp_path: Path, dead: int, penstock: Callable[..., tuple[int, str, str]]
) -> None:
    shutil.rmtree(world.folder)
    drop_in = World(tmp_path, dead, drop_in=True)
    drop_in.decide(drop_in.prepare(0))
    drop_in.prepare(1)
    assert penstock("commit", str(drop_in.folder), by_job=False)[0] == 1, "a folder alone knows no sink"
    assert (penstock("commit")[0], drop_in.visible()) == (0, [0])
    assert (penstock("abort")[0], drop_in.seen()) == (0, {})


def test_a_folder_without_a_ledger_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="no ledger"):
        JobLedgers.at(str(tmp_path))
    with pytest.raises(ConfigurationError, match="through Spark only"):
        JobLedgers.at("s3a://bucket/orders")


# Commit


def test_what_is_decided_is_committed_and_the_rest_left_alone(world: World) -> None:
    world.decide(world.prepare(0), world.prepare(1))
    world.prepare(2)
    settled = world.commit()
    assert (settled.epoch, settled.generation, settled.complete) == (1, 2, True)
    assert settled.outcomes == {("copy", 0): Outcome.COMMITTED, ("copy", 1): Outcome.COMMITTED}
    assert world.visible() == [0, 1]
    assert (world.log / "commits" / "1").read_text() == 'v1\n{"nextBatchWatermarkMs":0}'
    assert world.seen() == {2: ("open", "undecided")}


def test_a_commit_cut_short_is_finished(world: World) -> None:
    first, second = world.prepare(0), world.prepare(1)
    world.decide(first, second)
    committer = world.sink.open_committer(SinkScope("orders", "copy", 1))
    committer.commit(1, [first], Deadline(5))
    assert world.seen() == {0: ("not open", "decided"), 1: ("open", "decided")}
    assert world.commit().outcomes == {("copy", 0): Outcome.ALREADY_COMMITTED, ("copy", 1): Outcome.COMMITTED}
    assert world.visible() == [0, 1]


def test_sparks_log_is_not_completed_by_a_guess(tmp_path: Path, dead: int) -> None:
    """Where no earlier commit shows the format, the job itself completes it; the rows are visible all the same."""
    world = World(tmp_path, dead, complete=0)
    world.decide(world.prepare(0))
    assert not world.commit().complete
    assert not (world.log / "commits").exists()
    assert world.visible() == [0]
    decision = honoured(world.query.state())
    assert decision is not None
    assert decision.id == DecisionId(0, 1)


def test_state_files_with_ids_of_their_own_leave_the_log_to_the_job(world: World) -> None:
    folder = world.log / "state" / "0" / "0"
    folder.mkdir(parents=True)
    (folder / "2_01234567-89ab-cdef-0123-456789abcdef.zip").touch()
    world.decide(world.prepare(0))
    assert not world.commit().complete


def test_what_was_lost_is_said_and_left_to_the_job(world: World) -> None:
    gone, there = world.prepare(0), world.prepare(1)
    world.decide(gone, there)
    (Path(world.sink.path) / gone.payload["staged"]).unlink()
    with pytest.raises(WritersLost, match="1 of 2 transactions") as raised:
        world.commit()
    assert "rewrites just these" in raised.value.to_do
    assert world.visible() == [1]
    assert not (world.log / "commits" / "1").exists()


def test_rows_in_the_in_flight_log_are_left_to_the_job(world: World) -> None:
    one = world.prepare(0)
    logged = Committable("copy", 0, 1, 0, {"log": {"name": "x", "bytes": 1}, "prepared": dict(one.payload)})
    world.decide(logged)
    assert world.seen() == {0: ("open", "decided")}
    for work in (
        world.commit,
        lambda: transactions.abort(world.ledgers, world.query, {"copy": world.sink}, (), ()),
    ):
        with pytest.raises(TransactionRefused, match="in-flight log"):
            work()
    assert world.seen() == {0: ("open", "decided")}


def test_the_job_may_start_after_it_as_if_nothing_had_been(world: World) -> None:
    """Its start compares itself with the newest generation."""
    world.decide(world.prepare(0))
    world.ledger.register({**world.facts, "run": "m"})
    world.commit()
    query = world.query
    assert query.generation == 3
    assert query.facts["command"] == "transactions"
    assert not query.ledger.is_of(3, "m"), "the job's process, should it wake, would take it for its own"
    check_sources(query.ledger, query.log, "copy", ("rows",))


# Abort


def test_what_is_not_decided_is_aborted_and_the_rest_kept(world: World) -> None:
    world.decide(world.prepare(0))
    world.prepare(1)
    transactions.abort(world.ledgers, world.query, {"copy": world.sink}, (), ())
    assert world.seen() == {0: ("open", "decided")}
    assert world.commit().complete
    assert world.visible() == [0]


def test_a_driver_that_wakes_up_after_an_abort_decides_nothing(world: World) -> None:
    one = world.prepare(0)
    transactions.abort(world.ledgers, world.query, {"copy": world.sink}, (), ())
    world.decide(one)
    assert honoured(world.query.state()) is None
    assert world.seen() == {}


def test_what_was_decided_since_the_list_is_not_aborted(world: World) -> None:
    one = world.prepare(0)
    [listed] = look(world.ledgers, {"copy": world.sink}).orphans
    world.decide(one)
    with pytest.raises(TransactionRefused, match="can only be committed"):
        transactions.abort(world.ledgers, world.query, {"copy": world.sink}, [listed], ())
    assert world.seen() == {0: ("open", "decided")}


# The command


def ids(out: str) -> dict[int, str]:
    return {one["partition"]: one["id"] for one in json.loads(out)["transactions"]}


def test_list_and_describe(world: World, penstock: Callable[..., tuple[int, str, str]]) -> None:
    world.decide(world.prepare(0))
    world.prepare(1)
    status, out, _ = penstock("list", "--json")
    told = json.loads(out)
    assert (status, told["job"], told["running"], told["not_asked"]) == (0, "orders", False, [])
    assert [(one["ledger"], one["can_only_be"], one["decided_by"]) for one in told["transactions"]] == [
        ("decided", "committed", 1),
        ("undecided", "aborted", None),
    ]
    status, shown, _ = penstock("list")
    assert status == 0
    assert "decided (epoch 1 by generation 1)" in shown
    assert "Job orders does not run" in shown
    status, shown, _ = penstock("describe", ids(out)[0])
    assert status == 0
    assert "bytes" in shown
    status, _, err = penstock("describe", "nothing", "--json")
    assert (status, json.loads(err)["error"]) == (1, "TransactionRefused")


def test_commit_and_abort(world: World, penstock: Callable[..., tuple[int, str, str]]) -> None:
    world.decide(world.prepare(0))
    world.prepare(1)
    world.prepare(2)
    named = ids(penstock("list", "--json")[1])
    status, _, err = penstock("abort", named[0], "--json")
    assert (status, "can only be committed" in json.loads(err)["happened"]) == (1, True)
    status, _, err = penstock("commit", named[1], "--json")
    assert (status, "can only be aborted" in json.loads(err)["happened"]) == (1, True)
    assert world.ledger.newest_generation() == 1  # refused before anything
    status, out, _ = penstock("abort", named[1], "--json")
    assert (status, json.loads(out)) == (
        0,
        [{"query": "copy", "sink": "copy", "id": named[1], "outcome": "aborted"}],
    )
    assert world.seen() == {0: ("open", "decided"), 2: ("open", "undecided")}
    status, out, _ = penstock("commit", "--json")
    assert status == 0
    assert [(one["epoch"], one["outcome"], one["complete"]) for one in json.loads(out)] == [(1, "committed", True)]
    status, out, _ = penstock("abort")
    assert (status, "aborted" in out) == (0, True)
    assert world.seen() == {}
    assert world.visible() == [0]
    generation = world.ledger.newest_generation()
    assert penstock("commit")[:2] == (0, "Nothing is decided and open.\n")
    assert penstock("abort")[:2] == (0, "Nothing is open that is not decided.\n")
    assert world.ledger.newest_generation() == generation  # nothing to do, nobody fenced


def test_without_its_sinks_a_decided_epoch_is_shown_and_not_committed(
    world: World, penstock: Callable[..., tuple[int, str, str]]
) -> None:
    world.decide(world.prepare(0))
    status, out, _ = penstock("list", str(world.folder), by_job=False)
    assert (status, "not asked" in out, "--job JOB.py" in out) == (0, True, True)
    status, _, err = penstock("commit", str(world.folder), "--json", by_job=False)
    assert (status, json.loads(err)["error"]) == (1, "TransactionRefused")
    assert world.ledger.newest_generation() == 1


def test_a_sink_that_cannot_say_what_is_open_is_swept_all_the_same(
    world: World, penstock: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    world.decide(world.prepare(0))
    world.prepare(1)
    with monkeypatch.context() as patch:
        patch.setattr(FileCommitter, "leftovers", Committer.leftovers)
        status, out, _ = penstock("list", "--json")
        assert [one["state"] for one in json.loads(out)["transactions"]] == ["not asked"]
        assert [one["why"] for one in json.loads(out)["not_asked"]] == ["it cannot say"]
        status, out, _ = penstock("abort", "--json")
        assert (status, [one["outcome"] for one in json.loads(out)]) == (0, ["swept"])
    assert world.seen() == {0: ("open", "decided")}


@pytest.fixture
def alive() -> Iterator[int]:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process.pid
    process.communicate(b"\n")


def test_a_job_that_runs_is_left_alone(
    world: World, penstock: Callable[..., tuple[int, str, str]], alive: int, dead: int
) -> None:
    """By the process that its newest generation names, or by the registry."""
    world.prepare(0)
    world.ledger.register({**world.facts, "pid": alive})
    for command in ("commit", "abort"):
        status, _, err = penstock(command, "--take-over", "--json")
        assert (status, json.loads(err)["happened"].startswith("Job 'orders' runs: generation 2")) == (1, True)
    world.ledger.register({**world.facts, "pid": dead})
    storage = str(world.folder.parent)
    entry = Entry("0" * 32, "orders", State.RUNNING, pid=alive, pid_mark=mark(alive), storage=storage)
    Registry().put(entry)
    status, _, err = penstock("abort", "--json")
    assert (status, "runs: run 0000" in json.loads(err)["happened"]) == (1, True)
    assert world.ledger.newest_generation() == 3
    assert json.loads(penstock("list", "--json")[1])["running"] is True
    Registry().put(Entry("0" * 32, "orders", State.RUNNING, pid=alive, pid_mark=mark(alive), storage="/elsewhere"))
    assert penstock("abort")[0] == 0  # another job of that name


def test_a_number_that_was_given_to_another_process_is_no_sign_of_life(world: World, alive: int) -> None:
    early = Ledger(LocalStorage(world.folder / "copy" / "ledger"), now=lambda: 1_000_000_000.0)
    early.register({**world.facts, "pid": alive})
    assert transactions.run_of(world.ledgers).running is False


def test_a_run_on_another_machine_has_to_be_given_up_for_dead(
    world: World, penstock: Callable[..., tuple[int, str, str]]
) -> None:
    world.prepare(0)
    world.ledger.register({**world.facts, "host": "elsewhere", "pid": os.getpid()})
    assert json.loads(penstock("list", "--json")[1])["running"] is None
    status, _, err = penstock("abort", "--json")
    assert (status, "--take-over" in json.loads(err)["to_do"]) == (1, True)
    assert world.seen() == {0: ("open", "undecided")}
    assert penstock("abort", "--take-over")[0] == 0
    assert world.seen() == {}
    assert json.loads(penstock("list", "--json")[1])["running"] is False  # it was superseded by the command


def test_an_error_after_a_jobs_file_was_loaded_is_json_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "no_job.py"
    script.write_text("")
    monkeypatch.setattr(program, "prepare_environment", lambda: None)
    monkeypatch.setattr(sys, "path", [*sys.path])
    status, _, err = run_command(monkeypatch, capfd, "transactions", "list", "--job", str(script), "--json")
    assert (status, json.loads(err)["error"]) == (1, "ConfigurationError")


def test_arguments_that_say_too_little(penstock: Callable[..., tuple[int, str, str]]) -> None:
    assert penstock("list", by_job=False)[0] == 2
    assert penstock("describe")[0] == 2


# What nobody can prove


@pytest.fixture
def forgotten(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """The writers of which the other system remembers nothing."""
    gone: set[int] = set()
    commit = FileCommitter.commit

    def answer(self: FileCommitter, epoch: int, committables: Any, deadline: Deadline) -> Any:
        known = commit(self, epoch, [one for one in committables if one.writer not in gone], deadline)
        return {**{one.writer: Outcome.UNKNOWN for one in committables}, **known}

    monkeypatch.setattr(FileCommitter, "commit", answer)
    monkeypatch.setattr(FileCommitter, "evidence", lambda self, own, deadline: {0: "no row of it"})
    return gone


def test_without_a_word_it_only_shows_what_is_not_proven(
    world: World, forgotten: set[int], penstock: Callable[..., tuple[int, str, str]]
) -> None:
    world.decide(world.prepare(0), world.prepare(1))
    forgotten.add(0)
    status, out, _ = penstock("resolve", "--json")
    assert status == 1
    [row] = json.loads(out)
    assert (row["epoch"], row["partition"], row["rows"], row["seen"]) == (1, 0, 1, "no row of it")
    assert row["recorded"] == ""
    assert world.visible() == [1]
    with pytest.raises(OutcomeUnknown, match="penstock transactions resolve"):
        world.commit()


@pytest.mark.parametrize("said", ["", "n\n"])
def test_a_word_that_is_not_confirmed_is_not_kept(
    world: World,
    forgotten: set[int],
    penstock: Callable[..., tuple[int, str, str]],
    monkeypatch: pytest.MonkeyPatch,
    said: str,
) -> None:
    world.decide(world.prepare(0))
    forgotten.add(0)
    monkeypatch.setattr(sys, "stdin", io.StringIO(said))
    assert penstock("resolve", "--as", "lost")[0] == 1
    assert penstock("resolve", "--as", "perhaps", "--yes")[0] == 2
    with pytest.raises(OutcomeUnknown):
        world.commit()


def test_what_is_said_to_be_committed_finishes_the_epoch(
    world: World, forgotten: set[int], penstock: Callable[..., tuple[int, str, str]]
) -> None:
    world.decide(world.prepare(0), world.prepare(1))
    forgotten.add(0)
    status, out, _ = penstock("resolve", "--as", "committed", "--yes")
    assert (status, "Recorded as committed" in out) == (0, True)
    settled = world.commit()
    assert settled.complete
    assert settled.outcomes == {("copy", 0): Outcome.ALREADY_COMMITTED, ("copy", 1): Outcome.ALREADY_COMMITTED}


@pytest.mark.parametrize(("writers", "then"), [(2, "rewrites just these"), (1, "replays the epoch")])
def test_what_is_said_to_be_lost_is_repaired_or_replayed(
    world: World, forgotten: set[int], penstock: Callable[..., tuple[int, str, str]], writers: int, then: str
) -> None:
    world.decide(*(world.prepare(number) for number in range(writers)))
    forgotten.add(0)
    assert penstock("resolve", "--as", "lost", "--yes")[0] == 0
    with pytest.raises(WritersLost) as raised:
        world.commit()
    assert then in raised.value.to_do


def test_a_proof_outweighs_every_word(
    world: World, forgotten: set[int], penstock: Callable[..., tuple[int, str, str]]
) -> None:
    world.decide(world.prepare(0))
    forgotten.add(0)
    assert penstock("resolve", "--as", "lost", "--yes")[0] == 0
    forgotten.clear()
    assert world.commit().outcomes == {("copy", 0): Outcome.COMMITTED}


def test_where_all_is_proven_no_word_is_taken(
    world: World, forgotten: set[int], penstock: Callable[..., tuple[int, str, str]]
) -> None:
    world.decide(world.prepare(0))
    status, out, _ = penstock("resolve", "--as", "lost", "--yes")
    assert (status, "All that is decided is proven" in out) == (0, True)
    assert not (world.folder / "copy" / "ledger" / "rulings").exists()


def test_only_what_is_named_is_resolved(
    world: World, forgotten: set[int], penstock: Callable[..., tuple[int, str, str]]
) -> None:
    world.decide(world.prepare(0), world.prepare(1))
    forgotten.update((0, 1))
    named = next(one.id for one in look(world.ledgers, {"copy": world.sink}).orphans if one.partition == 1)
    assert penstock("resolve", named, "--as", "committed", "--yes")[0] == 0
    with pytest.raises(OutcomeUnknown, match="copy/0 are"):
        world.commit()


# A ledger that is lost


class Starting:
    """A start of the job, as far as the sinks see it."""

    def __init__(self, world: World) -> None:
        self._run = LedgerRun(
            job="orders",
            query="copy",
            sinks={"copy": world.sink},
            ledger=world.ledger,
            events=Events(),
            where="",
            query_id=lambda: "q-1",
        )

    def start(self) -> None:
        try:
            self._run.drive(recover(), self._perform)
        finally:
            self._run.committers.close()

    def _perform(self, action: Any) -> Any:
        match action:
            case protocol.Register():
                return self._run.register(self._run.facts())
            case protocol.Look():
                return CheckpointState(0, False)
            case protocol.Commit(decision):
                return self._run.commit(decision.id.epoch, decision.to_commit)
            case protocol.Sweep(keep):
                self._run.abort_dangling(keep)
        return False


def test_a_start_names_what_a_lost_ledger_knew_and_leaves_it(world: World) -> None:
    world.prepare(0)
    of_the_lost_one = world.prepare(1, generation=7)
    with pytest.raises(LedgerLost, match="generation 7") as caught:
        Starting(world).start()
    assert of_the_lost_one.payload["staged"] in str(caught.value)
    assert (Path(world.sink.path) / of_the_lost_one.payload["staged"]).exists()
    while world.ledger.newest_generation() < 6:
        world.ledger.register(world.facts)
    Starting(world).start()  # generation 7 of its own ledger: an earlier attempt of this very run


def test_what_a_lost_ledger_knew_is_aborted_by_name_and_by_force_only(
    world: World, penstock: Callable[..., tuple[int, str, str]]
) -> None:
    world.prepare(0)
    lost, kept = world.prepare(1, generation=7), world.prepare(2, generation=7)
    assert world.seen() == {0: ("open", "undecided"), 1: ("open", "unknown"), 2: ("open", "unknown")}
    name = lost.payload["staged"]
    status, _, said = penstock("abort", name)
    assert status == 1
    assert "does not know the run of" in said
    status, said, _ = penstock("abort")
    assert status == 0
    assert "does not know" in said
    assert world.seen() == {1: ("open", "unknown"), 2: ("open", "unknown")}, "only what is undecided"
    status, said, _ = penstock("abort", name, "--force")
    assert (status, "aborted" in said) == (0, True)
    assert world.seen() == {2: ("open", "unknown")}
    penstock("abort", kept.payload["staged"], "--force")
    Starting(world).start()
