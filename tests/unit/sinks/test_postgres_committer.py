"""The PostgreSQL sink's proof, row by row, against a model of the server behind the driver's connection."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from penstock.checkpoint.decision import Committable, Outcome
from penstock.contracts.sink import Leftover, SinkScope
from penstock.deadline import Deadline
from penstock.errors import (
    AccessDenied,
    ConstraintViolated,
    DataError,
    OutcomeUnknown,
    PenstockError,
    PreCommitFailed,
    SystemUnavailable,
)
from penstock.failpoints import hooked
from penstock.sinks.postgres.dialect import PostgresDialect
from penstock.sinks.sql.committer import KEPT_EPOCHS, PRUNE_EVERY, SqlCommitter
from penstock.sinks.sql.tables import staging_prefix
from tests.support.fake_sleep import record_pauses, sleeping
from tests.support.postgres_model import SCOPE, Database, cut, gid

NOTHING = Committable("out", 9, 0, 0, {"writer": None})


@pytest.fixture
def database(monkeypatch: pytest.MonkeyPatch) -> Database:
    made = Database()
    monkeypatch.setattr("penstock.sinks.postgres.dialect.Line", made.line)
    return made


@pytest.fixture(autouse=True)
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    modules = ("sql.committer", "postgres.dialect")
    return record_pauses(monkeypatch, *(f"penstock.sinks.{module}" for module in modules))


@pytest.fixture
def committer(database: Database) -> Iterator[SqlCommitter[Any]]:
    made = SqlCommitter(PostgresDialect(database.sink, SCOPE))  # type: ignore[arg-type]
    yield made
    made.close()


def soon() -> Deadline:
    return Deadline(60)


def prepare(database: Database, writer: int, *, generation: int = 3, at: int = 2_000) -> Committable:
    name = gid(writer, generation)
    database.now.prepared[name] = [writer]
    payload = {"kind": "prepared", "writer": name, "at": at, "epoch": 7, "rows": 1, "target": ["public", "orders"]}
    return Committable("out", writer, 1, 0, payload)


def stage(database: Database, writer: int, *, generation: int = 3, at: int = 2_000) -> Committable:
    name = f"{staging_prefix(SCOPE.prefix)}{generation}_{writer:012x}"
    database.now.staged[name] = [writer]
    payload = {"kind": "staged", "writer": name, "at": at, "epoch": 7, "rows": 1, "key": [], "columns": ["id"]}
    return Committable("out", writer, 1, 0, {**payload, "target": ["public", "orders"]})


def name_of(one: Committable) -> str:
    return str(one.payload["writer"])


# Hints


def test_writers_are_told_the_mode_and_the_fence(database: Database, committer: SqlCommitter[Any]) -> None:
    assert committer.hints() == {"mode": "two_phase", "fence": 0}
    committer.abort_dangling([], soon())
    assert committer.hints() == {"mode": "two_phase", "fence": 1}
    assert database.said.count("SETTLE") == 1, "its tables are made once"
    database.most_prepared = 0
    assert committer.hints()["mode"] == "two_phase", "the mode stays what it was for the whole run"


def test_a_server_without_prepared_transactions_is_staged(database: Database, committer: SqlCommitter[Any]) -> None:
    database.most_prepared = 0
    assert committer.hints()["mode"] == "staged"


def test_a_server_that_is_away_hints_nothing(
    database: Database, committer: SqlCommitter[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.sinks.sql.committer._HINT_SECONDS", 0)
    database.before = cut(database, 1, "S")
    assert committer.hints() == {}
    assert committer.hints() == {"mode": "two_phase", "fence": 0}


def test_a_missing_right_is_an_error_even_for_hints(database: Database, committer: SqlCommitter[Any]) -> None:
    def refuse(statement: str) -> None:
        raise psycopg.errors.InsufficientPrivilege("permission denied for schema own")

    database.before = refuse
    with pytest.raises(AccessDenied, match=r"db\.example:5433/shop") as refused:
        committer.hints()
    assert "s3cret" not in str(refused.value)


# Sealing


def test_what_is_prepared_is_sealed(database: Database, committer: SqlCommitter[Any]) -> None:
    ones = [prepare(database, 0), NOTHING, prepare(database, 1)]
    assert committer.seal(ones, soon()) == ones
    assert committer.seal([NOTHING], soon()) == [NOTHING]


def test_what_is_gone_is_not_sealed(database: Database, committer: SqlCommitter[Any]) -> None:
    ones = [prepare(database, n) for n in range(3)]
    del database.now.prepared[gid(1)]
    with pytest.raises(PreCommitFailed, match=f"1 of 3 prepared .* public.orders are gone, among them {gid(1)}"):
        committer.seal(ones, soon())


def test_nothing_is_sealed_on_a_server_that_has_lost_what_was_committed_last(
    database: Database, committer: SqlCommitter[Any]
) -> None:
    first, second = prepare(database, 0), prepare(database, 1)
    committer.commit(7, [NOTHING, first], soon())
    assert committer.seal([second], soon()) == [second]
    database.now.markers.clear()
    with pytest.raises(PreCommitFailed, match=f"committed last to public.orders .* {gid(0)}"):
        committer.seal([second], soon())


def fall_back(database: Database, one: Committable) -> None:
    """A replica takes over that has the transaction prepared, and not its commit."""
    del database.now.markers[name_of(one)]
    database.now.rows.remove(one.writer)
    database.now.prepared[name_of(one)] = [one.writer]


def test_every_writer_of_the_last_epoch_is_looked_for_and_committed_again_where_it_is_prepared(
    database: Database, committer: SqlCommitter[Any]
) -> None:
    """Commits run side by side: the first may have reached the replica, and the second not."""
    ones, later = [prepare(database, n) for n in range(3)], prepare(database, 3)
    committer.commit(7, ones, soon())
    for _ in range(2):  # and again, should it fall back again
        fall_back(database, ones[1])
        fall_back(database, ones[2])
        assert committer.seal([later], soon()) == [later]
        assert sorted(database.now.rows) == [0, 1, 2]
    fall_back(database, ones[0])
    fall_back(database, ones[2])
    del database.now.prepared[name_of(ones[2])]
    with pytest.raises(PreCommitFailed, match=f"committed last to public.orders .* {gid(2)}"):
        committer.seal([later], soon())
    assert database.now.rows == [1, 0], "what can be saved is"
    with pytest.raises(PreCommitFailed, match=gid(2)):
        committer.seal([later], soon())
    assert list(committer.missing(7, ones, soon())) == [2]
    assert committer.seal([later], soon()) == [later], "the sweep has told, and somebody has ruled"
    fall_back(database, ones[0])
    committer.seal([later], soon())
    assert sorted(database.now.rows) == [0, 1]
    said = len(database.said)
    committer.seal([later], soon())
    assert [each[:12] for each in database.said[said:]] == ["SELECT ARRAY", "SELECT gid, "], "one question, as a rule"


def test_while_one_is_prepared_again_and_locked_the_whole_epoch_is_looked_for(
    database: Database, committer: SqlCommitter[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    sleeping(monkeypatch, "penstock.sinks.sql.committer", lambda s: now.__setitem__(0, now[0] + max(s, 1e-4)))
    ones = [prepare(database, n) for n in range(2)]
    committer.commit(7, ones, soon())
    fall_back(database, ones[1])
    database.before = refusing(psycopg.errors.LockNotAvailable("waited"), "COMMIT PREPARED", 10_000)
    with pytest.raises(OutcomeUnknown, match=gid(1)):
        committer.seal([NOTHING], Deadline(0.05, clock=lambda: now[0]))
    database.before = lambda statement: None
    fall_back(database, ones[0])
    committer.seal([NOTHING], soon())
    assert sorted(database.now.rows) == [0, 1]


def test_what_a_start_has_looked_for_is_looked_for_before_its_first_decision(
    database: Database, committer: SqlCommitter[Any]
) -> None:
    ones = [prepare(database, n) for n in range(2)]
    committer.commit(7, ones, soon())
    later = SqlCommitter(PostgresDialect(database.sink, SCOPE))  # type: ignore[arg-type]
    assert later.missing(7, ones, soon()) == {}
    fall_back(database, ones[1])
    assert later.seal([NOTHING], soon()) == [NOTHING]
    assert sorted(database.now.rows) == [0, 1]
    later.close()


@pytest.mark.parametrize("kind", [prepare, stage])
def test_what_is_prepared_again_and_cannot_be_committed_now_is_not_left_to_the_sweep(
    database: Database, committer: SqlCommitter[Any], monkeypatch: pytest.MonkeyPatch, kind: Callable[..., Committable]
) -> None:
    now = [0.0]
    sleeping(monkeypatch, "penstock.sinks.sql.committer", lambda s: now.__setitem__(0, now[0] + max(s, 1e-4)))
    one = kind(database, 0)
    committer.hints()
    database.before = refusing(psycopg.errors.LockNotAvailable("waited"), "COMMIT PREPARED", 10_000)
    if kind is stage:
        database.before = refusing(psycopg.errors.LockNotAvailable("waited"), "LOCK TABLE", 10_000)
    with pytest.raises(OutcomeUnknown, match=rf"Epoch 7 .* public\.orders.* 1 writers .*{name_of(one)}") as unknown:
        committer.missing(7, [one], Deadline(0.05, clock=lambda: now[0]))
    assert unknown.value.retryable
    database.before = lambda statement: None
    assert committer.missing(7, [one], soon()) == {}
    assert database.now.rows == [0]


def test_a_last_epoch_that_another_committer_has_pruned_is_not_looked_for_again(
    database: Database, committer: SqlCommitter[Any]
) -> None:
    """With the in-flight log the drainer commits, and prunes, in the coordinator's place."""
    one, later, drained = prepare(database, 0), prepare(database, 1), prepare(database, 2)
    committer.commit(7, [one], soon())
    database.now.markers = {name_of(drained): (99, 4_000)}
    database.now.pruned = 5_000
    assert committer.seal([later], soon()) == [later]
    database.now.pruned = 1_000
    assert committer.seal([later], soon()) == [later], "it is not asked for any more"


