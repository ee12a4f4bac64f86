"""The epoch protocol in every interleaving and with every crash there is, inside bounds; and proof that this can fail.

`exploration.py` says what is checked, `protocol_world.py` what can happen.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import replace
from typing import Any

import pytest

from penstock.checkpoint import decision as decision_module
from penstock.checkpoint.decision import CheckpointState, match_replay
from penstock.engine import protocol as p
from tests.support.exploration import explore
from tests.support.protocol_world import EVERY_WRITER, Protocol, Scenario, Simulation
from tests.support.walking import Violation

Matched = tuple[dict[p.WriterId, p.Committable], set[p.WriterId]]

LEFT, RIGHT, RIGHT_1 = EVERY_WRITER
ONE_EPOCH = ((LEFT, RIGHT),)
TWO_EPOCHS = ((LEFT, RIGHT), (LEFT,))

# A scenario, and how many states it has at least: the exploration cannot shrink without somebody noticing.
SCENARIOS = {
    "two epochs": (Scenario(TWO_EPOCHS), 80_000),
    "two epochs, each execution differs": (Scenario(TWO_EPOCHS, deterministic=False), 100_000),
    "four runs": (Scenario(ONE_EPOCH, generations=4, faults=0), 65_000),
    "four runs, each execution differs": (Scenario(ONE_EPOCH, False, generations=4, faults=0), 100_000),
    "two faults": (Scenario(ONE_EPOCH, faults=2), 75_000),
    "two faults, each execution differs, no zombies": (Scenario(ONE_EPOCH, False, alive=1, faults=2), 2_500),
    "three alive": (Scenario(ONE_EPOCH, alive=3, faults=0), 30_000),
    "three writers": (Scenario(((LEFT, RIGHT, RIGHT_1),), generations=2, faults=2), 10_000),
    "writers change their numbers": (
        Scenario(((RIGHT, RIGHT_1),), permuted=True, generations=3, faults=2),
        10_000,
    ),
    "a replay deals its rows out to other writers": (
        Scenario(((LEFT, RIGHT, RIGHT_1),), dealt=True, log_known=False, generations=2),
        1_000,
    ),
    "an epoch without rows": (Scenario(((), (LEFT,)), generations=2), 1_000),
    "the power fails": (Scenario(TWO_EPOCHS, generations=3, alive=1, cuts=1), 1),
    "the power fails twice": (Scenario(((LEFT,), (LEFT,), (LEFT,)), generations=3, alive=1, faults=0, cuts=2), 1),
    "the power fails, each execution differs": (
        Scenario(((LEFT,), (LEFT,)), False, generations=3, alive=2, faults=0, cuts=1),
        1,
    ),
    "the power fails while Spark runs before recovery": (
        Scenario(((LEFT,), (LEFT,)), generations=3, alive=1, cuts=1, running=True),
        1,
    ),
    "Spark runs before recovery": (Scenario(TWO_EPOCHS, generations=3, alive=2, faults=0, running=True), 1),
    "failures are tolerated": (Scenario(ONE_EPOCH, generations=2, faults=1, tries=2), 1),
    "failures are tolerated, each execution differs": (
        Scenario(((LEFT,), (LEFT,)), False, generations=2, alive=1, faults=1, tries=2),
        1,
    ),
    "stopped with a drain": (Scenario(((LEFT,), (LEFT,)), generations=3, alive=1, faults=1, drains=1), 1),
    "stopped with a drain, and taken over": (
        Scenario(((LEFT,), (LEFT,)), generations=3, alive=2, faults=0, drains=1),
        1,
    ),
    "somebody ends what was left": (Scenario(ONE_EPOCH, generations=3, faults=1, settlements=1), 100_000),
    "somebody ends what was left, each execution differs": (
        Scenario(ONE_EPOCH, False, generations=3, faults=0, settlements=1),
        40_000,
    ),
    "two people end what was left": (Scenario(ONE_EPOCH, generations=3, faults=0, settlements=2), 20_000),
    "somebody ends what was left after the power has failed": (
        Scenario(((LEFT,), (LEFT,)), generations=4, alive=1, faults=0, cuts=1, settlements=1),
        50_000,
    ),
    "two runs create one barrier": (Scenario(((LEFT,), (LEFT,)), generations=3, faults=0, races=1), 15_000),
    "two runs create one barrier twice, each execution differs": (
        Scenario(((LEFT,), (LEFT,)), False, generations=3, faults=0, races=2),
        20_000,
    ),
    "two runs create one barrier, and a part is lost": (Scenario(ONE_EPOCH, generations=3, faults=1, races=1), 35_000),
    "a registration raises, and queries start again": (
        Scenario(ONE_EPOCH, generations=3, faults=0, ghosts=1, restarts=1),
        50_000,
    ),
    "the newest run lives": (Scenario(TWO_EPOCHS, generations=2, faults=1, tends=True), 4_500),
    "the newest of three runs lives": (Scenario(ONE_EPOCH, generations=3, alive=3, faults=0, tends=True), 25_000),
    "unknown log": (Scenario(ONE_EPOCH, log_known=False), 35_000),
    "unknown log, each execution differs, no zombies": (Scenario(ONE_EPOCH, False, log_known=False, alive=1), 1_500),
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_nothing_is_lost_doubled_or_mixed_and_all_of_it_ends(name: str) -> None:
    scenario, at_least = SCENARIOS[name]
    explored = explore(scenario)
    print(f"{name}: {explored.states:,} states, {explored.worlds:,} worlds")  # noqa: T201 (for pytest -rP)
    assert explored.states >= at_least


# Mutants. Each stands between the protocol and the world, and changes what one says to the other.

Meddler = Callable[[p.Action], Generator[p.Action, Any, Any]]
"""Given an action of the protocol, does whatever it likes with the world, and returns the answer."""


def meddled(meddler: Callable[[], Meddler]) -> Protocol:
    def through(coroutine: Generator[p.Action, Any, Any]) -> Generator[p.Action, Any, Any]:
        meddle = meddler()
        try:
            action = next(coroutine)
            while True:
                action = coroutine.send((yield from meddle(action)))
        except StopIteration as end:
            return end.value

    return Protocol(
        lambda *previous: through(p.recover(*previous)),
        lambda *arguments: through(p.run_epoch(*arguments)),
        settle=tuple(lambda make=make: through(make()) for make in Protocol().settle),  # type: ignore[misc]
    )


def only_when_settling(mutant: Protocol) -> Protocol:
    """The runs of the job are as they should be; who ends what they left is not."""
    return Protocol(settle=mutant.settle)


def stateless(meddle: Meddler) -> Protocol:
    return meddled(lambda: meddle)


def outcomes_as(change: Callable[[dict[p.WriterId, p.Outcome]], dict[p.WriterId, p.Outcome]]) -> Protocol:
    def meddle(action: p.Action) -> Generator[p.Action, Any, Any]:
        answer = yield action
        return change(answer) if isinstance(action, p.Commit) else answer

    return stateless(meddle)


def taking(one: p.Outcome, for_another: p.Outcome) -> Protocol:
    return outcomes_as(lambda all_: {writer: for_another if told is one else told for writer, told in all_.items()})


def without(kind: type[p.Action]) -> Protocol:
    def meddle(action: p.Action) -> Generator[p.Action, Any, Any]:
        return None if isinstance(action, kind) else (yield action)

    return stateless(meddle)


def no_check_after(kind: type[p.Action] | None) -> Protocol:
    """The question for newer generations that follows this action is not asked; None: that before anything else."""

    def meddler() -> Meddler:
        last: type[p.Action] | None = None

        def meddle(action: p.Action) -> Generator[p.Action, Any, Any]:
            nonlocal last
            skipped = isinstance(action, p.NewestGeneration) and last is kind
            last = type(action)
            return 0 if skipped else (yield action)

        return meddle

    return meddled(meddler)


def look_before_register() -> Protocol:
    def meddler() -> Meddler:
        found: list[CheckpointState] = []

        def meddle(action: p.Action) -> Generator[p.Action, Any, Any]:
            if isinstance(action, p.Register):
                found.append((yield p.Look()))
            return found.pop() if isinstance(action, p.Look) else (yield action)

        return meddle

    return meddled(meddler)


def some_lost_is_void() -> Protocol:
    return outcomes_as(lambda all_: dict.fromkeys(all_, p.Outcome.LOST) if p.Outcome.LOST in all_.values() else all_)


def claims_are_not_read() -> Protocol:
    def meddle(action: p.Action) -> Generator[p.Action, Any, Any]:
        answer = yield action
        return replace(answer, claims=()) if isinstance(action, p.Look) else answer

    return stateless(meddle)


def claims_honour_nothing() -> Protocol:
    def meddle(action: p.Action) -> Generator[p.Action, Any, Any]:
        if isinstance(action, p.WriteClaim):
            action = p.WriteClaim(replace(action.claim, honours=None))
        return (yield action)

    return stateless(meddle)


def claims_go_by_sparks_log() -> Protocol:
    """The claim names the epoch that Spark's log says, also where the ledger knows of later ones."""

    def meddler() -> Meddler:
        found: list[CheckpointState] = []

        def meddle(action: p.Action) -> Generator[p.Action, Any, Any]:
            if isinstance(action, p.WriteClaim):
                action = p.WriteClaim(replace(action.claim, epoch=found[0].epoch))
            answer = yield action
            if isinstance(action, p.Look):
                found.append(answer)
            return answer

        return meddle

    return meddled(meddler)


