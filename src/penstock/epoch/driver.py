"""Carries the protocol's actions out against a ledger and its sinks: what epochs and drained epochs have in common.

`Coordinator` (from Spark to the sinks) and `Drainer` (from the in-flight log to a sink) add what differs: where an
epoch comes from, how it is prepared, and whose log says that it is over. Nothing here decides anything.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.checkpoint.decision import Claim, Committable, Decision, DecisionId, Outcome, WriterId
from penstock.contracts.sink import Committer, SinkScope, TwoPhaseSink
from penstock.deadline import Deadline
from penstock.epoch import protocol
from penstock.epoch.explain import explain_stop
from penstock.epoch.leftovers import refuse_unknown_runs
from penstock.epoch.protocol import Action
from penstock.errors import UidChanged

if TYPE_CHECKING:
    from penstock.checkpoint.ledger import Ledger
    from penstock.events import Events

log = logging.getLogger("penstock")

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Timing:
    """How long the steps after the pre-commit may take, together."""

    commit_seconds: float = 60.0  # longer than a broker's restart, shorter than any sane transaction timeout
    abort_seconds: float = 30.0


class Conductor(ABC):
    """One run of one ledger: its generation, its committers."""

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
    ) -> None:
        self._job, self._query, self._sinks = job, query, dict(sinks)
        self._ledger, self._events, self._timing = ledger, events, timing
        self._where = where  # for people: the checkpoint an error speaks of
        self._committers: dict[str, Committer] = {}
        self._pool = ThreadPoolExecutor(max_workers=max(4, len(sinks)), thread_name_prefix=f"penstock-{query}")
        self._generation = 0
        self._performed: set[type[Action]] = set()  # of the coroutine driven last
        self._keep: tuple[Committable, ...] = ()  # of the last decision
        self._swept = time.monotonic()
        self._looked_beyond = 0  # the generation under which that was done

    # What differs

    @abstractmethod
    def _look(self) -> protocol.Found: ...

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
        """A failpoint's name differs between the two."""

    def _claim(self, claim: Claim) -> None:
        self._ledger.claim(claim, self._query_id())

    @abstractmethod
    def _query_id(self) -> str | None: ...

    def _facts(self) -> dict[str, Any]:
        """What the generation says of itself."""
        return {"job": self._job, "host": socket.gethostname(), "pid": os.getpid(), "sinks": sorted(self._sinks)}

    def _scope(self, uid: str) -> SinkScope:
        return SinkScope(self._job, uid, self._generation)

    # The actions

    def _drive(self, steps: Generator[Action, Any, _T]) -> _T:
        """Carry out actions until the coroutine ends; what an action raises goes past it, to the caller."""
        answer: Any = None
        self._performed.clear()
        try:
            while True:
                action = steps.send(answer)
                self._performed.add(type(action))
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
                self._claim(claim)
                self._passed("recover.claimed")
            case protocol.NewestGeneration():
                return self._ledger.newest_generation()
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

    def _register(self) -> int:
        self._generation = self._ledger.register(self._facts())
        self._close_old()
        for uid, sink in self._sinks.items():
            self._committers[uid] = sink.open_committer(self._scope(uid))
        self._passed("recover.registered")
        return self._generation

    def _seal(self, committables: Sequence[Committable], deadline: Deadline) -> tuple[Committable, ...]:
        """Each sink confirms what its writers say they prepared."""
        sealed = self._per_sink(committables, lambda committer, own: committer.seal(own, deadline))
        by_id = {one.id: one for own in sealed.values() for one in own}
        return tuple(by_id.get(one.id, one) for one in committables)

    def _commit(self, decision: Decision) -> dict[WriterId, Outcome]:
        return self._commit_at_sinks(decision.id.epoch, decision.to_commit, Deadline(self._timing.commit_seconds))

    def _commit_at_sinks(
        self, epoch: int, committables: Sequence[Committable], deadline: Deadline
    ) -> dict[WriterId, Outcome]:
        missing = {one.sink for one in committables} - self._sinks.keys()
        if missing:
            raise self._uids_changed(sorted(missing), f"epoch {epoch} is decided for")
        answers = self._per_sink(committables, lambda committer, own: committer.commit(epoch, own, deadline))
        outcomes = {(sink, writer): outcome for sink, own in answers.items() for writer, outcome in own.items()}
        unknown = [one for one in committables if outcomes.get(one.id, Outcome.UNKNOWN) is Outcome.UNKNOWN]
        if unknown:
            # Only where nothing can be proven does somebody's word count, see `penstock transactions resolve`.
            outcomes |= self._ledger.ruled(epoch, self._query_id(), unknown)
        return outcomes

    def _sweep(self, keep: Sequence[Committable]) -> None:
        self._keep = tuple(keep)
        self._abort_dangling(keep)
        self._passed("recover.swept")

    def _abort_dangling(self, keep: Sequence[Committable]) -> None:
        deadline = Deadline(self._timing.abort_seconds)
        self._look_beyond(deadline)
        self._swept = time.monotonic()
        found = 0
        for uid, committer in self._committers.items():
            # A writer without rows prepared nothing: there is nothing of it to keep.
            found += committer.abort_dangling([one for one in keep if one.sink == uid and one.rows], deadline)
        if found:
            self._events.emit("aborted", query=self._query, generation=self._generation, count=found)

    def _look_beyond(self, deadline: Deadline) -> None:
        """Once in a run: no sink may have anything open of a newer run than the ledger knows."""
        if self._looked_beyond == self._generation:
            return
        for uid, committer in self._committers.items():
            newest = self._ledger.newest_generation
            refuse_unknown_runs(self._sinks[uid], self._scope(uid), committer, newest, deadline)
        self._looked_beyond = self._generation

    def _close_old(self) -> None:
        """A recovery that is tried again opens committers for its new generation."""
        for committer in self._committers.values():
            committer.close()
        self._committers.clear()

    def _close_committers(self) -> None:
        self._close_old()
        self._pool.shutdown(wait=False)

    # What they share

    def _per_sink(
        self, committables: Sequence[Committable], call: Callable[[Committer, Sequence[Committable]], _T]
    ) -> dict[str, _T]:
        """`call` for every sink that has committables, side by side; the first error is raised after all have ended."""
        groups: dict[str, list[Committable]] = {}
        for one in committables:
            groups.setdefault(one.sink, []).append(one)
        if len(groups) == 1:
            ((uid, own),) = groups.items()
            return {uid: call(self._committers[uid], own)}
        futures = {uid: self._pool.submit(call, self._committers[uid], own) for uid, own in groups.items()}
        for future in futures.values():
            future.exception()
        return {uid: future.result() for uid, future in futures.items()}

    def _uids_changed(self, missing: Sequence[str], why: str) -> UidChanged:
        return UidChanged(
            f"The ledger of query {self._query!r} knows the sinks {list(missing)} ({why} them),"
            f" but the program has {sorted(self._sinks)}.",
            safe="nothing was committed or aborted; what is decided waits, until its transactions expire.",
            to_do="give the sink its former uid and let the epoch finish, then rename it in a new query.",
        )

    def _emit(self, event: str, epoch: int | None, **fields: Any) -> None:
        more = {} if epoch is None else {"epoch": epoch}
        self._events.emit(event, query=self._query, generation=self._generation, **more, **fields)
