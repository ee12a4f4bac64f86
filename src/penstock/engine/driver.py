"""Carries the protocol's actions out against a ledger and its sinks. Nothing here decides anything.

`Coordinator` (from Spark to the sinks), `Drainer` (from the in-flight log to a sink) and `Settlement` (for a job that
is dead) add what differs: where an epoch comes from, how it is prepared, and whose log says that it is over.
"""

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
from penstock.engine.committers import Committers
from penstock.engine.explain import explain_stop
from penstock.engine.lookback import refuse_lost_rows
from penstock.engine.protocol import Action
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
