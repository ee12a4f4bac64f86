"""The epoch protocol: pure, without I/O, clock, Spark or any other system.

Four coroutines define everything. Each yields an action, is sent its result, and goes on; a driver carries the actions
out (`driver.py` for real, the exploration tests for every interleaving there is).

* `recover` runs once, before Spark's query starts: it finishes what an earlier run decided.
* `run_epoch` runs one epoch: prepare everywhere, decide once, commit everywhere.
* `commit_decided` and `abort_undecided` are parts of a recovery, for operators who end what a dead job has left.

An exception thrown in by the driver (storage failed, process stopping) leaves all without another action: nothing is
ever aborted because a decision *might* not have been written. What is durable by then is what the next `recover` finds.

Why no row is lost and none doubled when two runs overlap:

* A run first registers its generation, **then** looks for decisions. A deciding run first writes its decision, **then**
  looks for newer generations. So of two overlapping runs at least one sees the other.
* Having looked, and before doing anything, a run writes a *claim*: the epoch it found and the decision it honours, if
  any. A decision of an older generation that the newest claim does not honour was written after that run had looked;
  its author therefore saw the newer generation and committed nothing: it is void. Without the claim, a third run could
  not tell such a decision from one that was half carried out, while the second run may have replaced the state.
* Having claimed, and still before doing anything, it looks for newer generations once more: a run that registered
  since may have looked without seeing the claim, so only a claim made by the then newest run is acted on. So the order
  of a start is always: register → look → claim → look for newer generations → act.

Why a power cut changes nothing: decisions and claims are synced, Spark's own log is not, so the log may have lost what
the ledger has. An epoch is decided only when all epochs before it are complete. So where the ledger knows of a later
epoch than Spark's log, the ledger is right (`next_epoch`), and the log is restored from it before anything is committed
or begun; where it cannot be, nothing is started (`LogBehind`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from penstock.checkpoint.decision import (
    CheckpointState,
    Claim,
    Committable,
    Decision,
    DecisionId,
    Outcome,
    StateIds,
    WriterId,
    honoured,
    match_replay,
    next_epoch,
)

# Actions. Each says what its driver sends back.


@dataclass(frozen=True, slots=True)
class Register:
    """Become the newest generation, durably. → `int`, the generation."""


@dataclass(frozen=True, slots=True)
class Look:
    """Read Spark's log and the ledger. → `CheckpointState`."""


@dataclass(frozen=True, slots=True)
class WriteClaim:
    """Make the claim durable. → None."""

    claim: Claim


@dataclass(frozen=True, slots=True)
class NewestGeneration:
    """→ `int`, the newest registered generation. `of_others`: 0 where it is this process's own, answered or not."""

    of_others: bool = False


@dataclass(frozen=True, slots=True)
class RestoreLog:
    """Make Spark's log say that `epoch` comes next, from what the ledger has: what it lost is written again, what was
    half-written, or an undecided attempt left in Spark's way, goes. With `decision`, the epoch's barrier is the one
    that it was decided on. → True, or False where something missing cannot be had; nothing was changed then."""

    epoch: int
    decision: DecisionId | None


@dataclass(frozen=True, slots=True)
class PreCommit:
    """Run the plan and prepare. With `only`, the writers of those sinks alone write; all others just count and sum.
    → `Prepared` or `Failed`."""

    epoch: int
    only: frozenset[str] | None


@dataclass(frozen=True, slots=True)
class Decide:
    """Create the manifest atomically. → None; an exception means that it may or may not exist."""

    decision: Decision


@dataclass(frozen=True, slots=True)
class Commit:
    """Commit every committable that has rows, idempotently. → mapping of `WriterId` to `Outcome`."""

    decision: Decision


@dataclass(frozen=True, slots=True)
class FinishLog:
    """Complete Spark's own log for the epoch. → True, or False where its format is not known, or state is lost."""

    epoch: int
    watermark: int | None
    state_ids: StateIds | None = None


@dataclass(frozen=True, slots=True)
class Sweep:
    """Find whatever this and older generations left open, except `keep`, and abort it. → None."""

    keep: tuple[Committable, ...]


Action = Register | Look | WriteClaim | NewestGeneration | RestoreLog | PreCommit | Decide | Commit | FinishLog | Sweep


# What comes back.