def test_the_first_of_an_epoch_is_told_under_its_own_number(database: Database, committer: SqlCommitter[Any]) -> None:
    reached: list[int] = []
    with hooked("commit.first", lambda: reached.append(len(database.now.rows))):
        outcomes = committer.commit(7, [prepare(database, n) for n in range(3)], soon())
    assert outcomes == dict.fromkeys(range(3), Outcome.COMMITTED)
    assert reached == [1]


def test_what_a_promoted_replica_lacks_is_told_with_the_statement_that_accepts_it(
    database: Database, committer: SqlCommitter[Any]
) -> None:
    ones = [prepare(database, n) for n in range(3)]
    committer.commit(7, ones, soon())
    assert committer.missing(7, [*ones, NOTHING], soon()) == {}
    # The replica had not heard of the second commit, and nothing of the third writer.
    for one in ones[1:]:
        del database.now.markers[name_of(one)]
    database.now.rows.remove(1)
    database.now.prepared[name_of(ones[1])] = [1]
    told = committer.missing(7, ones, soon())
    assert list(told) == [2]
    assert told[2].startswith("INSERT INTO")
    assert f"'{gid(2)}', 7, 3, 2000)" in told[2]
    assert database.now.rows.count(1) == 1, "what was still prepared is committed again"
    assert name_of(ones[1]) in database.now.markers