def first(early: Callable[[p.Action], p.Action | None]) -> Protocol:
    """Another action comes before the one whose turn it is."""

    def meddle(action: p.Action) -> Generator[p.Action, Any, Any]:
        before = early(action)
        if before:
            yield before
        return (yield action)

    return stateless(meddle)


def sweep_before_commit() -> Protocol:
    swept_first = first(lambda action: p.Sweep(()) if isinstance(action, p.Commit) else None)
    return Protocol(recover=swept_first.recover)


def finish_log_before_commit() -> Protocol:
    return first(lambda action: p.FinishLog(action.decision.id.epoch, 0) if isinstance(action, p.Commit) else None)


def commit_before_decide() -> Protocol:
    return first(lambda action: p.Commit(action.decision) if isinstance(action, p.Decide) else None)


def keep_nothing() -> Protocol:
    def meddle(action: p.Action) -> Generator[p.Action, Any, Any]:
        return (yield p.Sweep(()) if isinstance(action, p.Sweep) else action)

    return stateless(meddle)


def replay_afresh() -> Protocol:
    return Protocol(run_epoch=lambda generation, epoch, _: p.run_epoch(generation, epoch))


def repair_names_only_the_rewritten() -> Protocol:
    def run_epoch(generation: int, epoch: int, replay: p.Replay | None) -> Generator[p.Action, Any, Any]:
        def meddle(action: p.Action) -> Generator[p.Action, Any, Any]:
            if replay is None or not isinstance(action, p.Decide | p.Commit):
                return (yield action)
            old = [one for one in action.decision.committables if one.id not in replay.lost]
            named = tuple(one for one in action.decision.committables if one not in old)
            answer = yield replace(action, decision=replace(action.decision, committables=named))
            return answer and {**answer, **{one.id: p.Outcome.ALREADY_COMMITTED for one in old}}

        return stateless(meddle).run_epoch(generation, epoch, replay)

    return Protocol(run_epoch=run_epoch)


