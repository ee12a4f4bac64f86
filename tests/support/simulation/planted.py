"""Bugs to be planted into the real code, one at a time; the simulation must find each.

Those of the protocol are, where it has them, the mutants of the exploration, which plays the world around them; here
they run in the real coordinator and drainer, over the real ledger and committers.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

from penstock.checkpoint import inflight as logs
from penstock.checkpoint import layout, lease_log, log_repair
from penstock.checkpoint.decision import Outcome
from penstock.checkpoint.ledger import Ledger
from penstock.checkpoint.open import history_of
from penstock.checkpoint.spark_log import SparkLog
from penstock.engine import coordinator, drainer, inflight, positions, protocol
from penstock.engine.driver import LedgerRun
from penstock.engine.task import Route, Writing
from penstock.ops.process import lease_rules
from penstock.sinks.files import commit as files
from penstock.sinks.kafka import committer as kafka
from penstock.sinks.kafka import pool, transactions
from penstock.sinks.postgres import dialect as postgres
from penstock.sinks.sql import committer as sql
from penstock.sinks.sql.dialect import name_of
from penstock.storage.storage import AlreadyExists
from tests.support.simulation import disk as played
from tests.support.simulation.kafka import SimulatedProducer
from tests.support.simulation.schedule import Fault
from tests.support.simulation.stories import STORIES
from tests.support.simulation.world import LOGGED, OFTEN, PROFILES, SINKS, Setup, World, chance
from tests.unit.engine import test_protocol_exploration as exploration

Change = tuple[Any, str, Any]


@dataclass(frozen=True)
class Bug:
    """`sinks` and `modes` are those that it can show in, `profiles` the kinds of histories that it is looked for in;
    `story`, if it has one, is looked through instead of histories drawn by chance."""

    name: str
    plant: Callable[[], list[Change]]
    sinks: tuple[str, ...] = SINKS
    modes: tuple[str, ...] = OFTEN
    profiles: tuple[str, ...] = PROFILES
    story: str = ""

    @property
    def among(self) -> str:
        """For people: which histories it is looked for in."""
        kinds = [] if self.profiles == PROFILES else list(self.profiles)
        sinks = [] if self.sinks == SINKS else ["+".join(self.sinks)]
        modes = [] if self.modes == OFTEN else ["+".join(self.modes)]
        return "its story" if self.story else ", ".join([*kinds, *sinks, *modes]) or "all"

    def histories(self, most: int) -> Iterator[tuple[Setup, Sequence[Fault], int]]:
        """Job, faults and seed of each."""
        if self.story:
            yield from ((setup, faults, 1) for setup, faults in STORIES[self.story]())
        else:
            for seed in range(most):
                yield *chance(seed, self.sinks, self.modes, self.profiles), seed

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
    "a decided epoch is tried again",
    "no check after the claim",
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


def _remove_all(self: logs.Backlog, generation: int, keep: Any) -> None:
    tree = logs.__dict__["task_tree"](self.logs)
    for name in tree.file_names(""):
        tree.remove(name)


def _finish_then_deliver(self: drainer.Drainer, entry: Any) -> None:
    self._backlog.mark(entry.epoch)
    _DELIVER(self, entry)


def _unfenced(self: SparkLog, fence: Any) -> Any:
    return _BEGIN_ANEW(self, lambda: None)


_BEGIN_ANEW = SparkLog.begin_anew


def _ends_before_it_begins(self: drainer.Drainer) -> None:
    if not self._stopping.is_set():
        _WORK(self)


_DELIVER, _WORK = drainer.Drainer._deliver, drainer.Drainer._work


def _writes_at_once(self: inflight.InFlight, uid: str, elapsed: float) -> Any:
    return Writing(Route.TEE, self._backlogs[uid].logs, 0.5)


def _drain(name: str, *changes: Change, sinks: tuple[str, ...] = SINKS, modes: tuple[str, ...] = LOGGED) -> Bug:
    return Bug(name, lambda: list(changes), sinks, modes)


_PROTOCOL = [
    *(Bug(name, _mutant(name)) for name in _MUTANTS),
    Bug("a repair takes writers by their number", lambda: [(protocol, "match_replay", _by_number)]),
    Bug(
        "a start does not compare barriers",
        lambda: [(log_repair, "overwritten", lambda *_: {}), (positions.Positions, "_check_start", lambda *_: None)],
    ),
    Bug(
        "a process does not know its own registration",
        lambda: [(LedgerRun, "newest_of_others", LedgerRun.newest_generation)],
    ),
    Bug("two runs get the same generation", lambda: [(Ledger, "register", _registers_without_looking)]),
    Bug("what is found in the ledger is not settled", lambda: [(Ledger, "settle", lambda self: None)]),
    Bug("state is not synced before the decision", lambda: [(SparkLog, "sync", lambda self: None)]),
    Bug(
        "a start believes Spark's note of the query's id",
        lambda: [(where, "query_of", _as_noted) for where in (log_repair, coordinator)],
    ),
    Bug("what a first epoch left is removed without a fence", lambda: [(SparkLog, "begin_anew", _unfenced)]),
    Bug("the ledger does not sync", lambda: [(played.DiskStorage, "create", _no_sync_then_link)]),
    Bug("no state is kept", lambda: [(coordinator, "keep_state", lambda *_: None)]),
    Bug("the ledger's create replaces", lambda: [(played.DiskStorage, "create", _decides_over)]),
    _drain("the drainer does not read the backlog again", (drainer.Drainer, "_look", _look_without_reload)),
    _drain(
        "the drainer asks no ledger whether it is superseded",
        (drainer._DrainRun, "refuse_superseded", lambda self: None),
    ),
    _drain("a drainer that is stopped at once sweeps nothing", (drainer.Drainer, "_work", _ends_before_it_begins)),
    _drain("a drainer closes nothing by itself", (drainer.Drainer, "_work", lambda self: self._loop())),
    _drain("the drainer does not say which rows are lost", (drainer.Drainer, "_refuse_lost_rows", lambda *_: None)),
    _drain("the log is removed before the mark", (drainer.Drainer, "_finish", _forget_then_mark)),
    _drain("an epoch is forgotten before it is delivered", (drainer.Drainer, "_deliver", _finish_then_deliver)),
    _drain("a delivered epoch is not marked", (logs.Backlog, "mark", lambda self, epoch: None)),
    _drain(
        "the drainer does not clear the way",
        (drainer.Drainer, "_clear_the_way", lambda self, entry: None),
        sinks=("kafka",),
    ),
    _drain(
        "tasks write while the drainer does",
        (drainer.WriteTurn, "give_to_tasks", lambda self: True),
        sinks=("kafka",),
    ),
    _drain(
        "an epoch overtakes the backlog",
        (inflight.InFlight, "_in_turn", lambda self, uid, epoch: True),
        (inflight.InFlight, "writing", _writes_at_once),
        sinks=("kafka",),
        modes=("timeout",),
    ),
    _drain("logs that the backlog needs are removed", (logs.Backlog, "remove_strays", _remove_all)),
    Bug("the lease's words may be written twice", lambda: [(lease_log.LeaseLog, "say", _says_yes)]),
    Bug("a waiter takes the lease too early", lambda: [(lease_rules.Watching, "verdict", _impatient)]),
    Bug("a holder that cannot renew goes on", lambda: [(lease_rules.Holding, "stop_in", lambda self, now: 1e9)]),
]


# The sinks


def _judged(wrong: Callable[[Any, Any, Any], Any]) -> Callable[[], list[Change]]:
    return lambda: [(kafka, "judge", lambda payload, described: wrong(payload, described, _JUDGE(payload, described)))]


_JUDGE = kafka.judge


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


def _as_noted(ledger: Ledger, log: SparkLog) -> str | None:
    return log.query_id() or ledger.last_query(history_of(log))


def _knows_the_sink(self: Any, connection: Any, writers: Any) -> Any:
    return replace(_PROVE(self, connection, writers), has_markers=True)


_PROVE = postgres.PostgresDialect.prove


def _not_sure(self: SimulatedProducer) -> bool:
    return self._end(commit=True) or True


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


def _as_unsealed(real: Callable[..., None]) -> Callable[..., None]:
    def abort(self: Any, committables: Sequence[Any], deadline: Any) -> None:
        payloads = ({key: value for key, value in each.payload.items() if key != "started"} for each in committables)
        real(
            self,
            [replace(each, payload=payload) for each, payload in zip(committables, payloads, strict=True)],
            deadline,
        )

    return abort


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
        "Kafka: a producer whose decided rows were aborted is used again",
        ("kafka",),
        (kafka.KafkaCommitter, "abort", _as_unsealed(kafka.KafkaCommitter.abort)),
    ),
    _sink("Kafka: a former coordinator's answer is sealed", ("kafka",), (kafka, "_follows", lambda *_: True)),
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
    _sink("Kafka: a producer that is not sure is used again", ("kafka",), (SimulatedProducer, "commit", _not_sure)),
    _sink(
        "Kafka: an unanswered request is forgotten", ("kafka",), (transactions.Unsure, "add", lambda self, ids: None)
    ),
    _sink(
        "Kafka: a sweep fences nothing",
        ("kafka",),
        (transactions.TransactionClient, "fence", lambda self, ids, deadline: ()),
    ),
    Bug(
        "Kafka: what cannot be proven counts as committed",
        _judged(lambda _, d, told: Outcome.ALREADY_COMMITTED if told is Outcome.UNKNOWN else told),
        ("kafka",),
    ),
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
    _sink(
        "SQL: a database that does not know the sink has lost nothing",
        ("postgres", "staged"),
        (postgres.PostgresDialect, "prove", _knows_the_sink),
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
    _sink("S3: a commit leaves no receipt", ("s3",), (files.Receipts, "write", lambda *_: None)),
    _sink("S3: an abort stays on the receipt", ("s3",), (files.Receipts, "strike", lambda *_: None)),
]

#: Left out unless they are asked for by name: no history shows them, for another step makes good for each.
_BEGUN = "the protocol aborts nothing whose commit has begun"
_REPAIRED = "what it aborts is found to be lost, and written again"
SPARE = {
    "two runs get the same generation": "the second of them cannot write its claim, and registers again",
    "the drainer does not read the backlog again": "the log of what was delivered meanwhile is gone: it is read then",
    "no check after the claim": "four drivers must stand still, each in one place: only the exploration goes there",
    "the log is removed before the mark": "the drainer's ledger still has the decision, and it is finished again",
    "a decided epoch is tried again": "the second decision is refused: its generation has one for that epoch",
    "Kafka: what another process sealed is committed unseen": "the broker refuses a producer that was fenced",
    "Kafka: a sweep ends newer runs": _REPAIRED,
    "Kafka: a sweep keeps nothing": _REPAIRED,
    "SQL: a sweep keeps nothing": _REPAIRED,
    "files: a sweep keeps nothing": _REPAIRED,
    "files: an abort stays on the receipt": _BEGUN,
    "S3: an abort stays on the receipt": _BEGUN,
}

#: Chance comes to a history that shows these too seldom. Each has a story, and is looked for there.
_TOLD = {
    "Kafka: an answer of a former coordinator is believed": "what a former coordinator does not know is not lost",
    "Kafka: a producer whose decided rows were aborted is used again": "what waits in the log is not proven by a later"
    " transaction",
    "Kafka: a former coordinator's answer is sealed": "what a former coordinator calls open is not sealed",
    "a start believes Spark's note of the query's id": "a note written over under a decided epoch is recognised",
    "Kafka: a producer that is not sure is used again": "a producer that sent an end again is not used again",
    "SQL: a database that does not know the sink has lost nothing": "a replica that does not know the sink has lost it",
    "no state is kept": "state that a superseded driver wrote over is put back",
    "a drainer closes nothing by itself": "a drainer that is left behind closes what it opens",
    "the drainer does not say which rows are lost": "rows that are lost after their log was removed have a name",
}

#: What each story is about. A story in which this bug does not show guards against nothing: its places have moved.
GUARDS = {
    "a driver that stands still in its first start removes nothing of the next one": "what a first epoch left is"
    " removed without a fence",
    **{story: bug for bug, story in _TOLD.items()},
    "a note of the query's id that was written over is recognised": "a start believes Spark's note of the query's id",
    "what a drainer opens late is swept by the next start": "a drainer that is stopped at once sweeps nothing",
    "a late registration of its own is no newer run": "a process does not know its own registration",
}


def stale() -> list[str]:
    """The stories in which what they are about does not show any more."""
    return [story for story, bug in GUARDS.items() if not _shows(BUGS[bug], story)]


def _shows(bug: Bug, story: str) -> bool:
    with bug.planted():
        return any(World(setup, faults, 1).run().anomalies for setup, faults in STORIES[story]())


#: Each of these takes thousands of histories of all kinds: several things must go wrong in one order. Here they are
#: looked for in histories of one kind, and, where it is named, with one sink and in one mode.
_KINDS: dict[str, tuple[str, ...]] = {
    "no claim": ("takeovers",),
    "claims are not read": ("takeovers",),
    "what is found in the ledger is not settled": ("powers",),
    "Kafka: an unanswered request is forgotten": ("answers",),
    "a repair names only what it wrote": ("losses", "postgres", "aligned"),
    "the drainer asks no ledger whether it is superseded": ("standstills", "kafka", "unaligned"),
    "a drainer that is stopped at once sweeps nothing": ("standstills", "kafka", "unaligned"),
    "tasks write while the drainer does": ("expiries", "kafka", "concurrent"),
}


def _directed(bug: Bug) -> Bug:
    profile, *rest = _KINDS.get(bug.name, ("",))
    if rest:
        bug = replace(bug, sinks=(rest[0],), modes=(rest[1],))
    bug = replace(bug, story=_TOLD.get(bug.name, ""))
    return replace(bug, profiles=(profile,)) if profile else bug


BUGS = {bug.name: _directed(bug) for bug in [*_PROTOCOL, *_OF_SINKS]}
OF_SINKS = frozenset(bug.name for bug in _OF_SINKS)
