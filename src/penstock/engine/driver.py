"""Carries the protocol's actions out against a ledger and its sinks, and explains the protocol's stops as errors."""

from __future__ import annotations

import os
import secrets
import socket
from abc import ABC, abstractmethod
from collections.abc import Collection, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.checkpoint.decision import CheckpointState, Committable, Decision, DecisionId, Outcome, WriterId
from penstock.contracts.sink import SinkScope, TwoPhaseSink
from penstock.deadline import Deadline
from penstock.engine import protocol
from penstock.engine.committers import Committers, refuse_lost_rows
from penstock.engine.protocol import Action
from penstock.errors import (
    CheckpointBehind,
    OutcomeUnknown,
    PenstockError,
    PreCommitFailed,
    ReplayDiffers,
    Superseded,
    WritersLost,
)
from penstock.logs import bound

if TYPE_CHECKING:
    from penstock.checkpoint.ledger import Ledger
    from penstock.events import Events


_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Timing:
    """How long the steps after the pre-commit may take, together."""

    commit_seconds: float = 60.0  # longer than a broker's restart, shorter than any sane transaction timeout
    abort_seconds: float = 30.0


class ProtocolDriver(ABC):
    """One run of one ledger: its generation, its committers. Each action of the protocol has a method."""

    def __init__(
        self,
        *,
        job: str,
        query: str,
        sinks: Mapping[str, TwoPhaseSink],
        ledger: Ledger,
        events: Events,
        timing: Timing,
        where: str,
        run: str = "",
        registered: Ledger | None = None,
    ) -> None:
        """`run`: by what this process knows generations of its own again; it keeps it for all starts of the query."""
        self._run_id = run or secrets.token_hex(8)
        self._job, self._query, self._sinks = job, query, dict(sinks)
        self._ledger, self._events, self._timing = ledger, events, timing
        self._registered = registered or ledger  # where the runs of the query register
        self._where = where  # for people: the checkpoint an error speaks of
        self._committers = Committers(query, sinks)
        self._generation = 0
        self._next = 0  # the epoch that comes next, where all before it are known to be complete
        self._performed: set[type[Action]] = set()  # of the coroutine driven last

    def _drive(self, steps: Generator[Action, Any, _T]) -> _T:
        """Carry out actions until the coroutine ends; what an action raises goes past it, to the caller."""
        answer: Any = None
        self._performed.clear()
        try:
            while True:
                action = steps.send(answer)
                self._performed.add(type(action))
                with bound(**self._log_fields(), epoch=_epoch_of(action)):
                    answer = self._perform(action)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        except protocol.ProtocolStop as stop:
            raise explain_stop(stop, self._query, self._where) from getattr(stop, "error", None)

    def _perform(self, action: Action) -> Any:
        match action:
            case protocol.Register():
                return self._register()
            case protocol.Look():
                return self._look()
            case protocol.WriteClaim(claim):
                self._ledger.claim(claim, self._query_id())
                self._passed("recover.claimed")
            case protocol.NewestGeneration():
                return self._newest_generation()
            case protocol.RestoreLog(epoch, decided):
                return self._restore_log(epoch, decided)
            case protocol.PreCommit(epoch, only):
                return self._pre_commit(epoch, only)
            case protocol.Decide(decision):
                self._decide(decision)
            case protocol.Commit(decision):
                return self._commit(decision)
            case protocol.FinishLog(epoch, watermark):
                return self._finish_log(epoch, watermark)
            case protocol.Sweep(keep):
                self._sweep(keep)
        return None

    # The actions that differ

    @abstractmethod
    def _look(self) -> CheckpointState: ...

    @abstractmethod
    def _pre_commit(self, epoch: int, only: frozenset[str] | None) -> protocol.Prepared | protocol.Failed: ...

    @abstractmethod
    def _decide(self, decision: Decision) -> None: ...

    def _restore_log(self, epoch: int, decided: DecisionId | None) -> bool:
        """Only Spark's log can lose anything."""
        return False

    @abstractmethod
    def _finish_log(self, epoch: int, watermark: int | None) -> bool: ...

    @abstractmethod
    def _passed(self, point: str) -> None:
        """A failpoint of a recovery."""

    @abstractmethod
    def _query_id(self) -> str | None: ...

    # Those that are mostly the same

    def _register(self) -> int:
        self._generation = self._ledger.register(self._facts())
        self._committers.open({uid: self._scope(uid) for uid in self._sinks})
        self._passed("recover.registered")
        return self._generation

    def _newest_generation(self) -> int:
        return self._registered.newest_generation()

    def _facts(self) -> dict[str, Any]:
        """What the generation says of itself."""
        who = {"host": socket.gethostname(), "pid": os.getpid(), "run": self._run_id}
        return {"job": self._job, **who, "sinks": sorted(self._sinks)}

    def _last_own(self, known: int) -> int:
        """The newest generation that is known to be this process's. One that it registered without an answer counts: a
        start that took it for another run's would end the job, though nothing else runs it."""
        newest = self._ledger.newest_generation() if known else 0
        return newest if newest > known and self._ledger.is_of(newest, self._run_id) else known

    def _scope(self, uid: str) -> SinkScope:
        return SinkScope(self._job, uid, self._generation)

    def _commit(self, decision: Decision) -> dict[WriterId, Outcome]:
        return self._commit_at_sinks(decision.id.epoch, decision.to_commit, Deadline(self._timing.commit_seconds))

    def _commit_at_sinks(
        self, epoch: int, committables: Sequence[Committable], deadline: Deadline
    ) -> dict[WriterId, Outcome]:
        outcomes = self._committers.commit(epoch, committables, deadline)
        unknown = [
            committable
            for committable in committables
            if outcomes.get(committable.id, Outcome.UNKNOWN) is Outcome.UNKNOWN
        ]
        if unknown:
            # Only where nothing can be proven does somebody's word count, see `penstock transactions resolve`.
            outcomes |= self._ledger.ruled(epoch, self._query_id(), unknown)
        return outcomes

    def _sweep(self, keep: Sequence[Committable]) -> None:
        self._abort_dangling(keep)
        self._passed("recover.swept")

    def _abort_dangling(
        self, keep: Sequence[Committable], *, again: bool = False, without: Collection[str] = (), older: bool = False
    ) -> None:
        if again:
            self.refuse_superseded()
        if older:
            without = {*without, *self._committers.fencing()}
        if self._sinks.keys() <= set(without):
            return
        deadline = Deadline(self._timing.abort_seconds)
        # Before anything is aborted: what a sink has fallen back to prepared would go with the rest.
        refuse_lost_rows(self._ledger, self._query_id(), self._next, self._committers, self._query, deadline)
        self._committers.refuse_unknown_runs(self._registered.newest_generation, deadline)
        self._abort_known(keep, deadline, without)

    def _abort_known(self, keep: Sequence[Committable], deadline: Deadline, without: Collection[str] = ()) -> None:
        found = self._committers.abort_dangling(keep, deadline, without)
        if found:
            self._events.emit("aborted", query=self._query, generation=self._generation, count=found)

    # Beside the protocol

    def _log_fields(self) -> dict[str, str]:
        """What every line of the log says that an action causes."""
        return {"job": self._job, "query": self._query}

    def refuse_superseded(self) -> None:
        """Before something is written that no coroutine asks for: `Superseded` where a newer run has registered."""
        newest = self._registered.newest_generation()
        if newest > self._generation:
            raise explain_stop(protocol.Fenced(self._generation, newest), self._query, self._where)

    def emit(self, event: str, epoch: int | None, **fields: Any) -> None:
        """Tell of something that this run of the query did."""
        more = {} if epoch is None else {"epoch": epoch}
        self._events.emit(event, query=self._query, generation=self._generation, **more, **fields)


