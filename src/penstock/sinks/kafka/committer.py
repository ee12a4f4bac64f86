"""The driver's side of Kafka: ends prepared transactions and proves how they ended.

A committable names one transaction: id, producer id P, epoch E, and the moment S at which the broker saw it begin. Only
success is taken at its word; after any other answer `DescribeTransactions` is asked, and this table decides:

| state of the id at the broker | outcome |
|---|---|
| P, E, S, Ongoing | still prepared: commit again |
| P, E, S, PrepareCommit | markers are on their way: ask again |
| P, E, S, CompleteCommit | already committed |
| P, E or higher, S, PrepareAbort, PrepareEpochFence or CompleteAbort | lost (a) |
| P, E, a later S | already committed (b) |
| P, E + 1, a later S, PrepareAbort or CompleteAbort | already committed (b), and the later one expired or was fenced |
| an earlier S, whatever its state | unknown (e) |
| Empty, Dead | unknown (c) |
| another producer id, a lower epoch, anything else | unknown (d) |
| NotFound | unknown (d) |
| no answer by the deadline | unknown |

(a) Aborted, expired or fenced. An epoch only rises when an open transaction is ended in its writer's place, so a
higher one with our S cannot follow a commit.
(b) A writer begins again only after its driver reported the last transaction as committed or aborted; and what was
sealed is never reported as aborted: it may be decided, and its rows in the in-flight log.
(c) Another client initialised the id. Ours may have been committed before that, or aborted by it.
(d) The cluster has forgotten the id (`transactional.id.expiration.ms`); it may have been reused. Probably lost long
ago, but that is no proof.
(e) The answer is older than our transaction: it came from a former coordinator of this id that has not yet learnt that
it was replaced. It cannot know how ours ended. (A broker whose clock was set back looks the same.)

EndTxn's success is proof as well: the broker reports it only for P and E, while Ongoing or already committed.
The S that a seal notes is later than the start of its producer's last transaction, which the writer reports as `after`:
a former coordinator may call that one open under the same P and E, and with its S the table would prove (b) of ours.
A committable that this process has not sealed (recovery) is looked up *before* it is committed: its writer may have
begun a later transaction under the same P and E, which must not be committed by mistake. For the same reason a request
that another broker must answer is not simply sent there: the transaction is looked up at that broker first.
"""

from __future__ import annotations

import re
import time
from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from penstock.checkpoint.decision import Committable, Outcome
from penstock.contracts.sink import Committer, Leftover
from penstock.deadline import Deadline
from penstock.errors import PreCommitFailed, SystemUnavailable
from penstock.failpoints import active, failpoint
from penstock.sinks.kafka.transactions import UNSURE, Described, Ending, TransactionClient

#: Ended transactions reported to writers. Each live producer has one entry; a forgotten one costs a new producer.
_MOST_HINTED = 2_000
_POLL = 0.005
_ABORTED = ("PrepareAbort", "PrepareEpochFence", "CompleteAbort")


def judge(payload: Mapping[str, Any], described: Described) -> Outcome | None:
    """The table above; None if asking or committing again can tell."""
    if described.producer_id != payload["producer_id"] or described.state in ("NotFound", "Empty", "Dead"):
        return Outcome.UNKNOWN
    ahead = described.producer_epoch - payload["producer_epoch"]
    if described.started == payload["started"]:
        if ahead >= 0 and described.state in _ABORTED:
            return Outcome.LOST
        if ahead == 0 and described.state == "CompleteCommit":
            return Outcome.ALREADY_COMMITTED
        if ahead == 0 and described.state in ("Ongoing", "PrepareCommit"):
            return None
        return Outcome.UNKNOWN
    if described.started < payload["started"]:
        return Outcome.UNKNOWN
    if ahead == 0 or (ahead == 1 and described.state in _ABORTED):
        return Outcome.ALREADY_COMMITTED
    return Outcome.UNKNOWN


