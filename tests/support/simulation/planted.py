"""Bugs to be planted into the real code, one at a time; the simulation must find each.

Those of the protocol are, where it has them, the mutants of the exploration, which plays the world around them; here
they run in the real coordinator and drainer, over the real ledger and committers.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from penstock.checkpoint import inflight as logs
from penstock.checkpoint import layout, lease_log, log_repair
from penstock.checkpoint.decision import Outcome
from penstock.checkpoint.ledger import Ledger
from penstock.checkpoint.spark_log import SparkLog
from penstock.engine import coordinator, drainer, inflight, positions, protocol
from penstock.engine.driver import LedgerRun
from penstock.ops.process import lease_rules
from penstock.sinks.files import commit as files
from penstock.sinks.kafka import committer as kafka
from penstock.sinks.kafka import pool
from penstock.sinks.postgres import dialect as postgres
from penstock.sinks.sql import committer as sql
from penstock.sinks.sql.dialect import name_of
from penstock.storage.storage import AlreadyExists
from tests.support.simulation import disk as played
from tests.support.simulation.world import SINKS
from tests.unit.engine import test_protocol_exploration as exploration

Change = tuple[Any, str, Any]


@dataclass(frozen=True)
class Bug:
    """`sinks` are those that it can show in."""

    name: str
    plant: Callable[[], list[Change]]
    sinks: tuple[str, ...] = SINKS

    @contextlib.contextmanager
    def planted(self) -> Iterator[None]:
        changes = self.plant()
        before = [(where, name, getattr(where, name)) for where, name, _ in changes]
        try:
            for where, name, value in changes:
                setattr(where, name, value)
            yield
        finally:
            for where, name, value in before:
                setattr(where, name, value)


# The protocol


def _mutant(name: str) -> Callable[[], list[Change]]:
    def plant() -> list[Change]:
        mutant = exploration.MUTANTS[name][0]
        changed = SimpleNamespace(**vars(protocol))
        changed.recover, changed.run_epoch, changed.may_try_again = (
            mutant.recover,
            mutant.run_epoch,
            mutant.may_try_again,
        )
        return [(coordinator, "protocol", changed), (drainer, "protocol", changed)]

    return plant


# Of the exploration's, "no check after the claim" takes four runs that stand still each in just the
# right place: it walks through all of them, chance hardly ever does.
_MUTANTS = (
    "look, then register",
    "no claim",
    "claims are not read",
    "claims honour nothing",
    "no check after the decision",
    "commit, then decide",
    "log finished, then commit",
    "sweep, then commit",
    "no sweep",
    "unknown is committed",
    "unknown is lost",
    "lost is committed",
    "some lost is void",
    "a repair writes all",
    "a repair names only what it wrote",
    "what Spark's log lost is not missed",
    "the lost log is not restored",
    "a log with a hole is not restored",
    "only decisions that count are evidence",
)


def _by_number(_: Any, replayed: Any, __: Any) -> Any:
    return {one.id: one for one in replayed}, set()


def _look_without_reload(self: drainer.Drainer) -> Any:
    entry = self._backlog.first()
    epoch = entry.epoch if entry is not None else self._backlog.drained + 1
    return drainer.look(self._ledger, self._id, epoch, waits=entry is not None)


def _forget_then_mark(self: drainer.Drainer, entry: Any, *, rewritten: int, seconds: float) -> None:
    self._backlog.forget(entry)
    self._backlog.mark(entry.epoch)


def _registers_without_looking(self: Ledger, facts: Any) -> int:
    """A generation is a number counted up in memory of what was seen; two may get the same."""
    generation = self.newest_generation() + 1
    with contextlib.suppress(AlreadyExists):
        self._storage.create(
            f"generations/{generation:08d}.json", layout.seal("generation", {**facts, "registered": 0.0})
        )
    return generation


def _decides_over(self: Any, name: str, data: bytes) -> None:
    """A storage whose create replaces: the second of two decisions wins."""
    path = self._at(name)
    self._call("create", path, lambda: self.disk.write(path, data))
    self._schedule.call(f"sync {path}", lambda: self.disk.sync_below(path.rpartition("/")[0]))


def _says_yes(self: lease_log.LeaseLog, word: Any) -> bool:
    with contextlib.suppress(AlreadyExists):
        self._storage.create(layout.numbered("lease", word.number), layout.seal("lease", word.body()))
    return True


def _impatient(self: lease_rules.Watching, now: float) -> Any:
    word = self.word
    if word is None or not word.held or word.holder == self._me:
        return lease_rules.Verdict.TAKE
    return lease_rules.Verdict.TAKE if now - self._since >= word.seconds / 4 else lease_rules.Verdict.WAIT


def _no_sync_then_link(self: Any, name: str, data: bytes) -> None:
    path, disk = self._at(name), self.disk
    if not self._call("create", path, lambda: path not in disk.names and disk.write(path, data)):
        raise AlreadyExists(name)


_PROTOCOL = [
    *(Bug(name, _mutant(name)) for name in _MUTANTS),
    Bug("a repair takes writers by their number", lambda: [(protocol, "match_replay", _by_number)]),
    Bug(
        "a start does not compare barriers",
        lambda: [(log_repair, "overwritten", lambda *_: {}), (positions.Positions, "_check_start", lambda *_: None)],
    ),
    Bug("a process does not know its own registration", lambda: [(LedgerRun, "last_own", lambda self, known: known)]),
    Bug("two runs get the same generation", lambda: [(Ledger, "register", _registers_without_looking)]),
    Bug("what is found in the ledger is not settled", lambda: [(Ledger, "settle", lambda self: None)]),
    Bug("state is not synced before the decision", lambda: [(SparkLog, "sync", lambda self: None)]),
    Bug("the ledger does not sync", lambda: [(played.DiskStorage, "create", _no_sync_then_link)]),
    Bug("the ledger's create replaces", lambda: [(played.DiskStorage, "create", _decides_over)]),
    Bug("the drainer does not read the backlog again", lambda: [(drainer.Drainer, "_look", _look_without_reload)]),
    Bug(
        "the drainer asks no ledger whether it is superseded",
        lambda: [(drainer._DrainRun, "refuse_superseded", lambda self: None)],
    ),
    Bug("the log is removed before the mark", lambda: [(drainer.Drainer, "_finish", _forget_then_mark)]),
    Bug(
        "the drainer does not clear the way",
        lambda: [(drainer.Drainer, "_clear_the_way", lambda self, entry: None)],
        ("kafka",),
    ),
    Bug(
        "tasks write while the drainer does",
        lambda: [(drainer.WriteTurn, "give_to_tasks", lambda self: True)],
        ("kafka",),
    ),
    Bug(
        "an epoch overtakes the backlog",
        lambda: [(inflight.InFlight, "_in_turn", lambda self, uid, epoch: True)],
        ("kafka",),
    ),
    Bug(
        "epochs queue behind nothing",
        lambda: [
            (logs.Backlog, "at_sink", property(lambda self: True)),
            (inflight.InFlight, "_in_turn", lambda self, uid, epoch: True),
        ],
        ("kafka",),
    ),
    Bug("logs that the backlog needs are removed", lambda: [(logs.Backlog, "remove_strays", _remove_all)]),
    Bug("the lease's words may be written twice", lambda: [(lease_log.LeaseLog, "say", _says_yes)]),
    Bug("a waiter takes the lease too early", lambda: [(lease_rules.Watching, "verdict", _impatient)]),
    Bug("a holder that cannot renew goes on", lambda: [(lease_rules.Holding, "stop_in", lambda self, now: 1e9)]),
]


def _remove_all(self: logs.Backlog, generation: int, keep: Any) -> None:
    tree = logs.__dict__["task_tree"](self.logs)
    for name in tree.file_names(""):
        tree.remove(name)


# The sinks


def _judged(wrong: Callable[[Any, Any, Any], Any]) -> Callable[[], list[Change]]:
    return lambda: [(kafka, "judge", lambda payload, described: wrong(payload, described, _JUDGE(payload, described)))]


_JUDGE = kafka.judge


class _Sure:
    def add(self, ids: Any) -> None:
        pass

    def __contains__(self, name: str) -> bool:
        return False

    def newest(self, prefix: str, most: int) -> list[str]:
        return []


def _open_of_all(self: Any, deadline: Any) -> list[str]:
    return list(self._client.list_open(f"{self._prefix}-g", deadline))


def _commit_blindly(self: Any, epoch: int, committables: Any, deadline: Any) -> Any:
    """What another process has sealed is not looked up first."""
    self._sealed.update({kafka._key(one): None for one in committables})
    return _COMMIT(self, epoch, committables, deadline)


_COMMIT = kafka.KafkaCommitter.commit


def _keeps_nothing(real: Any) -> Any:
    return lambda self, keep, deadline: real(self, (), deadline)


def _proven_by_absence(self: Any, lane: Any, committable: Any, deadline: Any) -> Any:
    return Outcome.ALREADY_COMMITTED


def _without_trace(committable: Any, proof: Any) -> Outcome:
    return Outcome.LOST


def _first_only(self: Any, committables: Any) -> Any:
    return [one for one in committables if name_of(one)][:1]


def _no_receipts(self: Any, epoch: int, names: Any, kind: str = "") -> None:
    pass


def _all_done(self: Any) -> Any:
    return defaultdict(set, done=set().union(*_RECEIPTS(self).values()))


def _without_syncs(self: Any, epoch: int, committables: Any, deadline: Any) -> Any:
    self._storage.sync = lambda folder: None
    return _FILES(self, epoch, committables, deadline)


_FILES = files.FileCommitter.commit
_PARKED = pool._ended
_RECEIPTS = files.Receipts.names


def _sink(name: str, sinks: tuple[str, ...], *changes: Change) -> Bug:
    return Bug(name, lambda: list(changes), sinks)


_OF_SINKS = [
    Bug(
        "Kafka: a fenced transaction counts as committed",
        _judged(lambda _, d, told: Outcome.ALREADY_COMMITTED if told is Outcome.LOST else told),
        ("kafka",),
    ),
    Bug(
        "Kafka: a forgotten id counts as lost",
        _judged(lambda _, d, told: Outcome.LOST if d.state == "NotFound" else told),
        ("kafka",),
    ),
    Bug(
        "Kafka: an answer of a former coordinator is believed",
        _judged(lambda p, d, told: Outcome.LOST if d.started < p["started"] and d.state != "NotFound" else told),
        ("kafka",),
    ),
    _sink(
        "Kafka: what another process sealed is committed unseen",
        ("kafka",),
        (kafka.KafkaCommitter, "commit", _commit_blindly),
    ),
    _sink("Kafka: a sweep ends newer runs", ("kafka",), (kafka.KafkaCommitter, "_open", _open_of_all)),
    _sink(
        "Kafka: a sweep keeps nothing",
        ("kafka",),
        (kafka.KafkaCommitter, "abort_dangling", _keeps_nothing(kafka.KafkaCommitter.abort_dangling)),
    ),
    _sink(
        "Kafka: a parked producer is used again too early",
        ("kafka",),
        (pool, "_ended", lambda parked, hints: _PARKED(parked, hints) or "aborted"),
    ),
    _sink("Kafka: an unanswered request is forgotten", ("kafka",), (kafka, "UNSURE", _Sure())),
    _sink(
        "SQL: no transaction means committed", ("postgres", "staged"), (sql.SqlCommitter, "_proven", _proven_by_absence)
    ),
    _sink(
        "SQL: a sweep keeps nothing",
        ("postgres", "staged"),
        (sql.SqlCommitter, "abort_dangling", _keeps_nothing(sql.SqlCommitter.abort_dangling)),
    ),
    _sink("SQL: only one writer is looked up again", ("postgres",), (sql.SqlCommitter, "_known_again", _first_only)),
    _sink("SQL: nothing is looked up again", ("postgres", "staged"), (postgres.PostgresDialect, "looks_back", False)),
    _sink("SQL: the move writes no marker", ("staged",), (postgres.PostgresDialect, "mark", lambda *_: None)),
    _sink(
        "SQL: a lost marker proves a loss",
        ("postgres", "staged"),
        (sql.SqlCommitter, "_proven", lambda *_: Outcome.LOST),
    ),
    _sink("files: a commit leaves no receipt", ("files",), (files.Receipts, "write", _no_receipts)),
    _sink("files: a commit does not sync", ("files",), (files.FileCommitter, "commit", _without_syncs)),
    _sink("files: an abort stays on the receipt", ("files",), (files.FileCommitter, "_strike", lambda *_: None)),
    _sink(
        "files: a sweep keeps nothing",
        ("files",),
        (files.FileCommitter, "abort_dangling", _keeps_nothing(files.FileCommitter.abort_dangling)),
    ),
    _sink(
        "S3: what was begun counts as committed",
        ("s3",),
        (files.Receipts, "names", _all_done),
    ),
    _sink("S3: what was begun counts as lost", ("s3",), (files.Receipts, "names", lambda self: defaultdict(set))),
    _sink("S3: an abort stays on the receipt", ("s3",), (files.Receipts, "strike", lambda *_: None)),
]

#: Not found in some hundred to some thousand histories: each needs several rare things at once, or another step makes
#: good for it. Left out unless they are asked for by name.
RARE = frozenset(
    {
        "a process does not know its own registration",
        "two runs get the same generation",
        "what is found in the ledger is not settled",
        "the drainer does not read the backlog again",
        "the drainer asks no ledger whether it is superseded",
        "the log is removed before the mark",
        "an epoch overtakes the backlog",
        "epochs queue behind nothing",
        "a holder that cannot renew goes on",
        "Kafka: a forgotten id counts as lost",
        "Kafka: an answer of a former coordinator is believed",
        "Kafka: what another process sealed is committed unseen",
        "Kafka: a sweep ends newer runs",
        "Kafka: a sweep keeps nothing",
        "Kafka: an unanswered request is forgotten",
        "SQL: a sweep keeps nothing",
        "files: an abort stays on the receipt",
        "files: a sweep keeps nothing",
        "S3: what was begun counts as lost",
        "S3: an abort stays on the receipt",
    }
)

BUGS = {bug.name: bug for bug in [*_PROTOCOL, *_OF_SINKS]}
OF_PROTOCOL, OF_SINKS = (sum(bug.name not in RARE for bug in bugs) for bugs in (_PROTOCOL, _OF_SINKS))
