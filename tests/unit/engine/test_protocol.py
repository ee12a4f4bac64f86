"""The epoch protocol, path by path: what it asks for, in which order, and how it ends."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import replace
from typing import Any

import pytest

from penstock.checkpoint.decision import CheckpointState, Claim, Outcome, honoured, match_replay, next_epoch
from penstock.engine import protocol as p
from penstock.engine.driver import explain_stop
from penstock.engine.protocol import (
    Commit,
    Decide,
    FinishLog,
    Look,
    NewestGeneration,
    PreCommit,
    Register,
    RestoreLog,
    Sweep,
    WriteClaim,
)
from penstock.errors import ReplayDiffers

A, B = ("orders", 0), ("totals", 0)
STILL_NEWEST = (NewestGeneration(), 2)


def committable(writer: p.WriterId, by: int, *, rows: int = 10, checksum: int = 77) -> p.Committable:
    return p.Committable(*writer, rows=rows, checksum=checksum, payload={"by": by})


def decided(by: int, *committables: p.Committable, epoch: int = 5) -> p.Decision:
    return p.Decision(p.DecisionId(epoch, by), committables or (committable(A, by), committable(B, by)), watermark=9)


def play(coroutine: Generator[p.Action, Any, Any], *story: tuple[p.Action, Any]) -> Any:
    """Each line of the story is the action that must come and the answer to it. Returns what the coroutine returns."""
    left = list(story)
    try:
        action = next(coroutine)
        while left:
            expected, answer = left.pop(0)
            assert action == expected
            action = coroutine.send(answer)
    except StopIteration as end:
        assert not left
        return end.value
    except p.ProtocolStop:
        assert not left
        raise
    pytest.fail(f"the story ends, the protocol goes on with {action}")


def begins(*decisions: p.Decision, honours: p.Decision | None) -> list[tuple[p.Action, Any]]:
    """How every recovery of generation 2 begins."""
    return [
        (Register(), 2),
        (Look(), CheckpointState(5, True, decisions)),
        (WriteClaim(Claim(2, 5, honours.id if honours else None)), None),
        STILL_NEWEST,
    ]


# One epoch.


def test_an_epoch_is_prepared_decided_and_committed() -> None:
    mine = decided(2)
    ended = play(
        p.run_epoch(2, 5),
        STILL_NEWEST,
        (PreCommit(5, None), p.Prepared(mine.committables, watermark=9)),
        (Decide(mine), None),
        STILL_NEWEST,
        (Commit(mine), {A: Outcome.COMMITTED, B: Outcome.ALREADY_COMMITTED}),
    )
    assert ended == mine


def test_strays_are_swept_after_the_commit() -> None:
    mine = decided(2)
    play(
        p.run_epoch(2, 5),
        STILL_NEWEST,
        (PreCommit(5, None), p.Prepared(mine.committables, watermark=9, strays=True)),
        (Decide(mine), None),
        STILL_NEWEST,
        (Commit(mine), {A: Outcome.COMMITTED, B: Outcome.COMMITTED}),
        (Sweep(mine.committables), None),
    )


def test_a_writer_without_rows_has_nothing_to_commit() -> None:
    mine = decided(2, committable(A, 2), committable(B, 2, rows=0))
    assert [one.id for one in mine.to_commit] == [A]
    ended = play(
        p.run_epoch(2, 5),
        STILL_NEWEST,
        (PreCommit(5, None), p.Prepared(mine.committables, watermark=9)),
        (Decide(mine), None),
        STILL_NEWEST,
        (Commit(mine), {A: Outcome.COMMITTED}),
    )
    assert ended == mine


def test_a_failed_pre_commit_is_swept_and_nothing_is_decided() -> None:
    error = RuntimeError("disk full")
    with pytest.raises(p.NotPrepared) as stopped:
        play(p.run_epoch(2, 5), STILL_NEWEST, (PreCommit(5, None), p.Failed(error)), (Sweep(()), None))
    assert (stopped.value.epoch, stopped.value.error) == (5, error)


def test_a_superseded_run_does_not_begin() -> None:
    with pytest.raises(p.Fenced) as stopped:
        play(p.run_epoch(2, 5), (NewestGeneration(), 3))
    assert (stopped.value.own, stopped.value.newest) == (2, 3)


def test_a_run_that_is_superseded_when_it_decides_commits_nothing() -> None:
    mine = decided(2)
    with pytest.raises(p.Fenced):
        play(
            p.run_epoch(2, 5),
            STILL_NEWEST,
            (PreCommit(5, None), p.Prepared(mine.committables, watermark=9)),
            (Decide(mine), None),
            (NewestGeneration(), 3),
        )


@pytest.mark.parametrize(
    ("outcomes", "stop", "writers"),
    [
        ({A: Outcome.COMMITTED, B: Outcome.LOST}, p.Lost, (B,)),
        ({A: Outcome.COMMITTED, B: Outcome.UNKNOWN}, p.Unproven, (B,)),
        ({A: Outcome.LOST, B: Outcome.UNKNOWN}, p.Unproven, (B,)),
        ({A: Outcome.COMMITTED}, p.Unproven, (B,)),  # nobody answered for B
        ({}, p.Unproven, (A, B)),
    ],
)
def test_an_epoch_whose_writers_are_not_all_visible_does_not_return(
    outcomes: dict[p.WriterId, Outcome], stop: type[p.Lost] | type[p.Unproven], writers: tuple[p.WriterId, ...]
) -> None:
    mine = decided(2)
    with pytest.raises(stop) as stopped:
        play(
            p.run_epoch(2, 5),
            STILL_NEWEST,
            (PreCommit(5, None), p.Prepared(mine.committables, watermark=9)),
            (Decide(mine), None),
            STILL_NEWEST,
            (Commit(mine), outcomes),
        )
    assert isinstance(stopped.value, p.Lost | p.Unproven)
    assert (stopped.value.decision, stopped.value.writers) == (mine, writers)


def test_nothing_is_aborted_because_the_decision_might_not_have_been_written() -> None:
    mine = decided(2)
    epoch = p.run_epoch(2, 5)
    assert [next(epoch), epoch.send(2)] == [NewestGeneration(), PreCommit(5, None)]
    assert epoch.send(p.Prepared(mine.committables, watermark=9)) == Decide(mine)
    with pytest.raises(OSError, match="timed out"):
        epoch.throw(OSError("timed out"))


# Recovery.


def test_a_first_run_finds_nothing_and_sweeps() -> None:
    resume = play(
        p.recover(),
        (Register(), 1),
        (Look(), CheckpointState(0, False)),
        (WriteClaim(Claim(1, 0, None)), None),
        (NewestGeneration(), 1),
        (Sweep(()), None),
    )
    assert resume == p.Resume(1, 0, "none")


def test_a_recovery_that_is_superseded_after_its_claim_touches_nothing() -> None:
    *before, _ = begins(decided(1), honours=decided(1))
    with pytest.raises(p.Fenced):
        play(p.recover(), *before, (NewestGeneration(), 3))


def test_what_was_decided_is_committed_and_the_log_completed() -> None:
    theirs = decided(1)
    resume = play(
        p.recover(),
        *begins(theirs, honours=theirs),
        (Commit(theirs), {A: Outcome.ALREADY_COMMITTED, B: Outcome.COMMITTED}),
        (FinishLog(5, 9), True),
        (Sweep(theirs.committables), None),
    )
    assert resume == p.Resume(2, 6, "finished")


def test_a_log_of_unknown_format_is_completed_by_a_replay_that_proves_itself() -> None:
    theirs = decided(1)
    resume = play(
        p.recover(),
        *begins(theirs, honours=theirs),
        (Commit(theirs), {A: Outcome.COMMITTED, B: Outcome.COMMITTED}),
        (FinishLog(5, 9), False),
        (Sweep(theirs.committables), None),
    )
    assert resume == p.Resume(2, 5, "verify", p.Replay(theirs, frozenset()))
    again = p.Prepared((committable(A, 2), committable(B, 2)))
    assert play(p.run_epoch(2, 5, resume.replay), STILL_NEWEST, (PreCommit(5, frozenset()), again)) is None


def test_a_decision_that_lost_everything_is_void() -> None:
    theirs = decided(1)
    resume = play(
        p.recover(),
        *begins(theirs, honours=theirs),
        (Commit(theirs), {A: Outcome.LOST, B: Outcome.LOST}),
        (Sweep(()), None),
    )
    assert resume == p.Resume(2, 5, "void")


def test_a_decision_that_lost_a_part_is_repaired_writer_by_writer() -> None:
    theirs = decided(1)
    resume = play(
        p.recover(),
        *begins(theirs, honours=theirs),
        (Commit(theirs), {A: Outcome.COMMITTED, B: Outcome.LOST}),
        (Sweep(theirs.committables), None),
    )
    assert resume == p.Resume(2, 5, "repair", p.Replay(theirs, frozenset({B})))

    repaired = decided(2, committable(A, 1), committable(B, 2))
    ended = play(
        p.run_epoch(2, 5, resume.replay),
        STILL_NEWEST,
        (PreCommit(5, frozenset({B[0]})), p.Prepared((committable(A, 2), committable(B, 2)), watermark=9)),
        (Decide(repaired), None),
        STILL_NEWEST,
        (Commit(repaired), {A: Outcome.ALREADY_COMMITTED, B: Outcome.COMMITTED}),
        (Sweep(repaired.committables), None),
    )
    assert ended == repaired


def test_a_lost_writer_is_found_by_what_it_held_not_by_its_number() -> None:
    first, second = ("totals", 0), ("totals", 1)
    theirs = decided(1, committable(first, 1, rows=60), committable(second, 1, rows=40))
    turned = (committable(first, 2, rows=40), committable(second, 2, rows=60))
    repaired = decided(2, committable(first, 1, rows=60), committable(second, 2, rows=40))
    ended = play(
        p.run_epoch(2, 5, p.Replay(theirs, frozenset({second}))),
        STILL_NEWEST,
        (PreCommit(5, frozenset({"totals"})), p.Prepared(turned, watermark=9)),
        (Decide(repaired), None),
        STILL_NEWEST,
        (Commit(repaired), {first: Outcome.ALREADY_COMMITTED, second: Outcome.COMMITTED}),
        (Sweep(repaired.committables), None),
    )
    assert ended == repaired


@pytest.mark.parametrize(
    "replayed",
    [
        (committable(A, 2), committable(B, 2, rows=11)),
        (committable(A, 2), committable(B, 2, checksum=78)),
        (committable(A, 2),),
        (committable(A, 2), committable(B, 2), committable(("totals", 1), 2)),
        (committable(A, 2, checksum=78), committable(B, 2)),  # the writer that differs need not be the lost one
    ],
)
def test_a_replay_that_differs_stops_and_decides_nothing(replayed: tuple[p.Committable, ...]) -> None:
    replay = p.Replay(decided(1), frozenset({B}))
    with pytest.raises(p.Differs) as stopped:
        play(
            p.run_epoch(2, 5, replay),
            STILL_NEWEST,
            (PreCommit(5, frozenset({B[0]})), p.Prepared(replayed)),
            (Sweep(replay.decision.committables), None),
        )
    assert stopped.value.replay == replay
    assert len(stopped.value.writers) == 1


def test_a_replay_that_fails_keeps_what_is_decided() -> None:
    replay = p.Replay(decided(1), frozenset({B}))
    with pytest.raises(p.NotPrepared):
        play(
            p.run_epoch(2, 5, replay),
            STILL_NEWEST,
            (PreCommit(5, frozenset({B[0]})), p.Failed(RuntimeError("gone"))),
            (Sweep(replay.decision.committables), None),
        )


def test_a_recovery_that_cannot_prove_an_outcome_does_not_guess() -> None:
    theirs = decided(1)
    with pytest.raises(p.Unproven) as stopped:
        play(
            p.recover(),
            *begins(theirs, honours=theirs),
            (Commit(theirs), {A: Outcome.COMMITTED, B: Outcome.UNKNOWN}),
        )
    assert stopped.value.writers == (B,)


def test_a_decided_epoch_without_rows_is_simply_finished() -> None:
    theirs = decided(1, committable(A, 1, rows=0))
    resume = play(
        p.recover(),
        *begins(theirs, honours=theirs),
        (Commit(theirs), {}),
        (FinishLog(5, 9), True),
        (Sweep(theirs.committables), None),
    )
    assert resume.action == "finished"


# Which decision counts.


@pytest.mark.parametrize(
    ("decisions", "claims", "counts"),
    [
        pytest.param((), (), None, id="there is none"),
        pytest.param((1,), (), 1, id="the only one"),
        pytest.param((1, 3), (), 3, id="the highest generation's"),
        pytest.param((1,), (Claim(1, 5, None),), 1, id="its author's own claim was before it"),
        pytest.param((1,), (Claim(2, 5, p.DecisionId(5, 1)),), 1, id="the newest claim honours it"),
        pytest.param((1,), (Claim(2, 5, None),), None, id="the newest claim had looked before it"),
        pytest.param((1,), (Claim(2, 5, p.DecisionId(5, 1)), Claim(3, 5, None)), None, id="an older claim honours it"),
        pytest.param((1, 2), (Claim(3, 5, p.DecisionId(5, 1)),), 1, id="the newest claim had not seen the higher one"),
        pytest.param((1, 2), (Claim(2, 5, p.DecisionId(5, 1)),), 2, id="the claimant decided itself"),
    ],
)
def test_the_decision_that_counts(decisions: tuple[int, ...], claims: tuple[Claim, ...], counts: int | None) -> None:
    decision = honoured(CheckpointState(5, True, tuple(decided(by) for by in decisions), claims))
    assert (decision.id.generation if decision else None) == counts


def test_decisions_for_epochs_that_spark_has_logged_do_not_count() -> None:
    assert honoured(CheckpointState(5, True, (decided(1, epoch=4),))) is None
    assert next_epoch(CheckpointState(5, True, (decided(1, epoch=4),))) == 5


# Coming back after a failure, in the same process.


def test_a_run_that_was_superseded_while_it_failed_does_not_come_back() -> None:
    """Its failure was the other's taking over; registering again would take the job away from it."""
    with pytest.raises(p.Fenced) as stop:
        play(p.recover(previous=3), (NewestGeneration(of_others=True), 4))
    assert (stop.value.own, stop.value.newest) == (3, 4)


