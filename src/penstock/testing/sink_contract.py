"""What every two-phase sink must do, as a suite for pytest or for a plain loop; docs/how-to/write-a-sink.md uses it.

A harness creates the sink and rows, and reads the target as an ordinary reader does.
"""

from __future__ import annotations

import pickle
from contextlib import closing

from penstock.checkpoint.decision import Committable, Outcome
from penstock.contracts.sink import CheckContext, Finding, WriterScope
from penstock.deadline import Deadline
from penstock.engine.committers import of_all_generations, refuse_unknown_runs
from penstock.errors import LedgerLost
from penstock.testing.sink_harness import PATIENCE, SinkHarness, SinkSteps, prepare_and_die

__all__ = ["LOST", "VISIBLE", "SinkContract", "SinkHarness"]

LOST = {Outcome.LOST}
VISIBLE = {Outcome.COMMITTED, Outcome.ALREADY_COMMITTED}


class SinkContract(SinkSteps):
    """Set `harness` before each test, with a target that is empty."""

    def test_prepared_rows_are_invisible_until_the_commit(self) -> None:
        sink, rows = self.harness.make_sink(), self.harness.rows(10)
        prepared = self.prepare(sink, [rows])
        self.assert_visible()
        assert self.commit(sink, prepared) == {Outcome.COMMITTED}
        self.assert_visible(rows)

    def test_a_second_commit_changes_nothing_and_says_so(self) -> None:
        sink, rows = self.harness.make_sink(), self.harness.rows(10)
        prepared = self.prepare(sink, [rows])
        self.commit(sink, prepared)
        assert self.commit(sink, prepared) <= VISIBLE
        assert self.commit(self.harness.make_sink(), prepared, generation=2) <= VISIBLE
        self.assert_visible(rows)

    def test_several_writers_become_visible_together(self) -> None:
        sink, batches = self.harness.make_sink(), [self.harness.rows(5, start) for start in (0, 5, 10)]
        prepared = self.prepare(sink, batches)
        self.assert_visible()
        assert self.commit(sink, prepared) == {Outcome.COMMITTED}
        self.assert_visible(*batches)

    def test_a_writer_takes_many_batches(self) -> None:
        sink, batches = self.harness.make_sink(), [self.harness.rows(50, start) for start in range(0, 500, 50)]
        writer = self.open_writer(sink, self.scope(), epoch=0)
        for batch in batches:
            writer.write(batch)
        prepared = self.seal(sink, self.scope(), [Committable(self.uid, 0, 500, 0, writer.pre_commit())])
        self.commit(sink, prepared)
        self.assert_visible(*batches)

    def test_epochs_follow_each_other(self) -> None:
        sink, batches = self.harness.make_sink(), [self.harness.rows(4, start) for start in range(0, 40, 4)]
        for epoch, batch in enumerate(batches):
            assert self.commit(sink, self.prepare(sink, [batch], epoch=epoch), epoch=epoch) == {Outcome.COMMITTED}
            self.assert_visible(*batches[: epoch + 1])

    def test_an_empty_epoch_is_nothing(self) -> None:
        sink = self.harness.make_sink()
        assert self.seal(sink, self.scope(), []) == []
        assert self.commit(sink, []) == set()
        self.abort(sink, [])
        self.assert_visible()

    def test_nulls_and_all_the_worlds_text_survive(self) -> None:
        sink, rows = self.harness.make_sink(), self.harness.special()
        if rows is not None:
            self.commit(sink, self.prepare(sink, [rows]))
            self.assert_visible(rows)

    def test_a_large_value_survives(self) -> None:
        sink, rows = self.harness.make_sink(), self.harness.large()
        if rows is not None:
            self.commit(sink, self.prepare(sink, [rows]))
            self.assert_visible(rows)

    def test_a_killed_writers_rows_are_committed_from_another_process(self) -> None:
        sink, rows = self.harness.make_sink(), self.harness.rows(10)
        payload = prepare_and_die(sink, WriterScope(self.scope(), 0, 0, 0, 0), rows, PATIENCE)
        prepared = self.seal(sink, self.scope(), [Committable(self.uid, 0, 10, 0, payload)])
        self.assert_visible()
        assert self.commit(self.harness.make_sink(), prepared, generation=2) <= VISIBLE
        self.assert_visible(rows)

    def test_a_commit_cut_short_is_finished_by_the_next_run(self) -> None:
        sink, batches = self.harness.make_sink(), [self.harness.rows(5), self.harness.rows(5, 5)]
        prepared = self.prepare(sink, batches)
        self.commit(sink, prepared[:1])
        assert self.commit(self.harness.make_sink(), prepared, generation=2) <= VISIBLE
        self.assert_visible(*batches)

    def test_a_commit_without_time_guesses_nothing(self) -> None:
        sink, rows = self.harness.make_sink(), self.harness.rows(5)
        prepared = self.prepare(sink, [rows])
        assert self.commit(sink, prepared, seconds=0.0) <= VISIBLE | {Outcome.UNKNOWN}
        assert self.commit(sink, prepared) <= VISIBLE
        self.assert_visible(rows)

    def test_what_a_writer_aborts_is_gone(self) -> None:
        sink = self.harness.make_sink()
        writer = self.open_writer(sink, self.scope(), epoch=0)
        writer.write(self.harness.rows(5))
        writer.abort()
        writer.abort()
        rows = self.harness.rows(5, 5)
        self.commit(sink, self.prepare(sink, [rows], attempt=1))
        self.assert_visible(rows)

    def test_what_the_driver_aborts_is_lost_for_good(self) -> None:
        sink = self.harness.make_sink()
        prepared = self.prepare(sink, [self.harness.rows(5), self.harness.rows(5, 5)])
        self.abort(sink, prepared)
        self.abort(sink, prepared)
        assert self.commit(sink, prepared) == LOST
        self.assert_visible()

    def test_an_abort_after_the_commit_takes_nothing_back(self) -> None:
        sink, rows = self.harness.make_sink(), self.harness.rows(5)
        prepared = self.prepare(sink, [rows])
        self.commit(sink, prepared)
        self.abort(sink, prepared)
        self.sweep(sink, generation=2)
        assert self.commit(sink, prepared, generation=2) <= VISIBLE
        self.assert_visible(rows)

    def test_what_the_other_system_ended_is_lost_and_proven(self) -> None:
        sink, rows = self.harness.make_sink(), self.harness.rows(5)
        [prepared] = self.prepare(sink, [rows])
        if not self.harness.expire(sink, prepared):
            return
        assert self.commit(sink, [prepared], generation=2) == LOST
        self.assert_visible()
        self.commit(sink, self.prepare(sink, [rows], generation=2), generation=2)
        self.assert_visible(rows)

    def test_leftovers_are_found_and_aborted(self) -> None:
        sink = self.harness.make_sink()
        payload = prepare_and_die(sink, WriterScope(self.scope(), 0, 0, 0, 0), self.harness.rows(5), PATIENCE)
        [prepared] = self.seal(sink, self.scope(), [Committable(self.uid, 0, 5, 0, payload)])
        assert self.sweep(sink, generation=2) >= 1
        assert self.commit(sink, [prepared]) == LOST
        rows = self.harness.rows(5, 5)
        self.commit(sink, self.prepare(sink, [rows], generation=2), generation=2)
        self.assert_visible(rows)

    def test_leftovers_are_shown_and_left_as_they_are(self) -> None:
        """Each by a part of its committable's payload; a sink may also be unable to list them."""
        sink, batches = self.harness.make_sink(), [self.harness.rows(5), self.harness.rows(5, 5)]
        prepared = self.prepare(sink, batches)
        leftovers = self.leftovers(sink, generation=2)
        if leftovers is None:
            return
        named = [c.writer for c in prepared for left in leftovers if left.payload.items() <= c.payload.items()]
        assert (sorted(named), len(leftovers)) == ([0, 1], 2)
        assert {leftover.generation for leftover in leftovers} == {1}
        assert not self.leftovers(sink, generation=0)
        assert self.commit(sink, prepared, generation=2) == {Outcome.COMMITTED}
        self.assert_visible(*batches)
        assert not self.leftovers(sink, generation=2)

    def test_what_the_ledger_does_not_know_is_refused_and_can_be_ended_by_name(self) -> None:
        """The checkpoint was deleted, and generations began again at one."""
        sink = self.harness.make_sink()
        prepared = self.prepare(sink, [self.harness.rows(5)], generation=7)
        if self.leftovers(sink, generation=7) is None:
            return
        deadline = Deadline(PATIENCE)
        with closing(sink.open_committer(self.scope())) as committer:
            refuse_unknown_runs(sink, self.scope(), committer, lambda: 7, deadline)  # a newer run has taken over
            [leftover] = of_all_generations(sink, self.scope(), deadline) or ()
            message = ""
            try:
                refuse_unknown_runs(sink, self.scope(), committer, lambda: 1, deadline)
            except LedgerLost as error:
                message = str(error)
            assert leftover.name in message, "a leftover that no run will ever end has to be named"
        self.abort(sink, [Committable(self.uid, -1, 1, 0, leftover.payload)], generation=7)
        assert not of_all_generations(sink, self.scope(), deadline)
        assert self.commit(sink, prepared, generation=7) == LOST

    def test_an_earlier_attempt_of_this_run_is_a_leftover_too(self) -> None:
        sink = self.harness.make_sink()
        first = self.prepare(sink, [self.harness.rows(5)], attempt=0)
        assert self.sweep(sink, generation=1) >= 1
        rows = self.harness.rows(5, 5)
        second = self.prepare(sink, [rows], attempt=1)
        assert self.commit(sink, first) == LOST
        assert self.commit(sink, second) == {Outcome.COMMITTED}
        self.assert_visible(rows)

    def test_what_is_decided_is_kept(self) -> None:
        sink, batches = self.harness.make_sink(), [self.harness.rows(5), self.harness.rows(5, 5)]
        decided, undecided = self.prepare(sink, batches)
        self.sweep(sink, generation=2, keep=[decided])
        assert self.commit(sink, [decided], generation=2) <= VISIBLE
        assert self.commit(sink, [undecided], generation=2) == LOST
        self.assert_visible(batches[0])

    def test_newer_runs_are_not_touched(self) -> None:
        sink, rows = self.harness.make_sink(), self.harness.rows(5)
        prepared = self.prepare(sink, [rows], generation=3)
        self.sweep(sink, generation=2)
        assert self.commit(sink, prepared, generation=3) == {Outcome.COMMITTED}
        self.assert_visible(rows)

    def test_other_sinks_with_a_similar_name_are_not_touched(self) -> None:
        sink, rows = self.harness.make_sink(), self.harness.rows(5)
        for name in (f"{self.uid}-2", f"{self.uid}2"):
            prepared = self.prepare(sink, [rows], uid=name)
            self.sweep(sink, generation=2)
            assert self.commit(sink, prepared, uid=name) == {Outcome.COMMITTED}
        self.assert_visible(rows, rows)

    def test_a_fenced_writer_shows_nothing(self) -> None:
        sink, zombie_rows, rows = self.harness.make_sink(), self.harness.rows(5), self.harness.rows(5, 5)
        zombie = self.open_writer(sink, self.scope(1), epoch=0)
        zombie.write(zombie_rows)
        self.sweep(sink, generation=2)
        self.commit(sink, self.prepare(sink, [rows], generation=2), generation=2)
        try:
            zombie.write(zombie_rows)
            payload = zombie.pre_commit()
        except Exception:
            zombie.abort()  # refused at once: the best that can happen
        else:
            self.sweep(sink, generation=2)
            assert self.commit(sink, [Committable(self.uid, 0, 10, 0, payload)]) == LOST
        self.assert_visible(rows)

    def test_the_sink_travels_to_workers(self) -> None:
        sink, rows = pickle.loads(pickle.dumps(self.harness.make_sink())), self.harness.rows(3)  # noqa: S301 - own bytes
        self.commit(sink, self.prepare(sink, [rows]))
        self.assert_visible(rows)

    def test_a_healthy_target_passes_the_check(self) -> None:
        sink = self.harness.make_sink()
        findings = sink.check(CheckContext(self.job, interval_seconds=1.0, timeout_seconds=30.0), self.uid)
        assert all(isinstance(finding, Finding) for finding in findings)
        self.assert_visible()

    def test_it_says_what_it_is(self) -> None:
        sink = self.harness.make_sink()
        assert sink.describe()
        assert sink.link(self.uid).name == self.uid
