"""The MySQL sink's proof, row by row, against a model of the server behind the driver's session."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from penstock.checkpoint.decision import Committable, Outcome
from penstock.contracts.sink import Leftover
from penstock.deadline import Deadline
from penstock.errors import ConstraintViolated, DataError, PreCommitFailed, SystemUnavailable
from penstock.sinks.mysql.dialect import MySqlDialect
from penstock.sinks.mysql.session import DEADLOCK, LOCK_TIMEOUT, ServerError
from penstock.sinks.mysql.tables import Names
from penstock.sinks.sql.committer import KEPT_EPOCHS, PRUNE_EVERY, SqlCommitter
from tests.support.fake_sleep import record_pauses
from tests.support.mysql_model import CUT, NAMES, SINK, Branch, Marker, Server

NOTHING = Committable("out", 9, 0, 0, {"writer": None})
AT = "2026-02-02"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    made = Server()
    monkeypatch.setattr("penstock.sinks.mysql.dialect.Session", made.connect)
    return made


@pytest.fixture(autouse=True)
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    modules = ("sql.committer", "mysql.dialect")
    return record_pauses(monkeypatch, *(f"penstock.sinks.{module}" for module in modules))


@pytest.fixture
def committer(server: Server) -> Iterator[SqlCommitter[Any]]:
    made = SqlCommitter(MySqlDialect(SINK, NAMES), "two_phase")
    yield made
    made.close()


def soon() -> Deadline:
    return Deadline(60)


def prepare(
    server: Server, writer: int, *, generation: int = 3, at: str = AT, names: Names = NAMES, owner: int | None = None
) -> Committable:
    name = f"g{generation}-e7-a1-p{writer}-{writer:016x}"
    server.prepared[name] = Branch(names, [writer], owner)
    server.markers[name] = Marker(7, generation, 5, at)
    payload = {"kind": "prepared", "writer": name, "at": at, "epoch": 7, "rows": 1, "target": names.target}
    return Committable("out", writer, 1, 0, payload)


def stage(
    server: Server, writer: int, *, generation: int = 3, at: str = AT, names: Names = NAMES, key: tuple[str, ...] = ()
) -> Committable:
    name = f"{names.staging_prefix}{generation}_{writer:012x}"
    server.staged[name] = [writer]
    payload = {"kind": "staged", "writer": name, "at": at, "epoch": 7, "rows": 1, "columns": ["id"], "key": list(key)}
    return Committable("out", writer, 1, 0, {**payload, "target": names.target})


def name_of(one: Committable) -> str:
    return str(one.payload["writer"])


def gone(server: Server, *ones: Committable) -> None:
    """As if somebody had rolled back or dropped them."""
    for one in ones:
        for where in (server.prepared, server.staged, server.markers):
            where.pop(name_of(one), None)


def failing(beginning: str, *errors: ServerError) -> Callable[[str], None]:
    left = list(errors)

    def fail(statement: str) -> None:
        if statement.startswith(beginning) and left:
            raise left.pop(0)

    return fail


def cut(beginning: str, times: int = 1) -> Callable[[str], None]:
    return failing(beginning, *(ServerError(CUT, "Lost connection", lost=True) for _ in range(times)))


# Hints


def test_writers_are_told_the_mode_and_the_fence(server: Server, committer: SqlCommitter[Any]) -> None:
    assert committer.hints() == {"mode": "two_phase", "fence": 0}
    committer.abort_dangling([], soon())
    assert committer.hints() == {"mode": "two_phase", "fence": 1}


# Sealing


def test_what_is_prepared_and_there_is_sealed(server: Server, committer: SqlCommitter[Any]) -> None:
    ones = [prepare(server, 0), stage(server, 1), NOTHING]
    assert committer.seal(ones, soon()) == ones
    assert committer.seal([NOTHING], soon()) == [NOTHING]


@pytest.mark.parametrize("kind", [prepare, stage])
def test_what_is_gone_is_not_sealed(
    server: Server, committer: SqlCommitter[Any], kind: Callable[..., Committable]
) -> None:
    ones = [prepare(server, 0), stage(server, 1), kind(server, 2)]
    gone(server, ones[2])
    with pytest.raises(PreCommitFailed, match=f"1 of 2 .* for orders are gone, among them {name_of(ones[2])}"):
        committer.seal(ones, soon())


def test_what_is_already_committed_is_not_sealed(server: Server, committer: SqlCommitter[Any]) -> None:
    one = prepare(server, 0)
    server.markers[name_of(one)].committed = True
    with pytest.raises(PreCommitFailed):
        committer.seal([one], soon())


def test_staged_rows_are_moved_before_the_decision_and_seen_after_it(
    server: Server, committer: SqlCommitter[Any]
) -> None:
    ones = [stage(server, 1), stage(server, 0)]
    committer.seal(ones, soon())
    assert server.rows == {}
    said = len(server.said)
    assert committer.commit(7, ones, soon()) == {0: Outcome.COMMITTED, 1: Outcome.COMMITTED}
    assert server.said[said] == "COMMIT", "only that is left after the decision"
    assert server.rows == {"orders": [0, 1]}
    assert server.staged == {}
    assert {name: (one.epoch, one.committed) for name, one in server.markers.items()} == {
        name_of(one): (7, True) for one in ones
    }


def test_a_row_that_breaks_a_rule_is_found_before_the_decision(server: Server, committer: SqlCommitter[Any]) -> None:
    one = stage(server, 0)
    server.before = failing("INSERT INTO `shop`.`orders`", ServerError(1062, "Duplicate entry"))
    with pytest.raises(DataError, match=r"orders.*Duplicate entry"):
        committer.seal([one], soon())
    assert server.markers == {}, "its trial is rolled back"


# Committing XA


@pytest.mark.parametrize("count", [1, 3, 9])
def test_prepared_transactions_are_committed_once(server: Server, committer: SqlCommitter[Any], count: int) -> None:
    ones = [prepare(server, n) for n in range(count)]
    outcomes = committer.commit(7, [*ones, NOTHING], soon())
    assert outcomes == dict.fromkeys([*range(count), 9], Outcome.COMMITTED)
    assert sorted(server.rows["orders"]) == list(range(count))
    again = committer.commit(7, ones, soon())
    assert again == dict.fromkeys(range(count), Outcome.ALREADY_COMMITTED)
    assert len(server.rows["orders"]) == count


def test_a_commit_whose_answer_was_lost_is_found_by_its_marker(server: Server, committer: SqlCommitter[Any]) -> None:
    one = prepare(server, 0)
    server.after = cut("XA COMMIT")
    assert committer.commit(7, [one], soon()) == {0: Outcome.ALREADY_COMMITTED}
    assert server.rows == {"orders": [0]}
    assert committer.hints() == {"mode": "two_phase", "fence": 0}
    assert len(server.sessions) == 2, "the connection that took its place stays"


def test_a_transaction_that_its_writer_still_owns_is_waited_for(server: Server, committer: SqlCommitter[Any]) -> None:
    one = prepare(server, 0, owner=5)
    waits = iter(range(3))

    def let_go(statement: str) -> None:
        if statement.startswith("XA COMMIT") and next(waits, None) is None:
            server.prepared[name_of(one)].owner = None

    server.before = let_go
    assert committer.commit(7, [one], soon()) == {0: Outcome.COMMITTED}


@pytest.mark.parametrize(
    ("at", "outcome"), [("2025-12-31", Outcome.UNKNOWN), ("2026-01-01", Outcome.UNKNOWN), (AT, Outcome.LOST)]
)
@pytest.mark.parametrize("kind", [prepare, stage])
def test_gone_without_a_marker_is_lost_only_if_its_marker_cannot_have_been_pruned(
    server: Server, committer: SqlCommitter[Any], kind: Callable[..., Committable], at: str, outcome: Outcome
) -> None:
    one = kind(server, 0, at=at)
    gone(server, one)
    assert committer.commit(7, [one], soon()) == {0: outcome}


def test_after_the_deadline_nothing_is_committed(server: Server, committer: SqlCommitter[Any]) -> None:
    assert committer.commit(7, [prepare(server, 0), NOTHING], Deadline(0)) == {0: Outcome.UNKNOWN, 9: Outcome.COMMITTED}
    assert server.rows == {}


# Committing what is staged


def test_a_restart_moves_what_the_last_driver_had_not_committed(server: Server, committer: SqlCommitter[Any]) -> None:
    ones = [stage(server, 0, generation=2), stage(server, 1, generation=2)]
    assert committer.commit(7, ones, soon()) == {0: Outcome.COMMITTED, 1: Outcome.COMMITTED}
    assert server.rows == {"orders": [0, 1]}
    assert server.staged == {}


def test_a_restart_cuts_off_a_driver_that_still_holds_its_move(server: Server, committer: SqlCommitter[Any]) -> None:
    ones = [stage(server, 0), stage(server, 1)]
    old = SqlCommitter(MySqlDialect(SINK, replace(NAMES, generation=2)), "staged")
    old.seal(ones, soon())
    assert committer.commit(7, ones, soon()) == {0: Outcome.COMMITTED, 1: Outcome.COMMITTED}
    assert set(server.killed) == {100}
    assert server.rows == {"orders": [0, 1]}


def test_a_move_whose_answer_was_lost_is_found_by_its_markers(server: Server, committer: SqlCommitter[Any]) -> None:
    ones = [stage(server, 0), stage(server, 1)]
    committer.seal(ones, soon())
    server.after = cut("COMMIT")
    assert committer.commit(7, ones, soon()) == {0: Outcome.ALREADY_COMMITTED, 1: Outcome.ALREADY_COMMITTED}
    assert server.rows == {"orders": [0, 1]}
    assert server.staged == {}, "the tables go, now that they are proven"


def test_a_move_that_was_cut_off_is_done_again(server: Server, committer: SqlCommitter[Any]) -> None:
    ones = [stage(server, 0), stage(server, 1)]
    committer.seal(ones, soon())
    server.before = cut("COMMIT")
    assert committer.commit(7, ones, soon()) == {0: Outcome.COMMITTED, 1: Outcome.COMMITTED}
    assert server.rows == {"orders": [0, 1]}


def test_a_connection_that_closed_within_a_move_is_not_replaced_unseen(
    server: Server, committer: SqlCommitter[Any]
) -> None:
    """What follows would not be in the transaction that was begun."""
    one = stage(server, 0)
    times = iter(range(1))

    def close(statement: str) -> None:
        if statement == "START TRANSACTION" and next(times, None) is not None:
            server.sessions[-1].close()

    server.after = close
    assert committer.commit(7, [one], soon()) == {0: Outcome.COMMITTED}
    assert server.said.count("START TRANSACTION") == 2
    assert server.rows == {"orders": [0]}


def test_of_an_epoch_that_is_partly_there_only_the_rest_is_moved(server: Server, committer: SqlCommitter[Any]) -> None:
    done, lost, left = (stage(server, n) for n in range(3))
    server.markers[name_of(done)] = Marker(7, 3, 5, AT, committed=True)
    del server.staged[name_of(lost)]
    outcomes = committer.commit(7, [done, lost, left], soon())
    assert outcomes == {0: Outcome.ALREADY_COMMITTED, 1: Outcome.LOST, 2: Outcome.COMMITTED}
    assert server.rows == {"orders": [2]}
    assert server.staged == {}


def test_a_move_that_came_through_in_between_is_found_by_its_marker(
    server: Server, committer: SqlCommitter[Any]
) -> None:
    one = stage(server, 0)

    def come_through(statement: str) -> None:
        if statement == "START TRANSACTION":
            server.markers[name_of(one)] = Marker(7, 2, 5, AT, committed=True)

    server.before = come_through
    assert committer.commit(7, [one], soon()) == {0: Outcome.ALREADY_COMMITTED}
    assert server.rows == {}


@pytest.mark.parametrize(("first", "second"), [(0, 1), (1, 0)])
def test_another_epoch_than_the_one_that_was_tried_is_moved_itself(
    server: Server, committer: SqlCommitter[Any], first: int, second: int
) -> None:
    tried, other = stage(server, first), stage(server, second)
    committer.seal([tried], soon())
    assert committer.commit(7, [other], soon()) == {second: Outcome.COMMITTED}
    assert server.rows == {"orders": [second]}
    assert name_of(tried) in server.staged


@pytest.mark.parametrize("code", [LOCK_TIMEOUT, DEADLOCK])
def test_a_lock_is_waited_for(server: Server, committer: SqlCommitter[Any], code: int) -> None:
    one = stage(server, 0)
    server.before = failing("INSERT INTO `shop`.`orders`", ServerError(code, "locked"), ServerError(code, "locked"))
    assert committer.commit(7, [one], soon()) == {0: Outcome.COMMITTED}


def test_a_lock_is_not_waited_for_beyond_the_deadline(server: Server, committer: SqlCommitter[Any]) -> None:
    now = [0.0]
    done, held = stage(server, 0), stage(server, 1)
    server.markers[name_of(done)] = Marker(7, 3, 5, AT, committed=True)

    def locked(statement: str) -> None:
        if statement.startswith("INSERT INTO `shop`.`orders`"):
            now[0] += 1
            raise ServerError(LOCK_TIMEOUT, "locked")

    server.before = locked
    outcomes = committer.commit(7, [done, held], Deadline(3, clock=lambda: now[0]))
    assert outcomes == {0: Outcome.ALREADY_COMMITTED, 1: Outcome.UNKNOWN}
    assert now[0] == 3


def test_what_no_trying_cures_stays_in_its_table(server: Server, committer: SqlCommitter[Any]) -> None:
    one = stage(server, 0)
    server.before = failing("INSERT INTO `shop`.`orders`", ServerError(1062, "Duplicate entry"))
    assert committer.commit(7, [one], soon()) == {0: Outcome.UNKNOWN}
    assert name_of(one) in server.staged
    assert committer.commit(7, [one], soon()) == {0: Outcome.COMMITTED}, "once it can be moved"


def test_a_table_that_somebody_changed_is_not_moved(server: Server, committer: SqlCommitter[Any]) -> None:
    one = stage(server, 0)
    server.staged[name_of(one)].append(7)
    assert committer.commit(7, [one], soon()) == {0: Outcome.UNKNOWN}
    assert server.rows == {}


@pytest.mark.parametrize(
    ("there", "left_out", "error", "text"),
    [
        ([0], 1, ConstraintViolated, "1 were sent, and by the server's count 0 are there"),
        ([0, 7], 0, PreCommitFailed, "Of 2 rows .* had put 1, 2 would be moved"),
        ([], 0, PreCommitFailed, "Of 0 rows .* had put 1, 0 would be moved"),
    ],
)
def test_rows_are_counted_before_the_decision_and_after_it(
    server: Server, committer: SqlCommitter[Any], there: list[int], left_out: int, error: Any, text: str
) -> None:
    """Of one row that was loaded; a trigger that leaves rows out is told from a table that somebody changed."""
    one = stage(server, 0)
    server.staged[name_of(one)], server.left_out = there, left_out
    with pytest.raises(error, match=text):
        committer.seal([one], soon())
    assert committer.commit(7, [one], soon()) == {0: Outcome.UNKNOWN}
    assert server.rows == server.markers == {}


def test_a_staging_table_that_cannot_be_dropped_is_left_to_the_sweep(
    server: Server, committer: SqlCommitter[Any]
) -> None:
    one = stage(server, 0)
    server.before = failing("DROP TABLE", ServerError(1142, "DROP command denied"))
    assert committer.commit(7, [one], soon()) == {0: Outcome.COMMITTED}
    assert server.rows == {"orders": [0]}


def test_both_ways_are_committed_together(server: Server, committer: SqlCommitter[Any]) -> None:
    """A sink whose mode was changed finishes what it left under the other. A trial of another epoch is let go first:
    its locks would keep the rest waiting."""
    stray = stage(server, 5)
    committer.seal([stray], soon())
    one = prepare(server, 0)

    def nothing_held(statement: str) -> None:
        if statement.startswith("XA COMMIT"):
            assert name_of(stray) not in server.markers

    server.before = nothing_held
    assert committer.commit(7, [one, NOTHING], soon()) == {0: Outcome.COMMITTED, 9: Outcome.COMMITTED}
    assert name_of(stray) in server.staged


# A table that the program has left


def test_what_was_written_for_another_table_is_ended_there(server: Server, committer: SqlCommitter[Any]) -> None:
    former = replace(NAMES, table="former")
    ones = [prepare(server, 0), prepare(server, 1, names=former), stage(server, 2, names=former)]
    assert committer.commit(7, ones, soon()) == dict.fromkeys(range(3), Outcome.COMMITTED)
    assert server.rows == {"orders": [0], "former": [2, 1]}
    assert [session.open for session in server.sessions].count(True) == 1, "its connection is closed again"


def test_what_was_written_for_another_table_is_aborted_there(server: Server, committer: SqlCommitter[Any]) -> None:
    former = replace(NAMES, table="former")
    ones = [prepare(server, 0), prepare(server, 1, names=former), stage(server, 2, names=former)]
    committer.abort(ones, soon())
    assert (server.prepared, server.staged, server.rows) == ({}, {}, {})
    assert [session.open for session in server.sessions].count(True) == 1


# Markers


def test_markers_are_pruned_now_and_then_and_a_mark_is_left(server: Server, committer: SqlCommitter[Any]) -> None:
    def epoch(number: int) -> None:
        one = stage(server, number)
        committer.commit(number, [one], soon())

    server.markers = {
        "older": Marker(99 - KEPT_EPOCHS, 3, 5, "2026-01-02", committed=True),
        "newer": Marker(99 - KEPT_EPOCHS, 4, 5, "2026-01-04", committed=True),
        "kept": Marker(100 - KEPT_EPOCHS, 3, 5, "2026-01-03", committed=True),
    }
    epoch(100)
    assert "older" not in server.markers
    assert {"newer", "kept"} <= server.markers.keys()
    assert server.pruned == "2026-01-02"
    for number in (100 + PRUNE_EVERY - 1, 100 - PRUNE_EVERY + 1):
        epoch(number)
        assert "kept" in server.markers
    epoch(100 + PRUNE_EVERY)
    assert "kept" not in server.markers


def test_nothing_is_pruned_while_something_is_not_visible(server: Server, committer: SqlCommitter[Any]) -> None:
    one = prepare(server, 0)
    gone(server, one)
    server.markers["old"] = Marker(0, 3, 5, AT, committed=True)
    committer.commit(500, [one], soon())
    assert "old" in server.markers
    committer.commit(500, [prepare(server, 1)], soon())
    assert "old" not in server.markers


def test_markers_that_cannot_be_pruned_are_no_failure(server: Server, committer: SqlCommitter[Any]) -> None:
    server.before = failing("SELECT writer, CAST(at", ServerError(LOCK_TIMEOUT, "locked"))
    assert committer.commit(500, [prepare(server, 0)], soon()) == {0: Outcome.COMMITTED}


def test_a_pruning_that_was_broken_off_leaves_no_transaction_open(server: Server, committer: SqlCommitter[Any]) -> None:
    server.markers["old"] = Marker(0, 3, 5, AT, committed=True)
    server.before = failing("DELETE FROM", ServerError(LOCK_TIMEOUT, "locked"))
    assert committer.commit(500, [prepare(server, 0)], soon()) == {0: Outcome.COMMITTED}
    assert not server.sessions[0].open


# Aborting


def test_exactly_these_are_aborted(server: Server, committer: SqlCommitter[Any]) -> None:
    ones = [prepare(server, 0), prepare(server, 1), stage(server, 2), stage(server, 3)]
    committer.abort([ones[0], ones[2], NOTHING], soon())
    assert list(server.prepared) == [name_of(ones[1])]
    assert list(server.staged) == [name_of(ones[3])]
    committer.abort([ones[0]], soon())
    assert committer.commit(7, [ones[0], ones[2]], soon()) == {0: Outcome.LOST, 2: Outcome.LOST}


def test_what_cannot_be_rolled_back_in_time_is_said(server: Server, committer: SqlCommitter[Any]) -> None:
    one, table = prepare(server, 0), stage(server, 1)
    with pytest.raises(SystemUnavailable, match=f"1 open transactions on orders .* among them {name_of(one)}"):
        committer.abort([one, table], Deadline(0))
    assert name_of(table) in server.staged


@pytest.mark.parametrize("how", ["abort", "abort_dangling", "close"])
def test_a_trial_move_is_let_go_first(server: Server, committer: SqlCommitter[Any], how: str) -> None:
    """Its locks would keep the sweep waiting for itself."""
    one = stage(server, 0)
    committer.seal([one], soon())
    calls: dict[str, Callable[[], Any]] = {
        "abort": lambda: committer.abort([one], soon()),
        "abort_dangling": lambda: committer.abort_dangling([], soon()),
        "close": committer.close,
    }
    calls[how]()
    assert server.killed == [], "nobody had to be cut off"
    assert server.markers == server.rows == {}
    assert (name_of(one) in server.staged) is (how == "close")
    assert committer.commit(7, [one], soon())[0] is (Outcome.COMMITTED if how == "close" else Outcome.LOST)


def test_a_sweep_takes_what_older_runs_left_and_spares_the_rest(server: Server, committer: SqlCommitter[Any]) -> None:
    kept, newer = prepare(server, 0), prepare(server, 1, generation=4)
    kept_table, newer_table = stage(server, 2), stage(server, 3, generation=4)
    prepare(server, 4), prepare(server, 5, generation=2), stage(server, 6), stage(server, 7, generation=2)
    server.markers["somebody else's"] = Marker(7, 1, 5, AT)
    server.staged[f"{NAMES.staging_prefix}odd"] = []
    assert committer.abort_dangling([kept, kept_table, NOTHING], soon()) == 4
    assert sorted(server.prepared) == sorted([name_of(kept), name_of(newer)])
    left = {name_of(kept_table), name_of(newer_table), f"{NAMES.staging_prefix}odd"}
    assert set(server.staged) == left
    assert (server.fence, server.swept_by) == (1, 3)


def test_the_fence_is_raised_before_leftovers_are_looked_for(server: Server, committer: SqlCommitter[Any]) -> None:
    """A writer that is in neither list will see it before it prepares."""
    committer.abort_dangling([], soon())
    raised = next(n for n, statement in enumerate(server.said) if "SET fence" in statement)
    looked = next(n for n, statement in enumerate(server.said) if "READ UNCOMMITTED" in statement)
    assert raised < looked
    assert any("information_schema.tables" in statement for statement in server.said[:raised])


def test_leftovers_are_told_as_they_are(server: Server, committer: SqlCommitter[Any]) -> None:
    one, table = prepare(server, 4), stage(server, 5)
    prepare(server, 6, generation=4), stage(server, 7, generation=4)
    server.markers["g3 but not ours"] = Marker(7, 3, 5, AT)
    since = datetime(2026, 2, 2, 0, 0, 0, 500_000, tzinfo=UTC).timestamp()
    assert committer.leftovers(soon()) == [
        Leftover(name_of(one), 3, 7, 4, since, {"writer": name_of(one)}),
        Leftover(name_of(table), 3, None, None, None, {"writer": name_of(table)}),
    ]


# The connection


def test_a_connection_that_idled_too_long_is_no_failure(server: Server, committer: SqlCommitter[Any]) -> None:
    committer.hints()
    server.before = cut("SELECT fence")
    assert committer.hints() == {"mode": "two_phase", "fence": 0}
    assert len(server.sessions) <= 2


def test_a_server_that_comes_back_in_time_is_waited_for(
    server: Server, committer: SqlCommitter[Any], pauses: list[float]
) -> None:
    one = prepare(server, 0)
    server.refused = 3
    assert committer.seal([one], soon()) == [one]
    assert pauses == [0.02] * 3


def test_a_server_that_stays_away_is_an_error_without_its_password(
    server: Server, committer: SqlCommitter[Any]
) -> None:
    one = prepare(server, 0)
    server.refused = 1_000
    calls: list[Callable[[], Any]] = [
        lambda: committer.seal([one], Deadline(0)),
        lambda: committer.abort([one], Deadline(0)),
        lambda: committer.abort_dangling([], Deadline(0)),
        lambda: committer.leftovers(Deadline(0)),
    ]
    for call in calls:
        with pytest.raises(SystemUnavailable, match=r"db\.example:3307/shop") as raised:
            call()
        assert "s3cret" not in str(raised.value)


def test_a_connection_lost_in_a_trial_is_made_again_and_the_trial_too(
    server: Server, committer: SqlCommitter[Any]
) -> None:
    ones = [stage(server, 0), stage(server, 1)]
    server.before = cut("INSERT INTO `shop`.`orders`")
    committer.seal(ones, soon())
    assert len(server.sessions) == 2
    assert committer.commit(7, ones, soon()) == {0: Outcome.COMMITTED, 1: Outcome.COMMITTED}
    assert server.rows == {"orders": [0, 1]}


def test_no_answer_is_waited_for_beyond_the_deadline(server: Server, committer: SqlCommitter[Any]) -> None:
    committer.seal([prepare(server, 0)], Deadline(7, clock=lambda: 0.0))
    assert server.sessions[0].limits == [7.0]
    committer.commit(500, [prepare(server, 1)], Deadline(5, clock=lambda: 0.0))
    assert 5 < server.sessions[0].limits[-1] <= 10, "the pruning has a deadline of its own"


def test_a_session_that_is_given_is_used_and_closed(server: Server) -> None:
    session = server.connect(SINK, seconds=60)
    committer = SqlCommitter(MySqlDialect(SINK, NAMES), "staged", session)  # type: ignore[misc]
    assert committer.hints() == {"mode": "staged", "fence": 0}
    assert len(server.sessions) == 1
    committer.close()
    assert not session.open
    committer.close()


def test_a_trial_is_let_go_before_the_next_one(server: Server, committer: SqlCommitter[Any]) -> None:
    """An epoch that was given up after its trial: to begin another transaction would commit it."""
    given_up, again = stage(server, 0), stage(server, 1)
    committer.seal([given_up], soon())
    committer.seal([again], soon())
    assert server.rows == {}
    assert committer.commit(7, [again], soon()) == {1: Outcome.COMMITTED}
    assert server.rows == {"orders": [1]}


def test_a_trial_is_let_go_before_anything_is_dropped(server: Server, committer: SqlCommitter[Any]) -> None:
    """A DROP would commit it."""
    tried, done = stage(server, 0), stage(server, 1)
    server.markers[name_of(done)] = Marker(7, 3, 5, AT, committed=True)
    committer.seal([tried], soon())
    assert committer.commit(7, [done], soon()) == {1: Outcome.ALREADY_COMMITTED}
    assert server.rows == {}
    assert list(server.staged) == [name_of(tried)]


def test_a_move_cuts_off_nobody_else(server: Server, committer: SqlCommitter[Any]) -> None:
    """A writer that is just at work, of a sink whose mode was changed."""
    server.markers["g3-e8-a1-p0-0000000000000000"] = Marker(8, 3, 77, AT)
    assert committer.commit(7, [stage(server, 0)], soon()) == {0: Outcome.COMMITTED}
    assert server.killed == []


def test_where_all_was_written_for_another_table_that_one_is_asked_alone(
    server: Server, committer: SqlCommitter[Any]
) -> None:
    former = replace(NAMES, table="former")
    assert committer.commit(7, [stage(server, 2, names=former)], soon()) == {2: Outcome.COMMITTED}
    committer.abort([stage(server, 3, names=former)], soon())
    assert server.staged == {}
    elsewhere = replace(NAMES, database="other")
    committer.abort([prepare(server, 4, names=elsewhere)], soon())
    assert server.prepared == {}


def test_every_step_ends_with_its_deadline(server: Server, committer: SqlCommitter[Any]) -> None:
    deadline = Deadline(7, clock=lambda: 0.0)
    one, other = stage(server, 0), stage(server, 1)
    committer.seal([one], deadline)
    committer.commit(500, [other], deadline)
    committer.abort([one], deadline)
    committer.abort_dangling([], deadline)
    committer.leftovers(deadline)
    limits = [limit for session in server.sessions for limit in session.limits]
    [pruning] = [limit for limit in limits if limit != 7.0]
    assert 7 < pruning <= 10
    assert len(limits) >= 7


def test_times_are_the_servers_whatever_the_drivers_clock_is_set_to(
    server: Server, committer: SqlCommitter[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(server, 4)
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    try:
        [found] = committer.leftovers(soon())
    finally:
        monkeypatch.undo()
        time.tzset()
    assert found.started == datetime(2026, 2, 2, 0, 0, 0, 500_000, tzinfo=UTC).timestamp()


def test_hints_wait_for_no_longer_than_an_epoch_can(server: Server, committer: SqlCommitter[Any]) -> None:
    committer.hints()
    assert server.sessions[0].limits[0] <= 5
    assert server.patience[0] <= 5


def test_a_connection_is_waited_for_no_longer_than_its_step(server: Server, committer: SqlCommitter[Any]) -> None:
    committer.seal([prepare(server, 0)], Deadline(7, clock=lambda: 0.0))
    assert server.patience == [7.0]


def test_an_idle_connection_is_replaced_without_a_pause(
    server: Server, committer: SqlCommitter[Any], pauses: list[float]
) -> None:
    one = prepare(server, 0)
    committer.seal([one], soon())
    server.before = cut("SET TRANSACTION")
    assert committer.seal([one], soon()) == [one]
    assert pauses == []
