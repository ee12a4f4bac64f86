"""The protocol's ends, said to people: what happened, what is safe, what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.engine import protocol
from penstock.errors import (
    CheckpointBehind,
    OutcomeUnknown,
    PenstockError,
    PreCommitFailed,
    ReplayDiffers,
    Superseded,
    WritersLost,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.checkpoint.decision import Decision, WriterId


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