@dataclass(frozen=True, slots=True)
class Prepared:
    """Every task reported. `strays`: attempts failed or raced on the way, so leftovers are possible."""

    committables: tuple[Committable, ...]
    watermark: int | None = 0
    strays: bool = False
    parallelism: int | None = None
    state_ids: StateIds | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """A task, a sink or the plan failed before the decision."""

    error: BaseException


# How the coroutines end.


@dataclass(frozen=True, slots=True)
class Replay:
    """The next epoch was decided already: run its plan only to prove it equal, and rewrite the `lost` writers."""

    decision: Decision
    lost: frozenset[WriterId]

    @property
    def sinks(self) -> frozenset[str]:
        """Where something is to be rewritten."""
        return frozenset(sink for sink, _ in self.lost)


@dataclass(frozen=True, slots=True)
class Resume:
    """Recovery is over; Spark's query may start. `action` names what was done."""

    generation: int
    epoch: int
    action: str  # "none", "finished", "void", "repair" or "verify"
    replay: Replay | None = None


class ProtocolStop(Exception):
    """The epoch or the recovery ends here; the next run's recovery takes over."""


class Fenced(ProtocolStop):
    """A newer generation exists: touch nothing, exit."""

    def __init__(self, own: int, newest: int) -> None:
        super().__init__(f"generation {own} is superseded by {newest}")
        self.own, self.newest = own, newest


class LogBehind(ProtocolStop):
    """Spark's log has lost epochs that are decided, and they cannot be written again: begin nothing."""

    def __init__(self, found: int, epoch: int) -> None:
        super().__init__(f"epoch {epoch} comes next, Spark's log goes on with {found}")
        self.found, self.epoch = found, epoch


class NotPrepared(ProtocolStop):
    """Before the decision: all is aborted, the epoch replays."""

    def __init__(self, epoch: int, error: BaseException) -> None:
        super().__init__(f"epoch {epoch} was not prepared")
        self.epoch, self.error = epoch, error


class Unproven(ProtocolStop):
    """After the decision: outcomes that could not be proven in time."""

    def __init__(self, decision: Decision, writers: Collection[WriterId]) -> None:
        super().__init__(f"epoch {decision.id.epoch}: the outcome of {len(writers)} writers is unknown")
        self.decision, self.writers = decision, tuple(sorted(writers))


class Lost(ProtocolStop):
    """After the decision, in the run that made it: the next recovery repairs."""

    def __init__(self, decision: Decision, writers: Collection[WriterId]) -> None:
        super().__init__(f"epoch {decision.id.epoch}: {len(writers)} writers are lost")
        self.decision, self.writers = decision, tuple(sorted(writers))


class Differs(ProtocolStop):
    """The replay is not what was decided, so the lost writers cannot be repaired with proof. `dealt_out`: it has the
    same rows for every sink, and other writers have them."""

    def __init__(self, replay: Replay, prepared: Prepared, writers: Collection[WriterId]) -> None:
        super().__init__(f"epoch {replay.decision.id.epoch}: the replay differs at {len(writers)} writers")
        self.replay, self.prepared, self.writers = replay, prepared, tuple(sorted(writers))
        self.dealt_out = not match_replay(replay.decision.committables, prepared.committables, frozenset())[1]


def recover(previous: int = 0) -> Generator[Action, Any, Resume]:
    """Finish what an earlier run decided, abort what it did not, and say how the next epoch is to be run.

    `previous` is the generation this very process had before a failure, if it had one: when a newer one has registered
    meanwhile, the failure was the other's taking over, and coming back would take the job away from it again."""
    if previous:
        yield from _still_newest(previous, of_others=True)
    generation, state, epoch, decision = yield from _take_over()
    if state.damaged or epoch > state.epoch or (decision is not None and not state.barrier):
        restored: bool = yield RestoreLog(epoch, decision.id if decision else None)
        if not restored:
            raise LogBehind(state.epoch, epoch)
    if decision is None:
        yield Sweep(())
        return Resume(generation, epoch, "none")

    outcomes: Mapping[WriterId, Outcome] = yield Commit(decision)
    lost = _lost_writers(decision, outcomes)
    if not lost:
        finished: bool = yield FinishLog(epoch, decision.watermark, decision.state_ids)
        yield Sweep(decision.committables)
        if finished:
            return Resume(generation, epoch + 1, "finished")
        return Resume(generation, epoch, "verify", Replay(decision, frozenset()))
    if len(lost) == len(decision.to_commit):
        # Nothing of it is visible or ever will be. The next decision for this epoch outranks it by its generation.
        yield Sweep(())
        return Resume(generation, epoch, "void")
    yield Sweep(decision.committables)
    return Resume(generation, epoch, "repair", Replay(decision, lost))