def test_a_run_that_is_still_the_newest_comes_back() -> None:
    ended = play(
        p.recover(previous=2),
        (NewestGeneration(of_others=True), 2),
        (Register(), 3),
        (Look(), CheckpointState(5, False)),
        (WriteClaim(Claim(3, 5, None)), None),
        (NewestGeneration(), 3),
        (Sweep(()), None),
    )
    assert ended == p.Resume(3, 5, "none")


def test_a_payload_is_added_to_and_nothing_else_changes() -> None:
    one = p.Committable("orders", 3, 10, 77, {"a": 1, "b": 2}, format=2)
    more = one.with_payload(b=3, c=4)
    assert more == p.Committable("orders", 3, 10, 77, {"a": 1, "b": 3, "c": 4}, format=2)
    assert one.payload == {"a": 1, "b": 2}


# Spark's log has lost what the ledger has.


@pytest.mark.parametrize("barrier", [True, False])
@pytest.mark.parametrize(
    ("decisions", "claims", "epoch", "counts"),
    [
        pytest.param([(5, 1)], [], 5, (5, 1), id="the barrier alone"),
        pytest.param([(5, 1), (6, 1), (7, 1)], [Claim(1, 0, None)], 7, (7, 1), id="several epochs"),
        pytest.param([(5, 1), (6, 1)], [Claim(1, 0, None), Claim(2, 7, None)], 7, None, id="complete, seen by a claim"),
        pytest.param([(5, 1), (6, 2)], [Claim(2, 6, None)], 6, (6, 2), id="complete, and one decided since"),
        pytest.param([(6, 1), (6, 2)], [Claim(2, 6, None)], 6, (6, 2), id="a void decision beside the one that counts"),
        pytest.param([(6, 1)], [Claim(2, 6, None)], 5, None, id="a void decision is no evidence"),
        pytest.param([(6, 1)], [Claim(2, 6, p.DecisionId(6, 1))], 6, (6, 1), id="honoured before"),
    ],
)
def test_what_the_ledger_knows_beyond_sparks_log_counts(
    decisions: list[tuple[int, int]],
    claims: list[Claim],
    epoch: int,
    counts: tuple[int, int] | None,
    barrier: bool,
) -> None:
    made = tuple(decided(by, epoch=number) for number, by in decisions)
    found = CheckpointState(5, barrier, made, tuple(claims))
    assert next_epoch(found) == epoch
    assert honoured(found) == (decided(counts[1], epoch=counts[0]) if counts else None)


