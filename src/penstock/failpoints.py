"""Named points in the protocol that a test can make crash, raise, hang or delay.

    PENSTOCK_FAILPOINTS="epoch.decided=crash@3;task.written=delay(0.2)"

The actions, and how one happens once over all processes: docs/reference/failpoints.md. `hooked` calls a test's function
instead, in the process that passes the point. Off, a point costs two comparisons.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from penstock.errors import ConfigurationError, EpochError

VARIABLE = "PENSTOCK_FAILPOINTS"
ONCE = "PENSTOCK_FAILPOINTS_ONCE"
RELEASE = "PENSTOCK_FAILPOINTS_RELEASE"

#: Every point, with the process that passes it. Fault tests walk this table, so a new point is tested automatically.
POINTS: dict[str, str] = {
    # recovery, in the driver, before the query starts
    "recover.registered": "driver",  # generation registered, nothing looked at yet
    "recover.looked": "driver",  # decisions read, no claim yet
    "recover.claimed": "driver",  # claim durable, nothing committed yet
    "recover.restored": "power",  # Spark's log, which had lost files, is restored, nothing committed yet
    "recover.committed": "driver",  # decided writers committed again, Spark's log not completed
    "recover.finished": "driver",  # Spark's log completed
    "recover.swept": "driver",  # leftovers of older runs aborted
    # one epoch, in the driver
    "epoch.opened": "driver",  # barrier written, this run is the newest
    "epoch.precommitted": "driver",  # all tasks prepared, nothing sealed
    "epoch.sealed": "driver",  # sinks confirmed what is prepared, no decision yet
    "epoch.decided": "driver",  # manifest durable
    "epoch.confirmed": "driver",  # still the newest run after the decision
    "epoch.committed": "driver",  # all writers committed, Spark's log not written
    "epoch.aborted": "driver",  # a failed attempt's writers aborted
    # one writer, in a task's Python process
    "task.opened": "worker",  # transaction open, no row written
    "task.written": "worker",  # all rows handed over, not flushed
    "task.sifted": "aside",  # refused rows found, the sink prepared, its aside sink not
    "task.prepared": "worker",  # flushed and prepared, not reported
    # the in-flight log, where there is one
    "task.logged": "worker",  # rows durable in the log, nothing reported
    "inflight.recorded": "driver",  # epoch in the backlog, Spark's log not written
    "drain.opened": "driver",  # an epoch is about to be delivered from the log
    "drain.prepared": "driver",  # its rows are prepared at the sink, no decision yet
    "drain.decided": "driver",  # the decision to deliver it is durable
    "drain.committed": "driver",  # delivered and visible, not yet marked
    "drain.marked": "driver",  # marked as drained, the log not removed
    # the lanes of a real-time query, in the driver
    "lanes.prepared": "lanes",  # marks topics exist, no lane is opened
    "lanes.opened": "lanes",  # older owners fenced, all lanes marked, the ledger does not know of them
    "lanes.recorded": "lanes",  # the ledger knows of them, Spark's query has not started
    "lanes.fenced": "lanes",  # at an end: Spark has stopped, no lane commits any more, the last positions not recorded
    # a savepoint, in the driver, on request
    "savepoint.held": "savepoint",  # the queries are paused, nothing is copied
    "savepoint.copied": "savepoint",  # all files copied, the queries go on, no checksums yet
    "savepoint.checked": "savepoint",  # complete but for its `_metadata`
    "savepoint.written": "savepoint",  # complete, not reported
    # a restore, in the driver, before anything starts
    "restore.verified": "restore",  # the savepoint is whole and fits, nothing copied
    "restore.copied": "restore",  # copied beside the job's checkpoint
    "restore.rewritten": "restore",  # and rewritten for another parallelism or backend
    "restore.recorded": "restore",  # the job's checkpoint from now on, nothing started
    # a source's journal, in the driver, when lines come
    "journal.written": "receiver",  # lines in an open transaction
    "journal.synced": "receiver",  # lines durable
    # inside the ledger
    "ledger.aside": "driver",  # file written aside and synced, not yet under its name
    # inside the committers
    "commit.first": "driver",  # the first writer of the epoch is committed, the others are not
}


class InjectedFault(EpochError):
    """Raised by a failpoint on purpose."""


@dataclass(frozen=True, slots=True)
class _Rule:
    action: str
    seconds: float
    nth: int | None


_ENTRY = re.compile(
    r"^(?P<name>[\w.]+)=(?:(?P<action>crash|raise|hang)|(?P<delay>delay)\((?P<seconds>\d+(?:\.\d+)?)\))"
    r"(?:@(?P<nth>[1-9]\d*))?$"
)


def parse(text: str) -> dict[str, _Rule]:
    """The rules in `text`; a malformed entry or an unknown point is a `ConfigurationError`."""
    rules: dict[str, _Rule] = {}
    for entry in filter(None, (part.strip() for part in text.split(";"))):
        match = _ENTRY.match(entry)
        if match is None or match["name"] not in POINTS:
            raise ConfigurationError(
                f"{VARIABLE} has an entry that names no failpoint: {entry!r}.",
                to_do="write name=crash|raise|hang|delay(S), optionally @N, with a name from failpoints.POINTS.",
            )
        rules[match["name"]] = _Rule(
            match["action"] or match["delay"], float(match["seconds"] or 0), int(match["nth"]) if match["nth"] else None
        )
    return rules


_rules = parse(os.environ.get(VARIABLE, ""))
_hooks: dict[str, Callable[[], None]] = {}
_passed: Counter[str] = Counter()


def reload() -> None:
    """Read the environment again; for tests that change it inside one process."""
    global _rules
    _rules = parse(os.environ.get(VARIABLE, ""))
    _passed.clear()


@contextlib.contextmanager
def hooked(name: str, hook: Callable[[], None]) -> Iterator[None]:
    """While the block lasts, call `hook`, once, when this process passes `name`: to kill something else, just then."""
    if name not in POINTS:
        raise ConfigurationError(f"{name!r} is not a failpoint.", to_do="take a name from POINTS.")
    _hooks[name] = hook
    try:
        yield
    finally:
        _hooks.pop(name, None)


def active(name: str) -> bool:
    """Whether the point `name` is set; for code that only takes a detour so as to pass it."""
    return name in _rules or name in _hooks


def failpoint(name: str) -> None:
    """Pass the point `name`. Does nothing unless the environment or a test in this process asked for it."""
    if not _rules and not _hooks:
        return
    if (hook := _hooks.pop(name, None)) is not None:
        hook()
    if (rule := _rules.get(name)) is not None:
        _act(name, rule)


def _act(name: str, rule: _Rule) -> None:
    _passed[name] += 1
    if rule.nth is not None and _passed[name] != rule.nth:
        return
    if once := os.environ.get(ONCE):
        try:
            os.close(os.open(Path(once) / name, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        except FileExistsError:
            return
    if rule.action == "crash":
        os.kill(os.getpid(), signal.SIGKILL)
    elif rule.action == "raise":
        raise InjectedFault(f"Failpoint {name} raised on purpose.", safe="this is a test.", to_do="nothing.")
    elif rule.action == "delay":
        time.sleep(rule.seconds)
    else:
        release = os.environ.get(RELEASE)
        while not (release and Path(release).exists()):
            time.sleep(0.02)
