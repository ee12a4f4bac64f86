"""The MySQL sink keeps the contract in every mode, and its proofs hold, against a real MariaDB."""

from __future__ import annotations

import json
import os
import stat
import uuid
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pymysql
import pytest

from penstock.checkpoint.decision import Committable, Outcome
from penstock.contracts.sink import SinkScope, TwoPhaseSink, WriterScope
from penstock.deadline import Deadline
from penstock.errors import PenstockError, PreCommitFailed, SystemUnavailable
from penstock.sinks.mysql import MySqlSink
from penstock.sinks.sql.committer import KEPT_EPOCHS
from penstock.testing.sink_contract import LOST, VISIBLE, SinkContract, SinkHarness
from penstock.testing.sink_harness import PATIENCE, SinkSteps, prepare_and_die
from tests.support.servers.mariadb import MariaDb

TEXT = ["plain", None, "", "NULL", "\\N", "Zażółć", "日本語", "🚀 \u2028 line", "tab\tnew\nline\r", "'\"\\ \0 %s"]


@pytest.fixture(scope="module")
def server() -> Iterator[MariaDb]:
    with MariaDb.start() as started:
        yield started


class MySqlHarness(SinkHarness):
    mode: Any = "two_phase"

    def __init__(self, server: MariaDb) -> None:
        self.server = server
        self.table = f"t_{uuid.uuid4().hex[:12]}"

    def make_sink(self, **more: Any) -> TwoPhaseSink:
        return MySqlSink(**{**self.server.login, "database": "test", "table": self.table, "mode": self.mode, **more})

    def ask(self, statement: str) -> list[Any]:
        login = {**self.server.login, "database": "test", "autocommit": True, "ssl_disabled": True}
        with pymysql.connect(**login) as connection, connection.cursor() as cursor:
            cursor.execute(statement)
            return list(cursor.fetchall())

    def read_visible(self) -> list[Any]:
        if not self.ask(f"SHOW TABLES LIKE '{self.table}'"):
            return []
        return self.ask(f"SELECT id, name FROM {self.table}")

    def rows(self, n: int, start: int = 0) -> pa.RecordBatch:
        numbers = range(start, start + n)
        return pa.RecordBatch.from_pydict({"id": list(numbers), "name": [f"row {i}" for i in numbers]})

    def special(self) -> pa.RecordBatch | None:
        return pa.RecordBatch.from_pydict({"id": [*range(len(TEXT) - 1), None], "name": TEXT})

    def large(self) -> pa.RecordBatch:
        return pa.RecordBatch.from_pydict({"id": [1], "name": ["x\t" * 250_000]})

    def expire(self, sink: TwoPhaseSink, committable: Committable) -> bool:
        for format_id, first, _, data in self.ask("XA RECOVER"):
            text = data.decode() if isinstance(data, bytes) else data
            if text[first:] == committable.payload["writer"]:
                self.ask(f"XA ROLLBACK '{text[:first]}','{text[first:]}',{format_id}")
        return True


class StagedHarness(MySqlHarness):
    mode = "staged"

    def expire(self, sink: TwoPhaseSink, committable: Committable) -> bool:
        self.ask(f"DROP TABLE {committable.payload['writer']}")
        return True


class UpsertHarness(StagedHarness):
    """A row is there once, however often it comes."""

    mode = "upsert"

    def make_sink(self, **more: Any) -> TwoPhaseSink:
        return super().make_sink(key=["id"], **more)

    def special(self) -> None:
        return None  # a key may not be null


class TestTwoPhase(SinkContract):
    @pytest.fixture(autouse=True)
    def _harness(self, server: MariaDb) -> None:
        self.harness = MySqlHarness(server)


class TestStaged(SinkContract):
    @pytest.fixture(autouse=True)
    def _harness(self, server: MariaDb) -> None:
        self.harness = StagedHarness(server)


class Story(SinkSteps):
    """One table, and the steps of an epoch."""

    harness: MySqlHarness

    def __init__(self, harness: MySqlHarness) -> None:
        self.harness = harness
        self.sink = harness.make_sink()


@pytest.fixture
def xa(server: MariaDb) -> Story:
    return Story(MySqlHarness(server))