def abort_on_error() -> Protocol:
    def meddle(action: p.Action) -> Generator[p.Action, Any, Any]:
        try:
            return (yield action)
        except OSError:
            if isinstance(action, p.Decide):
                yield p.Sweep(())
            raise

    return stateless(meddle)


def looks_at_sparks_log_alone() -> Protocol:
    """What the ledger knows beyond Spark's log is not looked at."""

    def meddle(action: p.Action) -> Generator[p.Action, Any, Any]:
        answer = yield action
        if not isinstance(answer, CheckpointState):
            return answer
        mine = tuple(one for one in answer.decisions if one.id.epoch == answer.epoch and answer.barrier)
        return replace(answer, decisions=mine, damaged=False)

    return stateless(meddle)


def only_what_counts_is_evidence() -> Protocol:
    """Epochs that were complete when the newest run looked are forgotten, if an older run had decided them."""

    def meddle(action: p.Action) -> Generator[p.Action, Any, Any]:
        answer = yield action
        if not isinstance(answer, CheckpointState):
            return answer
        newest = max((one.generation for one in answer.claims), default=0)
        return replace(answer, decisions=tuple(one for one in answer.decisions if one.id.generation >= newest))

    return stateless(meddle)


def damage_is_overlooked() -> Protocol:
    def meddle(action: p.Action) -> Generator[p.Action, Any, Any]:
        answer = yield action
        return replace(answer, damaged=False) if isinstance(answer, CheckpointState) else answer

    return stateless(meddle)


def goes_on_without_a_log() -> Protocol:
    def meddle(action: p.Action) -> Generator[p.Action, Any, Any]:
        return (yield action) or isinstance(action, p.RestoreLog)

    return stateless(meddle)._replace(first_epoch_compares=False)


