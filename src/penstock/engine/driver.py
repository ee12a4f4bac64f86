"""Drives the protocol: `LedgerRun` is one run of one ledger with its sinks; `explain_stop` turns a stop into an error.

`Coordinator` (from Spark to the sinks), `Drainer` (from the in-flight log to a sink) and `Settlement` (for a dead job)
each own a `LedgerRun` and perform the actions that differ: where an epoch comes from, how it is prepared, and which log
completes it.
"""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from typing import Any, TypeVar

from penstock import errors
from penstock.checkpoint.decision import Claim, Committable, Decision, Outcome, WriterId
from penstock.checkpoint.ledger import Ledger
from penstock.config import Checkpoints
from penstock.contracts.sink import SinkScope, TwoPhaseSink
from penstock.deadline import Deadline
from penstock.engine import protocol
from penstock.engine.committers import Committers, refuse_lost_rows
from penstock.events import Events
from penstock.failpoints import failpoint
from penstock.logs import bound

_T = TypeVar("_T")


class LedgerRun:
    """One run of one ledger: its generation, its committers, and the actions that are the same wherever an epoch comes
    from. It never calls back into its owner, except that `drive` hands it the actions of a coroutine.

    `query_id` gives the id of Spark's query. `token` is how this process recognises its own generations; it is the same
    for all starts of a query. `registered` is the ledger in which the runs of the query register, if it is another
    one. `where` is the checkpoint that errors name."""

    mark = ""  # behind a sink's uid in the names of what the run leaves in the other system

    def __init__(
        self,
        *,
        job: str,
        query: str,
        sinks: Mapping[str, TwoPhaseSink],
        ledger: Ledger,
        events: Events,
        where: str,
        query_id: Callable[[], str | None],
        limits: Checkpoints | None = None,
        token: str = "",
        registered: Ledger | None = None,
    ) -> None:
        self.job, self.query, self.sinks, self.ledger = job, query, dict(sinks), ledger
        self.limits = limits or Checkpoints()
        self.query_id, self.committers = query_id, Committers(query, sinks)
        self.generation = 0
        self.next_epoch = 0  # where all epochs before it are known to be complete
        self.performed: set[type] = set()  # by the coroutine driven last
        self._events, self._where = events, where
        self._token, self._registered = token or secrets.token_hex(8), registered or ledger
        self.log_fields = {"job": job, "query": query, **({"sink": ", ".join(sinks)} if self.mark else {})}

    def drive(self, steps: Generator[Any, Any, _T], perform: Callable[[Any], Any]) -> _T:
        """Carry out actions until the coroutine ends; whether the run is still the newest, and its claim, are answered
        here, all else by `perform`. What an action raises skips the coroutine and goes to the caller."""
        reply: Any = None
        self.performed.clear()
        try:
            while True:
                action = steps.send(reply)
                self.performed.add(type(action))
                with bound(**self.log_fields, epoch=_epoch_of(action)):
                    match action:
                        case protocol.NewestGeneration(of_others):
                            reply = self.newest_of_others() if of_others else self.newest_generation()
                        case protocol.WriteClaim(claim):
                            reply = None
                            self.claim(claim)
                        case _:
                            reply = perform(action)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        except protocol.ProtocolStop as stop:
            raise explain_stop(stop, self.query, self._where) from getattr(stop, "error", None)

    # The run

    def facts(self) -> dict[str, Any]:
        process = {"host": socket.gethostname(), "pid": os.getpid(), "run": self._token}
        return {"job": self.job, **process, "sinks": sorted(self.sinks)}

    def register(self, facts: Mapping[str, Any]) -> int:
        self.generation = self.ledger.register(dict(facts))
        self.open_committers()
        failpoint("recover.registered")
        return self.generation

    def adopt(self, generation: int, epoch: int) -> None:
        """Go on as `generation`, which another process of this driver has registered, with `epoch`."""
        self.generation, self.next_epoch = generation, epoch
        self.open_committers()

    def open_committers(self) -> None:
        self.committers.open({uid: self.scope(uid) for uid in self.sinks})

    def scope(self, uid: str) -> SinkScope:
        return SinkScope(self.job, f"{uid}{self.mark}", self.generation)

    def claim(self, claim: Claim) -> None:
        self.ledger.claim(claim, self.query_id())
        failpoint("recover.claimed")

    def newest_generation(self) -> int:
        return self._registered.newest_generation()

    def newest_of_others(self) -> int:
        """One look, because a registration that was not answered may still arrive: a start that took it for another
        run's would end the job, though nothing else runs it."""
        newest = self.ledger.newest_generation()
        return 0 if self.ledger.is_of(newest, self._token) else newest

    def refuse_superseded(self) -> None:
        """`Superseded` if a newer run has registered. Called before a write that no coroutine asks for."""
        if (newest := self._registered.newest_generation()) > self.generation:
            raise explain_stop(protocol.Fenced(self.generation, newest), self.query, self._where)

    # Its sinks

    def commit(
        self, epoch: int, committables: Sequence[Committable], deadline: Deadline | None = None
    ) -> dict[WriterId, Outcome]:
        """The proven outcome of each; an operator's ruling where nothing can be proven (`transactions resolve`)."""
        outcomes = self.committers.commit(epoch, committables, deadline or Deadline(self.limits.commit_timeout_seconds))
        unknown = [item for item in committables if outcomes.get(item.id, Outcome.UNKNOWN) is Outcome.UNKNOWN]
        return outcomes | self.ledger.ruled(epoch, self.query_id(), unknown) if unknown else outcomes

    def rule(self, epoch: int, committables: Sequence[Committable], outcome: Outcome) -> None:
        """Record an operator's ruling on how these ended."""
        self.refuse_superseded()
        self.ledger.rule(epoch, self.query_id(), committables, outcome)

    def abort_dangling(
        self, keep: Sequence[Committable], *, again: bool = False, without: Collection[str] = (), older: bool = False
    ) -> None:
        """Abort what is open in the sinks, except `keep`. `again`: not the first sweep of this run; then the sinks in
        `without` are skipped and, if it is only for what `older` runs leave, those that fence older runs."""
        if again:
            self.refuse_superseded()
        if older:
            without = {*without, *self.committers.fencing()}
        if self.sinks.keys() <= set(without):
            return
        deadline = Deadline(self.limits.abort_timeout_seconds)
        # Before the abort: it would also end what a sink has fallen back to prepared.
        refuse_lost_rows(self.ledger, self.query_id(), self.next_epoch, self.committers, self.query, deadline)
        self.committers.refuse_unknown_runs(self._registered.newest_generation, deadline)
        self.abort_known(keep, deadline, without)

    def abort_known(self, keep: Sequence[Committable], deadline: Deadline, without: Collection[str] = ()) -> None:
        if count := self.committers.abort_dangling(keep, deadline, without):
            self.emit("aborted", None, count=count)

    def emit(self, event: str, epoch: int | None, **fields: Any) -> None:
        more = {} if epoch is None else {"epoch": epoch}
        self._events.emit(event, query=self.query, generation=self.generation, **more, **fields)