@pytest.fixture
def staged(server: MariaDb) -> Story:
    return Story(StagedHarness(server))


@pytest.fixture(params=["two_phase", "staged"])
def either(request: pytest.FixtureRequest, server: MariaDb) -> Story:
    return Story(MySqlHarness(server) if request.param == "two_phase" else StagedHarness(server))


# ── the server dies ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_what_we_write_for_the_server_nobody_else_can_replace(server: MariaDb) -> None:
    folder = server.folder.stat()
    assert (folder.st_uid, stat.S_IMODE(folder.st_mode)) == (os.geteuid(), 0o711 if os.geteuid() == 0 else 0o700)
    assert {stat.S_IMODE((server.folder / one).stat().st_mode) for one in ("data", "run")} == {0o700}


def test_a_killed_server_loses_nothing_that_was_prepared_or_committed(either: Story) -> None:
    harness, sink = either.harness, either.sink
    done = either.prepare(sink, [harness.rows(5)])
    either.commit(sink, done)
    waiting = either.prepare(sink, [harness.rows(5, 5), harness.rows(5, 10)], epoch=1)
    undecided = either.prepare(sink, [harness.rows(5, 15)], epoch=2)
    harness.server.kill()
    harness.server.restart()
    either.assert_visible(harness.rows(5))
    either.sweep(sink, generation=2, keep=waiting)
    assert either.commit(sink, done, generation=2) == {Outcome.ALREADY_COMMITTED}
    assert either.commit(sink, waiting, epoch=1, generation=2) <= VISIBLE
    assert either.commit(sink, undecided, epoch=2, generation=2) == LOST
    either.assert_visible(harness.rows(15))


def test_an_aborted_transaction_stays_aborted_after_a_crash(xa: Story) -> None:
    """A rollback is not durable at once: the server may have it prepared again, and the next start sweeps."""
    prepared = xa.prepare(xa.sink, [xa.harness.rows(5)])
    xa.abort(xa.sink, prepared)
    xa.harness.server.kill()
    xa.harness.server.restart()
    xa.sweep(xa.sink, generation=2)
    assert xa.commit(xa.sink, prepared, generation=2) == LOST
    ours = prepared[0].payload["writer"]
    assert not [data for *_, data in xa.harness.ask("XA RECOVER") if ours in data.decode()]


def test_a_server_that_is_away_is_unknown_and_goes_on_afterwards(either: Story) -> None:
    harness = either.harness
    prepared = either.prepare(either.sink, [harness.rows(5), harness.rows(5, 5)])
    committer = either.sink.open_committer(either.scope())
    harness.server.kill()
    outcomes = committer.commit(0, prepared, Deadline(0.3))
    assert set(outcomes.values()) == {Outcome.UNKNOWN}
    harness.server.restart()
    assert set(committer.commit(0, prepared, Deadline(PATIENCE)).values()) <= VISIBLE, "on a new connection"
    committer.close()
    either.assert_visible(harness.rows(10))


def test_a_server_restarted_while_rows_come_is_named_and_goes_on_afterwards(either: Story) -> None:
    harness = either.harness
    writer = either.open_writer(either.sink, either.scope(), epoch=0)
    writer.write(harness.rows(5))
    harness.server.restart()
    with pytest.raises(SystemUnavailable):
        writer.pre_commit()
    writer.abort()
    either.sweep(either.sink, generation=1)
    either.commit(either.sink, either.prepare(either.sink, [harness.rows(5)], attempt=1))
    either.assert_visible(harness.rows(5))


# ── writers that still live ──────────────────────────────────────────────────────────────────────────────────────────


def test_a_sweep_ends_a_writer_that_is_loading_and_frees_its_locks(xa: Story) -> None:
    harness = xa.harness
    harness.ask(f"CREATE TABLE {harness.table} (id BIGINT PRIMARY KEY, name TEXT)")
    zombie = xa.open_writer(xa.sink, xa.scope(), epoch=0)
    zombie.write(harness.rows(5))
    zombie._flush()  # type: ignore[attr-defined]  # the rows are in the table, and locked
    assert xa.sweep(xa.sink, generation=2) == 1
    harness.ask(f"INSERT INTO {harness.table} VALUES (1, 'somebody else')")
    with pytest.raises(PenstockError):
        zombie.pre_commit()
    zombie.abort()
    assert harness.read_visible() == [(1, "somebody else")]