def test_a_lost_log_is_restored_before_anything_is_committed() -> None:
    lost = decided(1, epoch=7)
    resume = play(
        p.recover(),
        (Register(), 2),
        (Look(), CheckpointState(5, True, (lost,))),
        (WriteClaim(Claim(2, 7, lost.id)), None),
        STILL_NEWEST,
        (RestoreLog(7, lost.id), True),
        (Commit(lost), dict.fromkeys((A, B), Outcome.ALREADY_COMMITTED)),
        (FinishLog(7, 9), True),
        (Sweep(lost.committables), None),
    )
    assert resume == p.Resume(2, 8, "finished")


def test_a_log_with_a_hole_is_restored_though_nothing_is_decided() -> None:
    resume = play(
        p.recover(),
        (Register(), 2),
        (Look(), CheckpointState(5, False, damaged=True)),
        (WriteClaim(Claim(2, 5, None)), None),
        STILL_NEWEST,
        (RestoreLog(5, None), True),
        (Sweep(()), None),
    )
    assert resume == p.Resume(2, 5, "none")


def test_where_the_log_cannot_be_restored_nothing_is_touched() -> None:
    lost = decided(1, epoch=7)
    with pytest.raises(p.LogBehind) as stopped:
        play(
            p.recover(),
            (Register(), 2),
            (Look(), CheckpointState(5, False, (lost,))),
            (WriteClaim(Claim(2, 7, lost.id)), None),
            STILL_NEWEST,
            (RestoreLog(7, lost.id), False),
        )
    assert (stopped.value.found, stopped.value.epoch) == (5, 7)