def _epoch_of(action: Any) -> int | None:
    if isinstance(action, protocol.Decide | protocol.Commit):
        return action.decision.id.epoch
    return getattr(action, "epoch", None)


def explain_stop(stop: protocol.ProtocolStop, query: str, checkpoint: str) -> errors.PenstockError:
    """The named error for a protocol stop. A Penstock error that ended a pre-commit is returned as it is."""
    match stop:
        case protocol.Fenced():
            return errors.Superseded(
                f"Generation {stop.own} of query {query!r} has been superseded by generation {stop.newest}.",
                safe="this run has written nothing since, and the newer run goes on from what was decided.",
                to_do="nothing, if you started the newer run on purpose; else stop one of the two.",
            )
        case protocol.LogBehind():
            goes_on = f"goes on with epoch {stop.found}, its ledger with epoch {stop.epoch}"
            return errors.CheckpointBehind(
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
            if isinstance(stop.error, errors.PenstockError):
                return stop.error
            cause = "\n".join((str(stop.error).strip() or type(stop.error).__name__).splitlines()[:6])
            return errors.PreCommitFailed(
                f"Epoch {stop.epoch} of query {query!r} failed before its decision: {cause}",
                safe="everything it had prepared is aborted; the epoch replays from the same positions.",
                to_do="see the cause above; the restart strategy says whether the job tries again.",
            )
        case protocol.Unproven():
            return errors.OutcomeUnknown(
                f"Epoch {stop.decision.id.epoch} of query {query!r} is decided, but whether {_writers(stop.writers)}"
                " are committed could not be proven in time.",
                safe="the decision is durable; nothing is guessed, nothing doubled. The next start asks again.",
                to_do="see that the target system answers, then let the job restart. If it has forgotten them for good:"
                " penstock transactions resolve.",
            )
        case protocol.Lost():
            return errors.WritersLost(
                f"Epoch {stop.decision.id.epoch} of query {query!r} is decided, but the target system has ended"
                f" {_writers(stop.writers)}.",
                safe="the decision and its counts and checksums are durable; the restart rewrites just these writers.",
                to_do="let the job restart; if it happens again, raise the sink's transaction timeout.",
            )
        case protocol.Differs():
            if stop.dealt_out:
                return _dealt_out(stop, query)
            return errors.ReplayDiffers(
                f"Epoch {stop.replay.decision.id.epoch} of query {query!r} is decided and {_visible(stop.replay)};"
                f" the replay differs at {_writers(stop.writers)}"
                f" ({_counts(stop.replay.decision, stop.writers)}).",
                safe="what is visible stays; nothing was doubled, nothing more was written.",
                to_do="the plan is not deterministic (time, random numbers, an order that changes), so these rows"
                f" cannot be proven. Compare the outputs with the input positions in {checkpoint}/offsets/"
                f"{stop.replay.decision.id.epoch}, repair the missing rows by hand, and make the plan deterministic or"
                " raise the transaction timeout.",
            )
    return errors.PenstockError(str(stop))


def _dealt_out(stop: protocol.Differs, query: str) -> errors.ReplayDiffers:
    decision, prepared = stop.replay.decision, stop.prepared
    before, now = (sum(bool(committable.rows) for committable in side.committables) for side in (decision, prepared))
    cores = f"{decision.parallelism} cores" if decision.parallelism is not None else "the same number of cores"
    return errors.ReplayDiffers(
        f"Epoch {decision.id.epoch} of query {query!r} is decided and {_visible(stop.replay)}; the replay has the very"
        f" same rows, but Spark has dealt them out to {now} writers with {prepared.parallelism} cores. {before} writers"
        f" wrote them, with {cores}, so the lost rows cannot be distinguished from the visible ones.",
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
    rows = {committable.id: committable.rows for committable in decision.committables}
    return "decided rows: " + ", ".join(
        f"{sink}/{number}={rows.get((sink, number), 0)}" for sink, number in writers[:8]
    )
