"""A sink's hints to its writers are knowledge that may be missing: no epoch waits for a sink that is away for it."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from penstock.contracts.sink import SinkScope
from penstock.deadline import Deadline
from penstock.engine.attempt import Attempt
from penstock.engine.inflight import _newest
from penstock.engine.preparation import Assignments
from penstock.engine.task import Route, Writing
from penstock.errors import AccessDenied, PenstockError, SystemUnavailable
from penstock.sinks.mysql.dialect import MySqlDialect
from penstock.sinks.mysql.session import ServerError
from penstock.sinks.mysql.sink import MySqlSink
from penstock.sinks.mysql.tables import Names
from penstock.sinks.sql import committer as sql
from penstock.sinks.tables import committer as tables
from penstock.sinks.tables.target import Known

# Where an epoch asks


def ways(route: Route, answer: Mapping[str, Any] | PenstockError) -> tuple[Writing, dict[str, Any], int]:
    """Which way the rows go, what the writers are told, and how often the sink was asked."""
    asked: list[str] = []

    def hints(uid: str) -> Mapping[str, Any]:
        asked.append(uid)
        if isinstance(answer, PenstockError):
            raise answer
        return answer

    inflight: Any = SimpleNamespace(
        writing=lambda uid, seconds: Writing(route, "logs", 9.0), with_hints=lambda uid, own: own
    )
    committers: Any = {"out": SimpleNamespace(hints=lambda: hints("out"))}
    nothing: Any = None
    attempt = Attempt("query", 1, 1, 1, frame=nothing, barrier=nothing, jobs=nothing)
    assignment = Assignments("job", attempt, None, committers, inflight).of("out")
    return assignment.writing, dict(assignment.hints), len(asked)


@pytest.mark.parametrize("route", [Route.LOG, Route.COUNT])
def test_a_sink_that_gets_no_rows_is_not_asked(route: Route) -> None:
    assert ways(route, SystemUnavailable("Away.")) == (Writing(route, "logs", 9.0), {}, 0)


@pytest.mark.parametrize("route", [Route.SINK, Route.TEE, Route.DIRECT])
def test_a_sink_that_answers_is_listened_to(route: Route) -> None:
    assert ways(route, {"fence": 3}) == (Writing(route, "logs", 9.0), {"fence": 3}, 1)


def test_an_epoch_that_can_goes_by_the_log_when_the_sink_is_away() -> None:
    assert ways(Route.TEE, SystemUnavailable("Away.")) == (Writing(Route.LOG, "logs"), {}, 1)


def test_an_epoch_that_cannot_says_what_is_wrong() -> None:
    with pytest.raises(SystemUnavailable):
        ways(Route.SINK, SystemUnavailable("Away."))


def test_what_no_delivery_could_cure_is_not_put_off() -> None:
    with pytest.raises(AccessDenied):
        ways(Route.TEE, AccessDenied("Wrong password."))


def test_the_newer_of_two_hints_counts() -> None:
    own = {"mode": "staged", "fence": 5, "committed": {"a": 7, "b": 1}, "table": {"position": {"snapshot": 4}}}
    its = {"mode": "other", "fence": 6, "committed": {"a": 5, "b": 2, "c": 3}, "table": {"position": {"snapshot": 9}}}
    assert _newest(own, its) == {
        "mode": "staged",
        "fence": 6,
        "committed": {"a": 7, "b": 2, "c": 3},
        "table": {"position": {"snapshot": 4}},
    }


# MySQL


class Server:
    """A session whose server counts a fence, and can go away."""

    def __init__(self) -> None:
        self.fence, self.away, self.asked, self.open = 0, False, 0, True
        self.goes_when_raised = False

    def query(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        self._talk()
        if "UTC_TIMESTAMP" in statement:
            return [("2026-01-01 00:00:00.000000",)]
        return [(self.fence,)] if "fence" in statement else []

    def execute(self, statement: str, values: Sequence[Any] = ()) -> int:
        self._talk()
        if "fence + 1" in statement:
            self.fence += 1
            self.away = self.goes_when_raised
            if self.away:
                self._talk()
        return 0

    def limit(self, deadline: Deadline) -> None:
        self.deadline = deadline

    def close(self) -> None:
        self.open = False

    def _talk(self) -> None:
        self.asked += 1
        if self.away:
            raise ServerError(2013, "Lost connection to server", lost=True)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    made = Server()

    def connect(*_: Any, **__: Any) -> Server:
        made._talk()
        made.open = True
        return made

    monkeypatch.setattr("penstock.sinks.mysql.dialect.Session", connect)
    monkeypatch.setattr(sql, "_HINT_SECONDS", 0.1)
    return made


def mysql_committer(server: Server) -> sql.SqlCommitter[Any]:
    sink = MySqlSink(table="shop.orders", host="host", user="user", password="password")
    return sql.SqlCommitter(MySqlDialect(sink, Names("job:out", "shop", "orders", 1)), "two_phase", server)


def test_mysql_knows_its_fence_by_heart(server: Server) -> None:
    committer = mysql_committer(server)
    committer.abort_dangling([], Deadline(1))
    server.away = True
    asked = server.asked
    assert committer.hints() == {"mode": "two_phase", "fence": 1}
    assert server.asked == asked


def test_mysql_that_is_away_before_the_first_sweep_keeps_no_epoch_waiting(server: Server) -> None:
    committer = mysql_committer(server)
    server.away = True
    assert committer.hints() == {"mode": "two_phase"}
    server.away = False
    assert committer.hints() == {"mode": "two_phase", "fence": 0}


def test_mysql_forgets_a_fence_that_it_may_have_raised(server: Server) -> None:
    committer = mysql_committer(server)
    committer.abort_dangling([], Deadline(1))
    server.goes_when_raised = True
    with pytest.raises(SystemUnavailable):
        committer.abort_dangling([], Deadline(0))
    server.away = False
    assert committer.hints() == {"mode": "two_phase", "fence": server.fence}


# Delta and Iceberg


class Table:
    """A table whose storage can stop answering, or refuse."""

    where = "the table"

    def __init__(self) -> None:
        self.answers = threading.Event()
        self.error: PenstockError | None = None
        self.looks = 0
        self.known = Known(pa.schema([("value", pa.string())]), (), {"version": 1}, {})

    def look(self) -> Known:
        self.looks += 1
        self.answers.wait()
        if self.error is not None:
            raise self.error
        return self.known


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> Table:
    monkeypatch.setattr(tables, "_HINT_SECONDS", 0.05)
    return Table()


def table_committer(table: Table) -> tables.TableCommitter:
    return tables.TableCommitter(table, SinkScope("job", "out", 1))  # type: ignore[arg-type]


def test_a_table_that_does_not_answer_keeps_no_epoch_waiting(table: Table) -> None:
    committer = table_committer(table)
    told: list[Mapping[str, Any]] = []
    epochs = threading.Thread(target=lambda: told.extend([committer.hints(), committer.hints()]), daemon=True)
    epochs.start()
    epochs.join(10)
    assert told == [{}, {}]
    assert table.looks == 1, "one question at a time"
    table.answers.set()
    committer._asked.exception()  # type: ignore[union-attr]
    table.known = Known(table.known.schema, (), {"version": 2}, {})
    assert committer.hints() == {"table": table.known.to_json()}, "and the answer that came late is out of date"


def test_a_table_that_refuses_keeps_no_epoch_waiting(table: Table) -> None:
    table.answers.set()
    table.error = SystemUnavailable("Away.")
    assert table_committer(table).hints() == {}
    table.error = AccessDenied("Wrong key.")
    with pytest.raises(AccessDenied):
        table_committer(table).hints()