def test_a_writer_that_comes_after_the_sweep_refuses_itself(either: Story) -> None:
    late = either.open_writer(either.sink, either.scope(), epoch=0)  # connects with its first row
    either.sweep(either.sink, generation=1)
    late.write(either.harness.rows(5))
    with pytest.raises(PreCommitFailed, match="is fenced"):
        late.pre_commit()
    late.abort()
    either.assert_visible()
    assert either.sweep(either.sink, generation=2) == 0, "it left nothing"


def test_an_older_run_does_not_disturb_the_newer_ones_writers(either: Story) -> None:
    either.sweep(either.sink, generation=3)
    writer = either.open_writer(either.sink, either.scope(3), epoch=0)
    writer.write(either.harness.rows(5))
    either.sweep(either.sink, generation=2)
    prepared = [Committable(either.uid, 0, 5, 0, writer.pre_commit())]
    assert either.commit(either.sink, prepared, generation=3) == {Outcome.COMMITTED}


def test_a_fork_on_another_table_is_another_sink(either: Story) -> None:
    fork = either.sink.redirected("_fork")
    prepared = either.prepare(either.sink, [either.harness.rows(5)])
    assert either.sweep(fork, generation=9) == 0
    assert either.commit(either.sink, prepared) == {Outcome.COMMITTED}
    either.commit(fork, either.prepare(fork, [either.harness.rows(2)]))
    assert len(either.harness.ask(f"SELECT id FROM {either.harness.table}_fork")) == 2
    either.assert_visible(either.harness.rows(5))


# ── proofs ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_what_was_pruned_is_unknown_and_never_lost(either: Story) -> None:
    old = either.prepare(either.sink, [either.harness.rows(5)])
    either.commit(either.sink, old)
    later = KEPT_EPOCHS + 1
    new = either.prepare(either.sink, [either.harness.rows(5, 5)], epoch=later)
    either.commit(either.sink, new, epoch=later)
    assert either.commit(either.sink, old) == {Outcome.UNKNOWN}
    assert either.commit(either.sink, new, epoch=later) == {Outcome.ALREADY_COMMITTED}
    either.assert_visible(either.harness.rows(10))


def test_with_its_own_tables_dropped_nothing_is_taken_for_lost(either: Story) -> None:
    prepared = either.prepare(either.sink, [either.harness.rows(5)])
    either.commit(either.sink, prepared)
    either.harness.ask("DROP TABLE penstock_markers, penstock_sinks")
    assert either.commit(either.sink, prepared, generation=2) == {Outcome.UNKNOWN}
    again = either.prepare(either.sink, [either.harness.rows(5, 5)], epoch=1, generation=2)
    either.harness.ask(f"DELETE FROM penstock_sinks WHERE sink LIKE '{either.job}:%'")
    assert either.commit(either.sink, again, epoch=1, generation=2) == {Outcome.COMMITTED}, "what is there is proof"
    either.assert_visible(either.harness.rows(10))


def test_a_zombie_drivers_trial_move_cannot_come_after_ours(staged: Story) -> None:
    harness = staged.harness
    zombie = staged.sink.open_committer(staged.scope(1))
    writer = staged.open_writer(staged.sink, staged.scope(1), epoch=0)
    writer.write(harness.rows(5))
    prepared = zombie.seal([Committable(staged.uid, 0, 5, 0, writer.pre_commit())], Deadline(PATIENCE))
    assert staged.commit(staged.sink, prepared, generation=2) == {Outcome.COMMITTED}
    assert set(zombie.commit(0, prepared, Deadline(PATIENCE)).values()) == {Outcome.ALREADY_COMMITTED}
    zombie.close()
    staged.assert_visible(harness.rows(5))