@pytest.mark.parametrize("known", [False, True])
def test_a_server_that_never_knew_the_sink_has_lost_what_it_committed(
    database: Database, committer: SqlCommitter[Any], known: bool
) -> None:
    """A replica that was promoted before it had even the sink's row, or an empty database; and the same once a start
    has created that row, which then is younger than the writer."""
    one = prepare(database, 0, at=0)
    database.now.prepared.clear()
    if known:
        committer.hints()
    told = committer.missing(7, [one], soon())
    assert list(told) == [0]
    assert database.now.known
    database.now.markers[name_of(one)] = (7, 0)
    assert committer.missing(7, [one], soon()) == {}, "and an operator may accept it"


def test_a_running_driver_notices_that_the_server_does_not_know_the_sink(
    database: Database, committer: SqlCommitter[Any]
) -> None:
    one, later = prepare(database, 0), prepare(database, 1)
    committer.commit(7, [one], soon())
    database.now.markers.clear()
    database.now.pruned = None
    with pytest.raises(PreCommitFailed, match="committed last"):
        committer.seal([later], soon())


def test_staged_rows_are_moved_before_the_decision_and_seen_after_it(
    database: Database, committer: SqlCommitter[Any]
) -> None:
    ones = [stage(database, 1), stage(database, 0)]
    committer.seal(ones, soon())
    assert database.now.rows == []
    said = len(database.said)
    assert committer.commit(7, ones, soon()) == {0: Outcome.COMMITTED, 1: Outcome.COMMITTED}
    [*done, pruning] = database.said[said:]
    assert done == ["COMMIT"], "only that is left after the decision"
    assert pruning.startswith("WITH gone")
    assert database.now.rows == [0, 1]
    assert database.now.staged == {}
    assert database.now.markers == {name_of(one): (7, 2_000) for one in ones}