class KafkaCommitter(Committer):
    """Commits, aborts and sweeps one sink's transactions; names begin with `prefix`, `-g` and the run's generation."""

    def __init__(self, client: TransactionClient, prefix: str, generation: int) -> None:
        self._client, self._prefix, self._generation = client, prefix, generation
        # Another committer (the drainer's) commits some of these, so the oldest are dropped.
        self._sealed: OrderedDict[tuple[str, int], None] = OrderedDict()
        self._committed: OrderedDict[str, tuple[int, int]] = OrderedDict()  # sequence and start
        self._aborted: OrderedDict[str, tuple[int, int]] = OrderedDict()
        self._proven: OrderedDict[tuple[str, int], None] = OrderedDict()

    def hints(self) -> Mapping[str, Any]:
        """How transactions ended, by id and sequence; when they began; and the ids that must never be used again."""
        run_prefix = f"{self._prefix}-g{self._generation:06d}-"
        return {
            "committed": {name: sequence for name, (sequence, _) in self._committed.items() if name not in UNSURE},
            "aborted": {name: sequence for name, (sequence, _) in self._aborted.items() if name not in UNSURE},
            "started": {name: started for name, (_, started) in (self._committed | self._aborted).items()},
            "unsure": dict.fromkeys(UNSURE.newest(run_prefix, _MOST_HINTED), True),
        }

    def seal(self, committables: Sequence[Committable], deadline: Deadline) -> Sequence[Committable]:
        """Check with the brokers that every writer's transaction is open. Adds producer id, epoch and start."""
        named = {_id(c): c for c in committables if _id(c)}
        states = self._client.describe(named, deadline)
        if len(states) < len(named):
            raise SystemUnavailable(
                f"Kafka did not confirm {len(named) - len(states)} of {len(named)} prepared writers in time.",
                safe="nothing of this epoch is visible.",
                to_do="nothing: the epoch is aborted and replays.",
            )
        gone = {name: d for name, d in states.items() if not (d.open and _follows(named[name].payload, d))}
        if gone:
            name, d = next(iter(gone.items()))
            raise PreCommitFailed(
                f"{len(gone)} of {len(named)} Kafka transactions are not open: {name} is {d.state} since {d.started}.",
                to_do="if this repeats, raise the sink's transaction_timeout above the time an epoch takes.",
            )
        sealed = []
        for committable in committables:
            described = states.get(_id(committable), Described(""))
            if described.open:
                committable = committable.with_payload(
                    producer_id=described.producer_id,
                    producer_epoch=described.producer_epoch,
                    started=described.started,
                )
                self._sealed[_key(committable)] = None
                while len(self._sealed) > 10 * _MOST_HINTED:
                    self._sealed.popitem(last=False)
            sealed.append(committable)
        return sealed

    def commit(self, epoch: int, committables: Sequence[Committable], deadline: Deadline) -> Mapping[int, Outcome]:
        outcomes: dict[int, Outcome] = {}
        waiting: dict[str, Committable] = {}
        for committable in committables:
            if not _id(committable):
                outcomes[committable.writer] = Outcome.COMMITTED  # it wrote nothing
            elif _key(committable) in self._proven:
                outcomes[committable.writer] = Outcome.ALREADY_COMMITTED
            elif "producer_id" not in committable.payload:
                outcomes[committable.writer] = Outcome.UNKNOWN  # never sealed: no proof is possible
            else:
                waiting[_id(committable)] = committable
        foreign = [name for name, committable in waiting.items() if _key(committable) not in self._sealed]
        if foreign:
            self._look(foreign, waiting, outcomes, deadline, ask=True)
        if active("commit.first") and len(waiting) > 1:
            first = next(iter(waiting))
            self._end({first: waiting[first]}, outcomes, deadline)
            if waiting[first].writer in outcomes:
                del waiting[first]
            failpoint("commit.first")
        self._end(waiting, outcomes, deadline)
        for committable in waiting.values():
            outcomes.setdefault(committable.writer, Outcome.UNKNOWN)
        for committable in committables:
            if _id(committable) and outcomes[committable.writer] is not Outcome.UNKNOWN:
                self._sealed.pop(_key(committable), None)
        return outcomes

    def abort(self, committables: Sequence[Committable], deadline: Deadline) -> None:
        """End the writers' transactions and free the producers of unsealed ones; fence those that cannot be ended."""
        named = {_id(c): c for c in committables if _id(c)}
        if not named:
            return
        since = {name: c.payload["started"] for name, c in named.items() if "started" in c.payload}
        states = self._client.describe(named, deadline, since)
        endings = [
            Ending(name, described.producer_id, described.producer_epoch)
            for name, described in states.items()
            if described.open and _same(named[name].payload, described)
        ]
        ended = self._client.end(endings, False, deadline)
        UNSURE.add(name for name, answer in ended.items() if not answer.sure)
        for name, answer in ended.items():
            if answer.done and name not in since and _follows(named[name].payload, states[name]):
                self._remember(self._aborted, named[name], states[name].started)
        open_names = set(named) - {name for name, answer in ended.items() if answer.done}
        open_names -= {name for name, described in states.items() if not described.open}
        open_names -= {name for name, described in states.items() if not _same(named[name].payload, described)}
        if open_names:
            self._raise_unfinished(self._client.fence(open_names, deadline, since))
        for committable in named.values():
            self._sealed.pop(_key(committable), None)

    def abort_dangling(self, keep: Collection[Committable], deadline: Deadline) -> int:
        payloads: dict[str, list[Mapping[str, Any]]] = {}
        for committable in keep:
            payloads.setdefault(_id(committable), []).append(committable.payload)
        named = self._open(deadline)
        # A kept id may have a later transaction open by now, which is not to be kept.
        states = self._client.describe([name for name in named if name in payloads], deadline)
        dangling = [
            name
            for name in named
            if name not in payloads or (name in states and not any(_spared(p, states[name]) for p in payloads[name]))
        ]
        if dangling:
            self._raise_unfinished(self._client.fence(dangling, deadline))
        return len(dangling)

    def leftovers(self, deadline: Deadline) -> Sequence[Leftover]:
        named = self._open(deadline)
        states = self._client.describe(named, deadline)
        return [leftover(name, described) for name, described in states.items() if described.open]

    def evidence(self, committables: Sequence[Committable], deadline: Deadline) -> Mapping[int, str]:
        sealed = [committable for committable in committables if "started" in committable.payload]
        return {committable.writer: self._client.evidence(committable, deadline) for committable in sealed}

    def close(self) -> None:
        self._client.close()

    def _open(self, deadline: Deadline) -> list[str]:
        """The names of this sink's open transactions, of this and older generations."""
        shape = re.compile(rf"{re.escape(self._prefix)}-g(\d{{6,}})-[0-9a-f]{{12}}")
        matches = ((name, shape.fullmatch(name)) for name in self._client.list_open(f"{self._prefix}-g", deadline))
        return [name for name, match in matches if match is not None and int(match[1]) <= self._generation]

    def _end(self, waiting: Mapping[str, Committable], outcomes: dict[int, Outcome], deadline: Deadline) -> None:
        """EndTxn for all, then look at those that did not simply succeed, until all are proven or time is up."""
        unproven = dict(waiting)
        while unproven:
            endings = [Ending(n, c.payload["producer_id"], c.payload["producer_epoch"]) for n, c in unproven.items()]
            answers = self._client.end(endings, True, deadline)
            UNSURE.add(name for name, answer in answers.items() if not answer.sure)
            for name in [name for name, answer in answers.items() if answer.done]:
                committable = unproven.pop(name)
                outcomes[committable.writer] = Outcome.COMMITTED
                self._prove(committable, hint=True)
            if unproven:
                self._look(list(unproven), unproven, outcomes, deadline, ask=False)
                unproven = {name: c for name, c in unproven.items() if c.writer not in outcomes}
            if deadline.passed():
                return
            if unproven:
                time.sleep(_POLL)

    def _look(
        self,
        names: Sequence[str],
        waiting: dict[str, Committable],
        outcomes: dict[int, Outcome],
        deadline: Deadline,
        *,
        ask: bool,
    ) -> None:
        """Remove the proven `names` from `waiting`; with `ask` also those that could not be described."""
        states = self._client.describe(names, deadline)
        for name in names:
            verdict = judge(waiting[name].payload, states[name]) if name in states else None
            if verdict is None and name not in states and ask:
                verdict = Outcome.UNKNOWN
            if verdict is not None:
                committable = waiting.pop(name)
                outcomes[committable.writer] = verdict
                if verdict.visible:
                    self._prove(committable, hint=False)

    def _prove(self, committable: Committable, *, hint: bool) -> None:
        self._proven[_key(committable)] = None
        while len(self._proven) > 10 * _MOST_HINTED:
            self._proven.popitem(last=False)
        if hint:
            self._remember(self._committed, committable, committable.payload["started"])

    def _remember(self, where: OrderedDict[str, tuple[int, int]], committable: Committable, started: int) -> None:
        name, sequence = _key(committable)
        self._committed.pop(name, None)
        self._aborted.pop(name, None)
        where[name] = sequence, started
        while len(where) > _MOST_HINTED:
            where.popitem(last=False)

    def _raise_unfinished(self, names: Collection[str]) -> None:
        if names:
            raise SystemUnavailable(
                f"{len(names)} open Kafka transactions could not be aborted in time, among them {min(names)}.",
                safe="they stay invisible; readers with read_committed wait behind them until they time out.",
                to_do="check the brokers; the next start of the job aborts them.",
            )