def test_what_spark_begins_with_must_be_what_recovery_found() -> None:
    replay = p.Replay(decided(1), frozenset({A}))
    assert p.replay_of(p.Resume(2, 5, "repair", replay), 5) is replay
    assert p.replay_of(p.Resume(2, 5, "none"), 5) is None
    assert p.replay_of(p.Resume(2, 5, "none"), 6) is None  # Spark's first batch after ours was empty
    for resume, epoch in ((p.Resume(2, 5, "none"), 4), (p.Resume(2, 5, "repair", replay), 6)):
        with pytest.raises(p.LogBehind):
            p.replay_of(resume, epoch)


def test_an_epoch_is_tried_again_only_as_long_as_it_cannot_be_decided() -> None:
    assert p.may_try_again({NewestGeneration, PreCommit, Sweep})
    assert not p.may_try_again({NewestGeneration, PreCommit, Decide})


def test_an_epoch_that_spark_begins_too_early_is_named() -> None:
    with pytest.raises(p.LogBehind) as stop:
        p.replay_of(p.Resume(2, 7, "none"), 5)
    assert (stop.value.found, stop.value.epoch) == (5, 7)


# Parts of a recovery, for what a dead job has left.


def test_what_is_decided_is_committed_and_nothing_else_touched() -> None:
    theirs = decided(1)
    outcomes = {A: Outcome.COMMITTED, B: Outcome.UNKNOWN}
    ended = play(p.commit_decided(), *begins(theirs, honours=theirs), (Commit(theirs), outcomes))
    assert ended == (theirs, outcomes), "what is unknown is for the caller to ask about"