def commit_decided() -> Generator[Action, Any, tuple[Decision, Mapping[WriterId, Outcome]] | None]:
    """The steps of a recovery up to its commit: returns what was decided, if anything, and what became of it."""
    *_, decision = yield from _take_over()
    return (decision, (yield Commit(decision))) if decision else None


def abort_undecided(chosen: Callable[[Committable], bool]) -> Generator[Action, Any, Decision | None]:
    """The steps of a recovery without its commit. Aborts nothing and returns the decision, if it names one `chosen`."""
    *_, decision = yield from _take_over()
    decided = decision.committables if decision else ()
    if any(map(chosen, decided)):
        return decision
    yield Sweep(decided)
    return None


def _take_over() -> Generator[Action, Any, tuple[int, CheckpointState, int, Decision | None]]:
    generation: int = yield Register()
    state: CheckpointState = yield Look()
    epoch, decision = next_epoch(state), honoured(state)
    yield WriteClaim(Claim(generation, epoch, decision.id if decision else None))
    yield from _still_newest(generation)
    return generation, state, epoch, decision


def may_try_again(performed: Collection[type[Action]]) -> bool:
    """Whether a run that failed in the middle of an epoch, after (or in) these actions, may itself try it again. Not
    once it may be decided: a second try would begin by aborting what the decision names. From then on the epoch is
    only ever committed, by the next recovery."""
    return Decide not in performed


def replay_of(resume: Resume, epoch: int) -> Replay | None:
    """What recovery hands over to `epoch`, the first one that Spark runs after it. Raises `LogBehind` where recovery
    found another one to come next: then Spark has read another log, or read it before it was lost."""
    if epoch < resume.epoch or (resume.replay is not None and epoch != resume.epoch):
        raise LogBehind(epoch, resume.epoch)
    return resume.replay


def run_epoch(generation: int, epoch: int, replay: Replay | None = None) -> Generator[Action, Any, Decision | None]:
    """One epoch from barrier to visible. When this returns, Spark may write its commit; when it raises, it must not.

    Returns the decision carried out, None where a replay proved that all was visible already."""
    yield from _still_newest(generation)
    prepared: Prepared | Failed = yield PreCommit(epoch, replay.sinks if replay else None)
    if isinstance(prepared, Failed):
        yield Sweep(replay.decision.committables if replay else ())
        raise NotPrepared(epoch, prepared.error)

    committables = prepared.committables
    if replay is not None:
        matches, differing = match_replay(replay.decision.committables, prepared.committables, replay.sinks)
        if differing:
            yield Sweep(replay.decision.committables)
            raise Differs(replay, prepared, differing)
        if not replay.lost:
            return None
        committables = tuple(
            replace(matches[old.id], writer=old.writer) if old.id in replay.lost else old
            for old in replay.decision.committables
        )

    of_plan = (prepared.watermark, prepared.parallelism, prepared.state_ids)
    decision = Decision(DecisionId(epoch, generation), committables, *of_plan)
    yield Decide(decision)
    yield from _still_newest(generation)
    outcomes: Mapping[WriterId, Outcome] = yield Commit(decision)
    lost = _lost_writers(decision, outcomes)
    if lost:
        raise Lost(decision, lost)
    if prepared.strays or replay is not None:
        yield Sweep(decision.committables)
    return decision


def _still_newest(generation: int, *, of_others: bool = False) -> Generator[Action, Any, None]:
    newest: int = yield NewestGeneration(of_others)
    if newest > generation:
        raise Fenced(generation, newest)


def _lost_writers(decision: Decision, outcomes: Mapping[WriterId, Outcome]) -> frozenset[WriterId]:
    """The lost writers; a writer without an answer is unknown, and unknown never becomes committed."""
    answered = {committable.id: outcomes.get(committable.id, Outcome.UNKNOWN) for committable in decision.to_commit}
    unknown = [writer for writer, outcome in answered.items() if outcome is Outcome.UNKNOWN]
    if unknown:
        raise Unproven(decision, unknown)
    return frozenset(writer for writer, outcome in answered.items() if outcome is Outcome.LOST)