def test_rules_that_the_server_leaves_to_the_commit_are_checked_before_the_decision(
    database: Database, committer: SqlCommitter[Any]
) -> None:
    one = stage(database, 0)
    database.before = refusing(psycopg.errors.ForeignKeyViolation("no such parent"), "SET CONSTRAINTS")
    with pytest.raises(ConstraintViolated, match="no such parent"):
        committer.seal([one], soon())
    assert database.said[-2].startswith("DROP TABLE"), "after all rows are moved"
    assert not database.lines[-1].open
    assert committer.seal([one], soon()) == [one]


def test_a_staging_table_that_is_gone_is_not_sealed(database: Database, committer: SqlCommitter[Any]) -> None:
    ones = [stage(database, 0), stage(database, 1)]
    database.now.staged.pop(name_of(ones[0]))
    with pytest.raises(PreCommitFailed, match="1 of 2 staging tables"):
        committer.seal(ones, soon())


# Committing what is prepared


@pytest.mark.parametrize("count", [1, 2, 4, 9])
def test_prepared_transactions_are_committed_once(database: Database, committer: SqlCommitter[Any], count: int) -> None:
    ones = [prepare(database, n) for n in range(count)]
    outcomes = committer.commit(7, [*ones, NOTHING], soon())
    assert outcomes == dict.fromkeys([*range(count), 9], Outcome.COMMITTED)
    assert sorted(database.now.rows) == list(range(count))
    again = committer.commit(7, ones, soon())
    assert again == dict.fromkeys(range(count), Outcome.ALREADY_COMMITTED)
    assert len(database.now.rows) == count


def test_several_are_committed_side_by_side(database: Database, committer: SqlCommitter[Any]) -> None:
    """Each COMMIT PREPARED waits for the disk; those waits are shared."""
    meeting = threading.Barrier(4)

    def meet(statement: str) -> None:
        if statement.startswith("COMMIT PREPARED"):
            meeting.wait(10)

    ones = [prepare(database, n) for n in range(4)]
    database.before = meet
    assert committer.commit(7, ones, soon()) == dict.fromkeys(range(4), Outcome.COMMITTED)


def test_a_commit_whose_answer_was_lost_is_found_by_its_marker(
    database: Database, committer: SqlCommitter[Any], pauses: list[float]
) -> None:
    one = prepare(database, 0)
    database.after = cut(database, 1, "COMMIT PREPARED")
    assert committer.commit(7, [one], soon()) == {0: Outcome.ALREADY_COMMITTED}
    assert database.now.rows == [0]
    assert pauses == [0.02]


def test_a_commit_that_did_not_arrive_is_sent_again(database: Database, committer: SqlCommitter[Any]) -> None:
    one = prepare(database, 0)
    database.before = cut(database, 2, "COMMIT PREPARED")
    assert committer.commit(7, [one], soon()) == {0: Outcome.COMMITTED}