def leftover(name: str, described: Described) -> Leftover:
    """An open transaction for display. Its id names the run; only the ledger has epoch and partition."""
    run = re.search(r"-g(\d{6,})-[0-9a-f]{12}$", name)
    producer = {"producer_id": described.producer_id, "producer_epoch": described.producer_epoch}
    limits = {"timeout_seconds": described.timeout / 1000, "partitions": list(described.partitions)}
    return Leftover(
        name,
        int(run[1]) if run else 0,
        started=described.started / 1000,
        payload={"transactional_id": name, **producer, "started": described.started},
        details={"state": described.state, **producer, **limits},
    )


def _id(committable: Committable) -> str:
    return committable.payload.get("transactional_id") or ""


def _key(committable: Committable) -> tuple[str, int]:
    return _id(committable), committable.payload.get("sequence", -1)  # a leftover has none


def _same(payload: Mapping[str, Any], described: Described) -> bool:
    """Whether `described` is the transaction of `payload`; one that was never sealed is known by its id only."""
    if "started" not in payload:
        return True
    described_as = described.producer_id, described.producer_epoch, described.started
    return described_as == (payload["producer_id"], payload["producer_epoch"], payload["started"])


def _follows(payload: Mapping[str, Any], described: Described) -> bool:
    """Whether it began after its producer's last transaction: a former coordinator remembers that one."""
    return bool(described.started > payload.get("after", -1))


def _spared(payload: Mapping[str, Any], described: Described) -> bool:
    """Whether the open transaction `described` may be that of `payload`; a stale coordinator reports an earlier one."""
    if _same(payload, described):
        return True
    return bool(described.producer_id == payload["producer_id"] and described.started < payload["started"])