def test_where_nothing_is_decided_nothing_is_committed() -> None:
    assert play(p.commit_decided(), *begins(honours=None)) is None


def test_what_is_not_decided_is_aborted() -> None:
    theirs = decided(1)
    assert (
        play(p.abort_undecided(lambda _: False), *begins(theirs, honours=theirs), (Sweep(theirs.committables), None))
        is None
    )
    assert play(p.abort_undecided(lambda _: True), *begins(honours=None), (Sweep(()), None)) is None


def test_where_one_of_the_chosen_is_decided_nothing_is_aborted() -> None:
    theirs = decided(1)
    ended = play(p.abort_undecided(lambda one: one.id == B), *begins(theirs, honours=theirs))
    assert ended == theirs


@pytest.mark.parametrize("make", [p.commit_decided, lambda: p.abort_undecided(lambda _: False)])
def test_who_ends_what_was_left_gives_way_to_a_newer_run(make: Callable[[], Generator[p.Action, Any, Any]]) -> None:
    *before, _ = begins(decided(1), honours=decided(1))
    with pytest.raises(p.Fenced):
        play(make(), *before, (NewestGeneration(), 3))


@pytest.mark.parametrize("make", [p.commit_decided, lambda: p.abort_undecided(lambda _: True)])
def test_a_claim_names_the_epoch_that_the_ledger_knows_to_come_next(
    make: Callable[[], Generator[p.Action, Any, Any]],
) -> None:
    """Spark's log has lost epoch 5, which was complete when the run before looked."""
    coroutine = make()
    assert next(coroutine) == Register()
    assert coroutine.send(3) == Look()
    found = CheckpointState(5, False, (decided(1),), (Claim(2, 6, None),))
    assert coroutine.send(found) == WriteClaim(Claim(3, 6, None))