def test_a_proof_that_was_cut_off_is_asked_for_again(database: Database, committer: SqlCommitter[Any]) -> None:
    one = prepare(database, 0)
    database.now.prepared.clear()
    database.before = cut(database, 1, "SELECT ARRAY")
    assert committer.commit(7, [one], soon()) == {0: Outcome.LOST}


@pytest.mark.parametrize(
    ("at", "outcome"), [(999, Outcome.UNKNOWN), (1_000, Outcome.UNKNOWN), (1_001, Outcome.LOST), (2_000, Outcome.LOST)]
)
@pytest.mark.parametrize("kind", [prepare, stage])
def test_gone_without_a_marker_is_lost_only_if_its_marker_cannot_have_been_pruned(
    database: Database, committer: SqlCommitter[Any], kind: Callable[..., Committable], at: int, outcome: Outcome
) -> None:
    one = kind(database, 0, at=at)
    database.now.prepared.clear()
    database.now.staged.clear()
    assert committer.commit(7, [one], soon()) == {0: outcome}


def test_a_server_that_stays_away_leaves_it_unknown(
    database: Database, committer: SqlCommitter[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    sleeping(monkeypatch, "penstock.sinks.sql.committer", lambda s: now.__setitem__(0, now[0] + max(s, 1e-4)))
    ones = [prepare(database, 0), stage(database, 1)]
    database.before = cut(database, 10_000, "")
    outcomes = committer.commit(7, ones, Deadline(0.05, clock=lambda: now[0]))
    assert outcomes == {0: Outcome.UNKNOWN, 1: Outcome.UNKNOWN}
    assert now[0] <= 0.051, "no pause goes beyond the deadline"


def test_after_the_deadline_nothing_is_committed(database: Database, committer: SqlCommitter[Any]) -> None:
    ones = [prepare(database, 0), stage(database, 1), NOTHING]
    late = committer.commit(7, ones, Deadline(0))
    assert late == {0: Outcome.UNKNOWN, 1: Outcome.UNKNOWN, 9: Outcome.COMMITTED}
    assert database.said == []


def refusing(error: psycopg.Error, beginning: str, times: int = 1) -> Callable[[str], None]:
    left = iter(range(times))

    def refuse(statement: str) -> None:
        if statement.startswith(beginning) and next(left, None) is not None:
            raise error

    return refuse


def test_a_name_that_somebody_is_just_ending_is_asked_for_again(
    database: Database, committer: SqlCommitter[Any]
) -> None:
    one = prepare(database, 0)
    database.before = refusing(psycopg.errors.ObjectInUse("busy"), "COMMIT PREPARED", 3)
    assert committer.commit(7, [one], soon()) == {0: Outcome.COMMITTED}


@pytest.mark.parametrize("error", [psycopg.errors.LockNotAvailable("waited"), psycopg.errors.AdminShutdown("restart")])
def test_what_time_may_cure_is_tried_again(
    database: Database, committer: SqlCommitter[Any], error: psycopg.Error
) -> None:
    one = stage(database, 0)
    database.before = refusing(error, "INSERT INTO")
    assert committer.commit(7, [one], soon()) == {0: Outcome.COMMITTED}


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (psycopg.errors.InsufficientPrivilege("must be superuser"), AccessDenied),
        (psycopg.errors.UniqueViolation("duplicate key"), DataError),
    ],
)
@pytest.mark.parametrize(("kind", "beginning"), [(prepare, "COMMIT PREPARED"), (stage, "INSERT INTO")])
def test_what_no_trying_cures_is_said_at_once(
    database: Database,
    committer: SqlCommitter[Any],
    kind: Callable[..., Committable],
    beginning: str,
    error: psycopg.Error,
    expected: type[PenstockError],
) -> None:
    one = kind(database, 0)
    database.before = refusing(error, beginning)
    with pytest.raises(expected) as refused:
        committer.commit(7, [one], soon())
    assert refused.value.safe == "the epoch is decided and its rows are kept, prepared, until they can be committed."
    assert str(error) in refused.value.happened
    assert re.search(r"db\.example:5433/shop|public\.orders", refused.value.happened), "where it was"
    assert refused.value.to_do
    assert committer.commit(7, [one], soon()) == {0: Outcome.COMMITTED}, "it is as it was"


