"""A MariaDB of a few lines, behind the driver's session: XA transactions, staging tables, markers, connections.

As the server does, it answers XA COMMIT of a transaction with error 1397 whether that is finished, unknown or still
owned by a connection; and shows markers that are not committed to whoever asks for READ UNCOMMITTED.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from penstock.contracts.sink import SinkScope
from penstock.deadline import Deadline
from penstock.sinks.mysql.session import DUPLICATE, LOCK_TIMEOUT, XA_UNKNOWN, ServerError
from penstock.sinks.mysql.sink import MySqlSink
from penstock.sinks.mysql.tables import FORMAT, Names

SCOPE = SinkScope("job", "out", 3)
SINK = MySqlSink(table="shop.orders", host="db.example", port=3307, user="alice", password="s3cret")
NAMES = Names.of(SCOPE, "shop", "orders")
CUT = 2013


@dataclass
class Marker:
    epoch: int
    generation: int
    connection: int
    at: str
    committed: bool = False


@dataclass
class Branch:
    """A prepared XA transaction; `owner` is the connection that has not let it go yet."""

    names: Names
    rows: list[int]
    owner: int | None = None


class Server:
    """`before` and `after` are called around each statement: a test may look, interfere, or cut the connection."""

    def __init__(self) -> None:
        self.markers: dict[str, Marker] = {}
        self.prepared: dict[str, Branch] = {}
        self.staged: dict[str, list[int]] = {}
        self.rows: dict[str, list[int]] = {}
        self.pruned, self.fence, self.swept_by = "2026-01-01", 0, 0
        self.sessions: list[Session] = []
        self.killed: list[int] = []
        self.said: list[str] = []
        self.refused = 0  # connections to refuse
        self.left_out = 0  # rows that a trigger leaves out of each move
        self.patience: list[float] = []  # of each connection that was made
        self.before: Callable[[str], None] = lambda statement: None
        self.after: Callable[[str], None] = lambda statement: None

    def connect(self, sink: MySqlSink, *, seconds: float = 120.0) -> Session:
        assert sink == SINK
        assert 0 <= seconds <= 60
        self.patience.append(seconds)
        if self.refused:
            self.refused -= 1
            raise ServerError(2003, "Can't connect", lost=True)
        self.sessions.append(Session(self, len(self.sessions) + 100))
        return self.sessions[-1]


class Session:
    """Stands in for `penstock.sinks.mysql.session.Session`."""

    def __init__(self, server: Server, number: int) -> None:
        self._server, self.id, self.open = server, number, True
        self.limits: list[float] = []
        self._within: list[tuple[str, str, list[int]]] | None = None  # writer, table, rows of an open transaction
        self._uncommitted = self._broken = False

    def limit(self, deadline: Deadline) -> None:
        self.deadline = deadline
        self.limits.append(deadline.remaining())

    def close(self) -> None:
        self.open = False
        self._roll_back()
        for branch in self._server.prepared.values():
            branch.owner = None if branch.owner == self.id else branch.owner

    def execute(self, statement: str, values: Any = ()) -> int:
        return int(self._say(statement, list(values), self._change) or 0)

    def query(self, statement: str, values: Any = ()) -> list[tuple[Any, ...]]:
        found: list[tuple[Any, ...]] = self._say(statement, list(values), self._ask)
        return found

    def _say(self, statement: str, values: list[Any], answer: Callable[..., Any]) -> Any:
        if not self.open or self._broken:
            raise ServerError(CUT, "the connection is of no more use", lost=True)
        self._server.said.append(statement)
        try:
            self._server.before(statement)
            found = answer(statement, values)
            self._server.after(statement)
        except ServerError as error:
            self._broken = error.lost
            raise
        return found

    def _roll_back(self) -> None:
        for writer, _, _ in self._within or ():
            if writer and not self._server.markers[writer].committed:
                del self._server.markers[writer]
        self._within = None

    def _change(self, statement: str, values: list[Any]) -> int | None:
        server = self._server
        if statement == "ROLLBACK":
            self._roll_back()
        elif statement in ("COMMIT", "START TRANSACTION") or statement.startswith("DROP TABLE IF EXISTS"):
            # As on every MySQL, a new transaction and a DROP commit the one that is open.
            for writer, table, rows in self._within or ():
                if writer:
                    server.markers[writer].committed = True
                else:
                    server.rows.setdefault(table, []).extend(rows)
            self._within = [] if statement == "START TRANSACTION" else None
            for name in re.findall(r"`shop`\.`(\w+)`", statement):
                server.staged.pop(name, None)
        elif statement == "SET TRANSACTION ISOLATION LEVEL READ UNCOMMITTED":
            self._uncommitted = True
        elif statement.startswith("XA "):
            self._end_branch(statement)
        elif statement.startswith("INSERT INTO `shop`.`penstock_markers`"):
            _, writer, epoch, generation, at = values
            if writer in server.markers:
                done = server.markers[writer].committed
                raise (
                    ServerError(DUPLICATE, "Duplicate entry")
                    if done
                    else ServerError(LOCK_TIMEOUT, "Lock wait timeout")
                )
            server.markers[writer] = Marker(epoch, generation, self.id, at)
            assert self._within is not None
            self._within.append((writer, "", []))
        elif match := re.match(r"INSERT INTO `shop`\.`(\w+)` \(.*FROM `shop`\.`(\w+)`", statement):
            assert self._within is not None
            rows = server.staged[match[2]][server.left_out :]
            self._within.append(("", match[1], rows))
            return len(rows)
        elif "SET fence = fence + 1" in statement:
            if server.swept_by <= values[2]:
                server.fence, server.swept_by = server.fence + 1, values[0]
        elif "SET pruned = GREATEST" in statement:
            server.pruned = max(server.pruned, values[0])
        elif statement.startswith("DELETE FROM"):
            for writer in values[1:]:
                del server.markers[writer]
        elif statement.startswith("KILL CONNECTION"):
            number = int(statement.split()[-1])
            server.killed.append(number)
            for session in server.sessions:
                if session.id == number:
                    session.close()
            for writer, marker in list(server.markers.items()):
                if marker.connection == number and not marker.committed and writer not in server.prepared:
                    del server.markers[writer]
        elif not statement.startswith("SET SESSION lock_wait_timeout"):
            raise AssertionError(f"the model does not know {statement}")
        return None

    def _end_branch(self, statement: str) -> None:
        match = re.fullmatch(rf"XA (COMMIT|ROLLBACK) '([^']+)','([^']+)',{FORMAT}", statement)
        assert match is not None, statement
        how, first, name = match.groups()
        branch = self._server.prepared.get(name)
        if branch is None or branch.names.global_id != first or branch.owner is not None:
            raise ServerError(XA_UNKNOWN, "XAER_NOTA: Unknown XID")
        del self._server.prepared[name]
        if how == "COMMIT":
            self._server.markers[name].committed = True
            self._server.rows.setdefault(branch.names.table, []).extend(branch.rows)
        else:
            del self._server.markers[name]

    def _ask(self, statement: str, values: list[Any]) -> list[tuple[Any, ...]]:
        server, uncommitted, self._uncommitted = self._server, self._uncommitted, False
        seen = {w: one for w, one in server.markers.items() if one.committed or uncommitted}
        if statement.startswith("SELECT writer, connection"):
            wanted = values[1:] if "IN (" in statement else list(seen)
            since = "2026-02-02 00:00:00.500000"
            return [(w, seen[w].connection, since) for w in wanted if w in seen]
        if statement.startswith("SELECT writer, CAST(at AS CHAR)"):
            _, epoch, generation = values
            return [(w, one.at) for w, one in seen.items() if one.epoch < epoch and one.generation <= generation]
        if statement.startswith("SELECT CAST(pruned AS CHAR)"):
            return [(server.pruned,)]
        if match := re.fullmatch(r"SELECT COUNT\(\*\) FROM `shop`\.`(\w+)`", statement):
            return [(len(server.staged[match[1]]),)]
        if statement.startswith("SELECT fence"):
            return [(server.fence,)]
        if "table_name LIKE" in statement:
            beginning = values[1].removesuffix("%").replace("\\_", "_")
            return [(name,) for name in server.staged if name.startswith(beginning)]
        if "information_schema.tables" in statement:
            return [(name,) for name in values[1:]]
        if statement.startswith("SELECT 1 FROM"):
            return [(1,)]
        if statement.startswith("SHOW GLOBAL STATUS"):
            return [("Uptime", "1000")]
        if statement.startswith("SELECT UTC_TIMESTAMP(6) - INTERVAL"):
            return [(1,)]
        assert statement == "XA RECOVER", statement
        return [
            (FORMAT, len(one.names.global_id), len(name), f"{one.names.global_id}{name}".encode())
            for name, one in server.prepared.items()
        ]
