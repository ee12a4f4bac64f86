"""A two-phase sink of your own: rows as documents. SQLite stands in for a store like MongoDB.

    job.write(frame, DocumentSink("documents.db"), uid="documents")

A task stages its documents; one transaction moves them where readers look, and leaves their token behind as proof.
"""

import json
import secrets
import sqlite3
from contextlib import closing
from dataclasses import dataclass

from penstock import Committer, Outcome, TwoPhaseSink, Writer

TABLES = """CREATE TABLE IF NOT EXISTS documents (body TEXT);
CREATE TABLE IF NOT EXISTS staged (token TEXT PRIMARY KEY, prefix TEXT, generation INTEGER, bodies TEXT);
CREATE TABLE IF NOT EXISTS proof (token TEXT PRIMARY KEY);"""
MOVE = "INSERT INTO documents SELECT value FROM staged, json_each(bodies) WHERE token = ?"
PROVE = "INSERT INTO proof SELECT token FROM staged WHERE token = ?"
DROP = "DELETE FROM staged WHERE token = ? RETURNING token"
LOOK = "SELECT token FROM proof WHERE token = ?"
FIND = "SELECT token FROM staged WHERE prefix = ? AND generation <= ?"


def run(path, *statements):
    """What each statement returns; all of them are one transaction."""
    with closing(sqlite3.connect(path, timeout=30)) as db:
        db.executescript(TABLES)
        with db:
            return [db.execute(statement, values).fetchall() for statement, values in statements]


@dataclass(frozen=True)
class DocumentSink(TwoPhaseSink):
    path: str

    def open_writer(self, scope):
        return DocumentWriter(self.path, scope.sink)

    def open_committer(self, scope):
        return DocumentCommitter(self.path, scope)


class DocumentWriter(Writer):
    def __init__(self, path, sink):
        self.path, self.sink, self.rows = path, sink, []
        self.token = secrets.token_hex(8)  # never used again, so its fate can be proven

    def write(self, batch):
        self.rows += batch.to_pylist()

    def pre_commit(self):
        values = (self.token, self.sink.prefix, self.sink.generation, json.dumps(self.rows, default=str))
        run(self.path, ("INSERT INTO staged VALUES (?, ?, ?, ?)", values))
        return {"token": self.token}

    def abort(self):
        run(self.path, (DROP, [self.token]))


class DocumentCommitter(Committer):
    def __init__(self, path, scope):
        self.path, self.scope = path, scope

    def commit(self, epoch, committables, deadline):
        return {one.writer: self.move([one.payload["token"]]) for one in committables}

    def move(self, token):
        _, _, moved, proof = run(self.path, (MOVE, token), (PROVE, token), (DROP, token), (LOOK, token))
        return Outcome.COMMITTED if moved else Outcome.ALREADY_COMMITTED if proof else Outcome.LOST

    def abort(self, committables, deadline):
        run(self.path, *((DROP, [one.payload["token"]]) for one in committables))

    def abort_dangling(self, keep, deadline):
        [found] = run(self.path, (FIND, [self.scope.prefix, self.scope.generation]))
        dangling = {token for (token,) in found} - {one.payload["token"] for one in keep}
        return len(run(self.path, *((DROP, [token]) for token in dangling)))