def drain_by_sparks_log() -> Generator[p.Action, Any, p.Resume]:
    """The barrier is replaced first, and recovery comes after it."""
    generation: int = yield p.Register()
    found: CheckpointState = yield p.Look()
    return p.Resume(generation, found.epoch, "none")


# Only harm counts here, as every step is there to prevent some.
TWO_RUNS = Scenario(ONE_EPOCH, generations=2, strict=False)
THREE_RUNS = Scenario(ONE_EPOCH, generations=3, faults=0, strict=False)
FOUR_RUNS = replace(THREE_RUNS, generations=4)
ONE_WRITER = replace(THREE_RUNS, rows=((LEFT,),), deterministic=False)
DIFFERING = replace(TWO_RUNS, deterministic=False)
POWER = Scenario(((LEFT,), (LEFT,)), generations=3, alive=1, faults=0, cuts=1, strict=False)
TOLERANT = Scenario(ONE_EPOCH, generations=2, alive=1, faults=1, tries=2, strict=False)
DRAINED = Scenario(((LEFT,), (LEFT,)), generations=3, alive=1, faults=0, drains=1, strict=False)
RACED = Scenario(((LEFT,), (LEFT,)), generations=3, faults=0, races=1, strict=False)
SETTLED = replace(THREE_RUNS, settlements=1)
SETTLED_WITHOUT_POWER = replace(POWER, generations=4, settlements=1)

