"""Ending prepared XA transactions, and proving how they ended.

`XA COMMIT` that succeeds is proof. Anything else is not: error 1397 means finished, or unknown, or still owned by a
connection, so the marker is asked (see `markers`): committed, still open, or gone. A transaction that was rolled back
can be there again after a crash of the server; nobody will commit it, and the next sweep rolls it back again.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import TYPE_CHECKING

from penstock.checkpoint.decision import Outcome
from penstock.sinks.mysql import faults
from penstock.sinks.mysql.faults import ServerError
from penstock.sinks.mysql.markers import Markers, Open, cut
from penstock.sinks.mysql.names import Names
from penstock.sinks.mysql.session import Session

if TYPE_CHECKING:
    from penstock.deadline import Deadline

_POLL = 0.005


def commit(session: Session, markers: Markers, writer: str, xid: str, at: str, deadline: Deadline) -> Outcome:
    """One transaction. No id is ever given twice, so there is nothing to look at before."""
    while not deadline.passed():
        session.limit(deadline.remaining())
        try:
            session.execute(f"XA COMMIT {xid}")
            return Outcome.COMMITTED
        except ServerError as error:
            if error.lost:
                raise
        verdict = _look(session, markers, writer, at)
        if verdict is not None:
            return verdict
        time.sleep(_POLL)  # open, and not ours to end: its writer's connection is closing
    return Outcome.UNKNOWN


def _look(session: Session, markers: Markers, writer: str, at: str) -> Outcome | None:
    """None while it is open."""
    if markers.open(session, [writer]):
        return None
    if markers.committed(session, [writer]):
        return Outcome.ALREADY_COMMITTED
    return Outcome.LOST if at > markers.pruned(session) else Outcome.UNKNOWN


def end(session: Session, names: Names, markers: Markers, writers: Collection[str], deadline: Deadline) -> set[str]:
    """Roll back those of `writers` that are open, live or prepared. Returns those that still are at the deadline."""
    refused: set[str] = set()
    while True:
        still = markers.open(session, writers)
        if not still or deadline.passed():
            return set(still)
        # A staged epoch's trial move is never prepared, and its user may lack the right to ask.
        prepared = recover(session, names) if any(names.is_branch(name) for name in still) else set()
        for one in still.values():
            if one.writer not in prepared:
                cut(session, one)
            elif not _rolled_back(session, names, one):
                if one.writer in refused:
                    cut(session, one)  # prepared, and its connection will not go by itself
                refused.add(one.writer)
        time.sleep(_POLL)


def recover(session: Session, names: Names) -> set[str]:
    """The writers of this sink whose transactions are prepared, of every generation."""
    found = set()
    for _, first, second, data in session.query("XA RECOVER"):
        text = data.decode("latin-1") if isinstance(data, bytes) else str(data)
        if text[: int(first)] == names.global_id:
            found.add(text[int(first) : int(first) + int(second)])
    return found


def _rolled_back(session: Session, names: Names, one: Open) -> bool:
    try:
        session.execute(f"XA ROLLBACK {names.xid(one.writer)}")
    except ServerError as error:
        if error.code != faults.XA_UNKNOWN:
            raise
        return False
    return True