def _epoch_of(action: Action) -> int | None:
    match action:
        case protocol.Decide(decision) | protocol.Commit(decision):
            return decision.id.epoch
        case protocol.RestoreLog(epoch) | protocol.PreCommit(epoch) | protocol.FinishLog(epoch):
            return epoch
    return None


def explain_stop(stop: protocol.ProtocolStop, query: str, checkpoint: str) -> PenstockError:
    """The named error for a protocol stop. An error of our own that ended a pre-commit keeps its name."""
    match stop:
        case protocol.Fenced():
            return Superseded(
                f"Generation {stop.own} of query {query!r} has been superseded by generation {stop.newest}.",
                safe="this run has written nothing since, and the newer run goes on from what was decided.",
                to_do="nothing, if you started the newer run on purpose; else stop one of the two.",
            )
        case protocol.LogBehind():
            goes_on = f"goes on with epoch {stop.found}, its ledger with epoch {stop.epoch}"
            return CheckpointBehind(
                f"Spark's checkpoint of query {query!r} {goes_on}: what is between is visible, or decided, and"
                f" {checkpoint} has lost it."
                if stop.epoch > stop.found
                else f"Spark's checkpoint of query {query!r} has state of complete epochs, and {checkpoint} has lost"
                " its log of them.",
                safe="nothing was begun: going on from there would write their rows a second time.",
                to_do=f"bring {checkpoint} (offsets, commits, sources, state) back from a copy of the same moment as"
                " the ledger; or go on from a savepoint; or, to read it all again on purpose, use another query uid.",
            )
        case protocol.NotPrepared():
            if isinstance(stop.error, PenstockError):
                return stop.error
            return PreCommitFailed(
                f"Epoch {stop.epoch} of query {query!r} failed before its decision: {_first_lines(stop.error)}",
                safe="everything it had prepared is aborted; the epoch replays from the same positions.",
                to_do="see the cause above; the restart strategy says whether the job tries again.",
            )
        case protocol.Unproven():
            return OutcomeUnknown(
                f"Epoch {stop.decision.id.epoch} of query {query!r} is decided, but whether {_writers(stop.writers)}"
                " are committed could not be proven in time.",
                safe="the decision is durable; nothing is guessed, nothing doubled. The next start asks again.",
                to_do="see that the target system answers, then let the job restart. If it has forgotten them for good:"
                " penstock transactions resolve.",
            )
        case protocol.Lost():
            return WritersLost(
                f"Epoch {stop.decision.id.epoch} of query {query!r} is decided, but the target system has ended"
                f" {_writers(stop.writers)}.",
                safe="the decision and its counts and checksums are durable; the restart rewrites just these writers.",
                to_do="let the job restart; if it happens again, raise the sink's transaction timeout.",
            )
        case protocol.Differs():
            if stop.dealt_out:
                return _dealt_out(stop, query)
            return ReplayDiffers(
                f"Epoch {stop.replay.decision.id.epoch} of query {query!r} is decided and {_visible(stop.replay)};"
                f" the replay differs at {_writers(stop.writers)}"
                f" ({_counts(stop.replay.decision, stop.writers)}).",
                safe="what is visible stays; nothing was doubled, nothing more was written.",
                to_do="the plan is not deterministic (time, random numbers, an order that changes), so these rows"
                f" cannot be proven. Compare the outputs with the input positions in {checkpoint}/offsets/"
                f"{stop.replay.decision.id.epoch}, mend the missing rows by hand, and make the plan deterministic or"
                " raise the transaction timeout.",
            )
    return PenstockError(str(stop))