def test_a_run_in_another_mode_commits_and_sweeps_what_it_finds(xa: Story) -> None:
    decided = xa.prepare(xa.sink, [xa.harness.rows(5)])
    undecided = xa.prepare(xa.sink, [xa.harness.rows(5, 5)], epoch=1)
    now = xa.harness.make_sink(mode="staged")
    xa.sweep(now, generation=2, keep=decided)
    assert xa.commit(now, decided, generation=2) == {Outcome.COMMITTED}
    assert xa.commit(now, undecided, epoch=1, generation=2) == LOST


def test_a_run_with_another_table_finishes_what_was_decided_for_the_old_one(either: Story) -> None:
    prepared = either.prepare(either.sink, [either.harness.rows(5), either.harness.rows(5, 5)])
    either.commit(either.sink, prepared[:1])
    now = either.harness.make_sink(table=f"{either.harness.table}_new")
    assert either.commit(now, prepared, generation=2) <= VISIBLE
    either.assert_visible(either.harness.rows(10))
    undecided = either.prepare(either.sink, [either.harness.rows(5)], epoch=1)
    either.abort(now, undecided, generation=2)
    assert either.commit(now, undecided, epoch=1, generation=2) == LOST


def test_names_that_begin_again_are_not_taken_for_old_ones(either: Story) -> None:
    """Somebody deleted the checkpoint: generations and epochs start at one, in a database that has seen them."""
    for number in range(2):
        prepared = either.prepare(either.sink, [either.harness.rows(5, 5 * number)])
        assert either.commit(either.sink, prepared) == {Outcome.COMMITTED}
    either.assert_visible(either.harness.rows(10))


def test_two_writers_with_one_unique_key_are_an_error_and_no_hang(xa: Story) -> None:
    xa.harness.ask(f"CREATE TABLE {xa.harness.table} (id BIGINT PRIMARY KEY, name TEXT)")
    sink = xa.harness.make_sink(lock_timeout=1)
    with pytest.raises(PreCommitFailed, match="same unique key"):
        xa.prepare(sink, [xa.harness.rows(5), xa.harness.rows(5)])
    xa.sweep(sink, generation=1)
    xa.commit(sink, xa.prepare(sink, [xa.harness.rows(5)], attempt=1))
    xa.assert_visible(xa.harness.rows(5))


def test_upserts_change_rows_and_a_replay_changes_nothing_more(server: MariaDb) -> None:
    story = Story(UpsertHarness(server))
    story.commit(story.sink, story.prepare(story.sink, [story.harness.rows(3)]))
    changed = pa.RecordBatch.from_pydict({"id": [1, 3, 3], "name": ["one", "first", "last"]})
    prepared = story.prepare(story.sink, [changed], epoch=1)
    assert story.commit(story.sink, prepared, epoch=1) == {Outcome.COMMITTED}
    story.harness.ask(f"UPDATE {story.harness.table} SET name = 'by hand' WHERE id = 1")
    assert story.commit(story.sink, prepared, epoch=1, generation=2) <= VISIBLE
    wanted = [(0, "row 0"), (1, "by hand"), (2, "row 2"), (3, "last")]
    assert sorted(story.harness.read_visible()) == wanted


def test_a_killed_upsert_is_finished_once(server: MariaDb) -> None:
    story = Story(UpsertHarness(server))
    rows = story.harness.rows(5)
    payload = prepare_and_die(story.sink, WriterScope(story.scope(), 0, 0, 0, 0), rows, PATIENCE)
    prepared = story.seal(story.sink, story.scope(), [Committable(story.uid, 0, 5, 0, payload)])
    story.assert_visible()
    assert story.commit(story.sink, prepared, generation=2) == {Outcome.COMMITTED}
    story.assert_visible(rows)


def test_auto_prepares_where_the_server_can(server: MariaDb) -> None:
    story = Story(MySqlHarness(server))
    sink = story.harness.make_sink(mode="auto")
    committer = sink.open_committer(SinkScope("job", "auto", 1))
    assert json.loads(json.dumps(dict(committer.hints())))["mode"] == "two_phase"
    committer.close()


def test_a_task_that_commits_by_itself(either: Story) -> None:
    """At least once: no driver decides."""
    writer = either.sink.open_direct_writer(WriterScope(either.scope(), 0, 0, 0, 0))
    writer.write(either.harness.rows(5))
    assert writer.pre_commit() == {}
    either.assert_visible(either.harness.rows(5))