# Committing what is staged


def test_a_restart_moves_what_the_last_driver_had_not_committed(
    database: Database, committer: SqlCommitter[Any]
) -> None:
    """Ends that driver first: it may still hold its own move."""
    ones = [stage(database, 0, generation=2), stage(database, 1, generation=2)]
    database.sessions = {("driver", 2): 1, ("driver", 3): 1}
    assert committer.commit(7, ones, soon()) == {0: Outcome.COMMITTED, 1: Outcome.COMMITTED}
    assert database.sessions == {("driver", 3): 1}
    assert database.now.rows == [0, 1]
    assert {epoch for epoch, _ in database.now.markers.values()} == {7}


def test_a_move_that_is_held_ends_nobody(database: Database, committer: SqlCommitter[Any]) -> None:
    one = stage(database, 0)
    database.sessions = {("driver", 2): 1}
    committer.seal([one], soon())
    assert database.sessions == {("driver", 2): 1}
    committer.commit(7, [one], soon())
    assert database.sessions == {("driver", 2): 1}


def test_a_move_whose_answer_was_lost_is_found_by_its_markers(database: Database, committer: SqlCommitter[Any]) -> None:
    ones = [stage(database, 0), stage(database, 1)]
    committer.seal(ones, soon())
    database.after = cut(database, 1, "COMMIT")
    assert committer.commit(7, ones, soon()) == {0: Outcome.ALREADY_COMMITTED, 1: Outcome.ALREADY_COMMITTED}
    assert sorted(database.now.rows) == [0, 1]


def test_a_move_that_was_cut_off_is_done_again(database: Database, committer: SqlCommitter[Any]) -> None:
    ones = [stage(database, 0), stage(database, 1)]
    committer.seal(ones, soon())
    database.before = cut(database, 1, "COMMIT")
    assert committer.commit(7, ones, soon()) == {0: Outcome.COMMITTED, 1: Outcome.COMMITTED}
    assert sorted(database.now.rows) == [0, 1]


def test_both_kinds_are_committed_together(database: Database, committer: SqlCommitter[Any]) -> None:
    """A sink whose mode was changed finishes what it left under the other."""
    ones = [prepare(database, 0), stage(database, 1)]
    assert committer.seal(ones, soon()) == ones
    assert committer.commit(7, ones, soon()) == {0: Outcome.COMMITTED, 1: Outcome.COMMITTED}


# Markers


def test_markers_are_pruned_now_and_then_and_a_mark_is_left(database: Database, committer: SqlCommitter[Any]) -> None:
    old, kept = "old", "kept"
    database.epoch = epoch = 5 * PRUNE_EVERY
    committer.hints()
    database.now.markers = {old: (epoch - KEPT_EPOCHS - 1, 1_500), kept: (epoch - KEPT_EPOCHS, 1_600)}
    committer.commit(epoch, [prepare(database, 0)], soon())
    assert old not in database.now.markers
    assert kept in database.now.markers
    assert database.now.pruned == 1_500
    for number in (epoch + PRUNE_EVERY - 1, epoch - PRUNE_EVERY + 1):
        committer.commit(number, [prepare(database, 1)], soon())
        assert kept in database.now.markers
    committer.commit(epoch + PRUNE_EVERY, [prepare(database, 2)], soon())
    assert kept not in database.now.markers
    assert database.now.pruned == 1_600


def test_nothing_is_pruned_while_something_is_not_visible(database: Database, committer: SqlCommitter[Any]) -> None:
    gone = prepare(database, 0)
    database.now.prepared.clear()
    committer.commit(PRUNE_EVERY, [gone, prepare(database, 1)], soon())
    assert not [statement for statement in database.said if statement.startswith("WITH gone")]