# A replay beside what was decided.

HELD = tuple(committable(("out", number), 1, rows=10, checksum=(1 << 63) + number) for number in range(4))


def dealt_out(*shares: tuple[int, int]) -> tuple[p.Committable, ...]:
    return tuple(committable(("out", 7 + n), 2, rows=rows, checksum=sums) for n, (rows, sums) in enumerate(shares))


@pytest.mark.parametrize(
    ("replayed", "same"),
    [
        (dealt_out((40, 6)), True),  # the sum of hashes goes round at 2**64
        (dealt_out((39, 0), (1, 6), (0, 9)), True),
        (dealt_out((41, 6)), False),
        (dealt_out((40, 7)), False),
        (dealt_out((40, 6 + (1 << 64))), False),  # by another rule
        ((), False),
    ],
)
def test_a_sink_that_is_not_rewritten_is_compared_as_a_whole(replayed: tuple[p.Committable, ...], same: bool) -> None:
    found, differing = match_replay(HELD, replayed, frozenset({"another"}))
    assert (found, not differing) == ({}, same)
    if not same:
        assert differing == {one.id for one in (*HELD, *replayed) if one.rows}
    assert match_replay(HELD, replayed, frozenset({"out"}))[1], "where it is rewritten, no writer has a partner"


def test_a_log_that_only_a_replay_can_finish_takes_the_rows_from_whichever_writers() -> None:
    replay = p.Replay(decided(1, *HELD), frozenset())
    proven = (PreCommit(5, frozenset()), p.Prepared(dealt_out((15, 2), (25, 4))))
    assert play(p.run_epoch(2, 5, replay), STILL_NEWEST, proven) is None


@pytest.mark.parametrize(("sums", "same"), [(6, True), (7, False)])
def test_rows_that_other_writers_have_are_told_from_other_rows(sums: int, same: bool) -> None:
    replay = p.Replay(replace(decided(1, *HELD), parallelism=4), frozenset({HELD[0].id}))
    prepared = p.Prepared(dealt_out((20, 3), (20, sums - 3)), parallelism=2)
    with pytest.raises(p.Differs) as stopped:
        play(
            p.run_epoch(2, 5, replay),
            STILL_NEWEST,
            (PreCommit(5, frozenset({"out"})), prepared),
            (Sweep(replay.decision.committables), None),
        )
    assert stopped.value.dealt_out is same
    error = explain_stop(stopped.value, "shop", "file:/jobs/shop")
    assert isinstance(error, ReplayDiffers)
    assert ("not deterministic" in str(error)) is not same
    assert ("start the job with 4 cores" in error.to_do) is same


def test_a_decision_says_how_many_tasks_spark_reckoned_with() -> None:
    ended = play(
        p.run_epoch(2, 5),
        STILL_NEWEST,
        (PreCommit(5, None), p.Prepared((committable(A, 2),), watermark=9, parallelism=6)),
        (Decide(replace(decided(2, committable(A, 2)), parallelism=6)), None),
        STILL_NEWEST,
        (Commit(replace(decided(2, committable(A, 2)), parallelism=6)), {A: Outcome.COMMITTED}),
    )
    assert ended is not None
    assert ended.parallelism == 6