MUTANTS: dict[str, tuple[Protocol, Scenario, str]] = {
    "look, then register": (look_before_register(), TWO_RUNS, "doubled"),
    "no claim": (without(p.WriteClaim), THREE_RUNS, "doubled"),
    "no claim, each execution differs": (without(p.WriteClaim), ONE_WRITER, "its state is of"),
    "claims are not read": (claims_are_not_read(), THREE_RUNS, "doubled"),
    "claims honour nothing": (claims_honour_nothing(), THREE_RUNS, "doubled"),
    "no check after the claim": (no_check_after(p.WriteClaim), FOUR_RUNS, "doubled"),
    "no check after the decision": (no_check_after(p.Decide), TWO_RUNS, "doubled"),
    "commit, then decide": (commit_before_decide(), TWO_RUNS, "without a decision"),
    "log finished, then commit": (finish_log_before_commit(), TWO_RUNS, "visible are only"),
    "sweep, then commit": (sweep_before_commit(), replace(DIFFERING, faults=0), "a replay differs"),
    "no sweep": (without(p.Sweep), TWO_RUNS, "leaves open"),
    "unknown is committed": (taking(p.Outcome.UNKNOWN, p.Outcome.COMMITTED), TWO_RUNS, "visible are only"),
    "unknown is lost": (taking(p.Outcome.UNKNOWN, p.Outcome.LOST), TWO_RUNS, "doubled"),
    "lost is committed": (taking(p.Outcome.LOST, p.Outcome.COMMITTED), TWO_RUNS, "visible are only"),
    "some lost is void": (some_lost_is_void(), TWO_RUNS, "doubled"),
    "a repair writes all": (replay_afresh(), TWO_RUNS, "doubled"),
    "a repair names only what it wrote": (repair_names_only_the_rewritten(), replace(TWO_RUNS, faults=2), "doubled"),
    "abort because the decision failed": (abort_on_error(), TWO_RUNS, "goes on after Decide"),
    "what Spark's log lost is not missed": (looks_at_sparks_log_alone(), POWER, "doubled"),
    "the lost log is not restored": (without(p.RestoreLog), POWER, "does not come to the end|doubled|without proof"),
    "a log with a hole is not restored": (damage_is_overlooked(), POWER, "doubled|cuts"),
    "only decisions that count are evidence": (only_what_counts_is_evidence(), POWER, "doubled|cuts"),
    "goes on though the log is not restored": (
        goes_on_without_a_log(),
        replace(POWER, running=True, generations=2),
        "doubled|cuts|differs",
    ),
    "a decided epoch is tried again": (Protocol(may_try_again=lambda _: True), TOLERANT, "doubled|decided twice"),
    "settling: look, then register": (only_when_settling(look_before_register()), SETTLED, "which is decided|doubled"),
    "settling: no claim": (only_when_settling(without(p.WriteClaim)), SETTLED, "which is decided|doubled"),
    "settling: no check after the claim": (
        only_when_settling(no_check_after(p.WriteClaim)),
        SETTLED,
        "which is decided|doubled",
    ),
    "settling: what is decided is aborted": (only_when_settling(keep_nothing()), SETTLED, "which is decided"),
    "settling: the claim goes by Spark's log": (
        only_when_settling(claims_go_by_sparks_log()),
        SETTLED_WITHOUT_POWER,
        "doubled|cuts",
    ),
    "the manifest holds the file's barrier": (Protocol(manifest_holds_what_ran=False), RACED, "ended at|cuts"),
    "a start trusts the barrier of a complete epoch": (
        Protocol(start_compares_barriers=False),
        RACED,
        "ended at|come to",
    ),
    "the first epoch begins where Spark says": (Protocol(first_epoch_compares=False), RACED, "ended at"),
    "a process does not know its own registration": (
        Protocol(knows_its_ghosts=False),
        replace(THREE_RUNS, generations=4, ghosts=1, restarts=1),
        "which is its own",
    ),
    "old runs are swept at the start alone": (
        Protocol(keeps_sweeping=False),
        replace(TWO_RUNS, rows=TWO_EPOCHS, faults=0, tends=True),
        "lives, and leaves open",
    ),
    # No step of the protocol helps where a listing is stale: such a storage is refused.
    "a listing is stale": (Protocol(), replace(TWO_RUNS, stale=1), "doubled"),
    "drain, then recover": (Protocol(before_drain=drain_by_sparks_log), DRAINED, "doubled|cuts"),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_without_any_one_step_the_protocol_is_caught(name: str) -> None:
    mutant, scenario, complaint = MUTANTS[name]
    with pytest.raises(Violation, match=complaint):
        explore(scenario, mutant)


def test_a_repair_without_proof_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def by_number(_: Any, replayed: tuple[p.Committable, ...], __: Any) -> Matched:
        return {one.id: one for one in replayed}, set()

    monkeypatch.setattr(p, "match_replay", by_number)
    with pytest.raises(Violation, match="mixture"):
        explore(DIFFERING)
    with pytest.raises(Violation, match="doubled"):
        explore(replace(TWO_RUNS, rows=((RIGHT, RIGHT_1),), permuted=True))


def test_a_repair_that_compares_only_sums_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """That a sink's rows are all there says nothing of which writer has them."""

    def by_sums(decided: tuple[p.Committable, ...], replayed: tuple[p.Committable, ...], _: Any) -> Matched:
        return {one.id: one for one in replayed}, match_replay(decided, replayed, frozenset())[1]

    monkeypatch.setattr(p, "match_replay", by_sums)
    with pytest.raises(Violation, match="doubled"):
        explore(replace(TWO_RUNS, rows=((RIGHT, RIGHT_1),), permuted=True))


def test_a_proof_that_wants_every_writer_again_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing is lost, or nothing of a sink, its rows may be dealt out to other writers."""
    sinks = frozenset(writer[0] for writer in EVERY_WRITER)
    monkeypatch.setattr(p, "match_replay", lambda decided, replayed, _: match_replay(decided, replayed, sinks))
    with pytest.raises(Violation, match="a replay differs"):
        explore(SCENARIOS["a replay deals its rows out to other writers"][0])


def test_a_log_that_is_finished_without_proof_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(p, "match_replay", lambda *_: ({}, set()))
    with pytest.raises(Violation, match="its state is of"):
        explore(Scenario(ONE_EPOCH, False, log_known=False, alive=1, strict=False))


def test_an_older_decision_that_wins_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decision_module, "max", lambda all_, **by: min(all_, **by) if by else max(all_), raising=False)
    with pytest.raises(Violation, match="doubled"):
        explore(replace(THREE_RUNS, faults=2))


def test_the_barrier_of_a_drain_that_counts_though_undecided_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Simulation, "_cut_by_drain", lambda *_: False)
    with pytest.raises(Violation, match="does not come to the end"):
        explore(replace(DRAINED, alive=2))


SPARE = {
    # Whatever a superseded run prepares, the check after its decision stops it. This one spares it the work, and
    # leaves little time in which it could write over a state.
    "no check before pre-commit": no_check_after(None),
    # When the protocol sweeps, all that it keeps is settled: committed or lost, not open any more. A sink whose
    # leftovers look like what it committed (files) does need it; the sinks of this world know their transactions.
    "sweep without keep": keep_nothing(),
}


@pytest.mark.parametrize("name", SPARE)
def test_steps_that_no_guarantee_rests_on(name: str) -> None:
    explore(Scenario(ONE_EPOCH, deterministic=False, generations=2, faults=2), SPARE[name])