def _dealt_out(stop: protocol.Differs, query: str) -> ReplayDiffers:
    decision, prepared = stop.replay.decision, stop.prepared
    before, now = (sum(bool(one.rows) for one in side.committables) for side in (decision, prepared))
    cores = f"{decision.parallelism} cores" if decision.parallelism is not None else "the same number of cores"
    return ReplayDiffers(
        f"Epoch {decision.id.epoch} of query {query!r} is decided and {_visible(stop.replay)}; the replay has the very"
        f" same rows, but Spark has dealt them out to {now} writers with {prepared.parallelism} cores. {before} writers"
        f" wrote them, with {cores}, so what is lost cannot be told from what is visible.",
        safe="what is visible stays; nothing was doubled, nothing more was written, and the rows are at their source.",
        to_do=f"start the job with {cores}, and with the settings for shuffles and adaptive execution of the run that"
        " decided the epoch; once it is repaired, any number will do.",
    )


def _visible(replay: protocol.Replay) -> str:
    return f"partly visible: {_writers(sorted(replay.lost))} were lost" if replay.lost else "visible"


def _writers(writers: Sequence[WriterId]) -> str:
    shown = ", ".join(f"{sink}/{number}" for sink, number in list(writers)[:8])
    more = f" and {len(writers) - 8} more" if len(writers) > 8 else ""
    return f"the writers {shown}{more}" if writers else "no writers"


def _counts(decision: Decision, writers: Sequence[WriterId]) -> str:
    decided = {committable.id: committable.rows for committable in decision.committables}
    return "decided rows: " + ", ".join(
        f"{sink}/{number}={decided.get((sink, number), 0)}" for sink, number in writers[:8]
    )


def _first_lines(error: BaseException) -> str:
    text = str(error).strip() or type(error).__name__
    return "\n".join(text.splitlines()[:6])