@pytest.mark.parametrize("error", [psycopg.OperationalError("cut"), psycopg.errors.LockNotAvailable("waited")])
def test_markers_that_cannot_be_pruned_are_no_failure(
    database: Database, committer: SqlCommitter[Any], error: psycopg.Error
) -> None:
    database.before = refusing(error, "WITH gone")
    assert committer.commit(PRUNE_EVERY, [prepare(database, 0)], soon()) == {0: Outcome.COMMITTED}


# Aborting


def test_exactly_these_are_aborted(database: Database, committer: SqlCommitter[Any]) -> None:
    ones = [prepare(database, 0), prepare(database, 1), stage(database, 2), stage(database, 3)]
    committer.abort([ones[0], ones[2], NOTHING], soon())
    assert list(database.now.prepared) == [name_of(ones[1])]
    assert list(database.now.staged) == [name_of(ones[3])]
    assert database.now.rows == []
    committer.abort([ones[0]], soon())
    assert committer.commit(7, [ones[0], ones[2]], soon()) == {0: Outcome.LOST, 2: Outcome.LOST}


def test_an_abort_of_nothing_says_nothing(database: Database, committer: SqlCommitter[Any]) -> None:
    committer.abort([NOTHING], soon())
    assert database.said == []


@pytest.mark.parametrize("how", ["abort", "abort_dangling", "close", "release"])
def test_a_move_that_is_held_is_let_go_first(database: Database, committer: SqlCommitter[Any], how: str) -> None:
    """Its locks would keep the sweep waiting for itself."""
    one = stage(database, 0)
    committer.seal([one], soon())
    moving = database.lines[-1]
    calls: dict[str, Callable[[], Any]] = {
        "abort": lambda: committer.abort([one], soon()),
        "abort_dangling": lambda: committer.abort_dangling([], soon()),
        "close": committer.close,
        "release": committer.release,
    }
    released: list[bool] = []
    database.before = lambda statement: released.append(not moving.open)
    calls[how]()
    assert all(released)
    assert moving.dropped
    assert database.now.rows == []


def test_a_sweep_takes_what_older_runs_left_and_spares_the_rest(
    database: Database, committer: SqlCommitter[Any]
) -> None:
    kept, newer = prepare(database, 0), prepare(database, 1, generation=4)
    kept_table, newer_table = stage(database, 2), stage(database, 3, generation=4)
    prepare(database, 4), prepare(database, 5, generation=2), stage(database, 6), stage(database, 7, generation=2)
    database.now.prepared["somebody else's"] = []
    database.sessions = {("writer", 2): 1, ("writer", 3): 2, ("writer", 4): 1, ("driver", 2): 1, ("driver", 3): 1}
    assert committer.abort_dangling([kept, kept_table, NOTHING], soon()) == 3 + 2 + 2
    assert sorted(database.now.prepared) == sorted([name_of(kept), name_of(newer), "somebody else's"])
    assert sorted(database.now.staged) == sorted([name_of(kept_table), name_of(newer_table)])
    assert database.sessions == {("writer", 4): 1, ("driver", 3): 1}
    assert (database.now.fence, database.now.swept_by, database.now.known) == (1, 3, True)


def test_errors_of_the_server_are_named_without_its_password(database: Database, committer: SqlCommitter[Any]) -> None:
    one = prepare(database, 0)
    database.before = cut(database, 100, "")
    calls: list[Callable[[], Any]] = [
        lambda: committer.seal([one], Deadline(0)),
        lambda: committer.abort([one], Deadline(0)),
        lambda: committer.abort_dangling([], Deadline(0)),
        lambda: committer.leftovers(Deadline(0)),
    ]
    for call in calls:
        with pytest.raises(SystemUnavailable, match=r"db\.example:5433/shop") as raised:
            call()
        assert "s3cret" not in str(raised.value)


def test_an_error_that_nobody_knows_says_what_was_being_done(database: Database) -> None:
    one, table, last = prepare(database, 0), stage(database, 1), prepare(database, 2)
    calls: dict[str, Callable[[SqlCommitter[Any]], Any]] = {
        "asking for the fence": lambda each: each.hints(),
        "looking for prepared transactions": lambda each: each.seal([one], soon()),
        "moving staged rows": lambda each: each.seal([table], soon()),
        "aborting": lambda each: each.abort([one], soon()),
        "sweeping": lambda each: each.abort_dangling([], soon()),
        "listing open transactions": lambda each: each.leftovers(soon()),
        "looking back": lambda each: each.missing(6, [last], soon()),
    }
    for doing, call in calls.items():
        database.before = refusing(psycopg.errors.InternalError_("cache lookup failed"), "")
        own = SqlCommitter(PostgresDialect(database.sink, SCOPE))  # type: ignore[arg-type]
        with contextlib.closing(own), pytest.raises(PreCommitFailed, match=f"PostgreSQL failed while {doing} for "):
            call(own)


def test_leftovers_are_told_as_they_are(database: Database, committer: SqlCommitter[Any]) -> None:
    one, table = prepare(database, 4), stage(database, 5)
    prepare(database, 6, generation=4), stage(database, 7, generation=4)
    assert committer.leftovers(soon()) == [
        Leftover(name_of(one), 3, 7, 4, 12.5, {"writer": name_of(one)}),
        Leftover(name_of(table), 3, payload={"writer": name_of(table)}),
    ]


def test_closing_closes_every_line_and_every_thread(database: Database) -> None:
    committer = SqlCommitter(PostgresDialect(database.sink, SinkScope("job", "out", 3)))  # type: ignore[arg-type]
    committer.commit(7, [prepare(database, n) for n in range(4)], soon())
    committer.close()
    assert [line.open for line in database.lines] == [False] * 4
    with pytest.raises(RuntimeError, match="shutdown"):
        committer.commit(7, [prepare(database, n) for n in range(4)], soon())


def test_a_proof_that_may_not_be_asked_for_is_said_at_once(database: Database, committer: SqlCommitter[Any]) -> None:
    one = prepare(database, 0)
    database.now.prepared.clear()
    database.before = refusing(psycopg.errors.InsufficientPrivilege("permission denied for table"), "SELECT ARRAY")
    with pytest.raises(AccessDenied, match="permission denied for table"):
        committer.commit(7, [one], soon())


def test_a_move_is_let_go_when_a_proof_cannot_be_asked_for(database: Database, committer: SqlCommitter[Any]) -> None:
    """Its locks would keep waiting whoever looks after the error."""
    gone, there = stage(database, 0), stage(database, 1)
    del database.now.staged[name_of(gone)]
    database.before = refusing(psycopg.errors.InsufficientPrivilege("permission denied for table"), "SELECT ARRAY")
    with pytest.raises(AccessDenied, match="permission denied for table"):
        committer.commit(7, [gone, there], soon())
    assert not database.lines[0].open
    assert committer.commit(7, [gone, there], soon()) == {0: Outcome.LOST, 1: Outcome.COMMITTED}


def test_a_login_that_was_refused_says_nothing_of_the_epoch(database: Database, committer: SqlCommitter[Any]) -> None:
    """As while a server starts, or another takes its place."""
    one = prepare(database, 0)
    database.before = refusing(psycopg.OperationalError("FATAL: password authentication failed"), "COMMIT PREPARED")
    assert committer.commit(7, [one], soon()) == {0: Outcome.COMMITTED}


def test_closing_does_not_wait_for_a_server_that_does_not_answer(database: Database) -> None:
    committer = SqlCommitter(PostgresDialect(database.sink, SCOPE))  # type: ignore[arg-type]
    asked, answered = threading.Barrier(5), threading.Event()

    def stall(statement: str) -> None:
        if not answered.is_set():
            asked.wait(10)
            answered.wait()

    ones = [prepare(database, n) for n in range(4)]
    database.before = stall
    committing = threading.Thread(target=committer.commit, args=(7, ones, soon()), daemon=True)
    committing.start()
    asked.wait(10)
    closing = threading.Thread(target=committer.close, daemon=True)
    closing.start()
    closing.join(10)
    closed = not closing.is_alive()
    answered.set()
    committing.join()
    assert closed
