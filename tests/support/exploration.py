"""Walks through every world that `protocol_world.py` allows, breadth first, and checks each.

After every step:

1. No row is doubled: for each epoch and writer at most one transaction is committed; and none is mixed: what is
   visible of an epoch comes from one execution, or from executions that were proven equal.
2. No row is lost: once `commits/N` is written, every writer with rows of epoch N is committed.
3. Nothing is committed that no durable decision names.
4. Nobody carries out a decision that it wrote when a newer generation was registered already.
5. It can be brought to its end: one fresh run, all others dead and no faults any more, makes all rows of all epochs
   visible exactly once, and leaves nothing open. It may stop only where a plan that is not deterministic lost a part
   of a decision; or where Spark's log was lost and its query runs already, so that the log cannot be restored. The
   same if all that is open expires before that run.
6. Nobody writes `commits/N` without having been told of every writer that it is visible: unknown is no proof.
7. The rows that are visible of an epoch are those before its barrier, also when the log was lost in a power cut, and
   nobody replaces the barrier of an epoch that is visible; and they begin where those of the epoch before have ended.
8. Nobody who ends what a job has left aborts a transaction that a decision names which counts then.
9. A run never ends because of a generation that its own process has registered.
10. The newest run, as long as it lives, leaves nothing open that an older one has opened, whenever that was.
11. Nobody ever finds a decision that counts among what another run swept: only the other system loses transactions.

And about state, where the plan is not deterministic: once `commits/N` is written, the state of N was left by the very
execution that is visible, **unless** a run that was superseded already went on executing and wrote over it. Spark's
state store has no fence against that, so the protocol cannot promise more: the *output* of such a plan under zombies,
its *state* without. Where the log cannot be completed and has to be verified by a replay, it promises less: the replay
itself writes over the state, and a zombie may write `commits/N` meanwhile; there it takes runs that never overlap.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from penstock.engine import protocol as p
from tests.support.protocol_world import Driver, Protocol, Scenario, Simulation, Step, World
from tests.support.walking import Violation, walk

State = tuple[World, tuple[Driver, ...]]


class Explored(NamedTuple):
    """How much there was to see."""

    states: int
    worlds: int


def explore(scenario: Scenario, protocol: Protocol | None = None) -> Explored:
    """Visit everything in the scenario; raises the first `Violation`, with a shortest trace that leads to it."""
    return _Explorer(scenario, protocol or Protocol()).explore()


class _Explorer:
    def __init__(self, scenario: Scenario, protocol: Protocol) -> None:
        self._scenario = scenario
        self._simulation = Simulation(scenario, protocol)
        self._checked: set[World] = set()
        self._ending: set[World] = set()
        self._living: set[tuple[World, Driver]] = set()
        self._known_steps: dict[tuple[World, Driver], tuple[Step, ...]] = {}

    def explore(self) -> Explored:
        first: State = (self._simulation.first_world(), ())
        states = walk(first, self._checked_moves, _told)
        return Explored(states, len(self._checked))

    def _checked_moves(self, state: State) -> Iterator[tuple[Step, State]]:
        for step, after in self._moves(state):
            if after[0] not in self._checked or step.stop:
                self._check(step)
            if self._scenario.tends:
                for driver in after[1]:
                    if driver.generation == after[0].newest:
                        self._check_living(after[0], driver)
            yield step, after

    def _moves(self, state: State) -> Iterator[tuple[Step, State]]:
        """Any driver takes a step, or a new one starts; one is forgotten for it when there are too many."""
        world, drivers = state
        for place, driver in enumerate(drivers):
            for step in self._steps(world, driver):
                moved = (step.driver,) if step.driver else ()
                yield step, (step.world, (*drivers[:place], *moved, *drivers[place + 1 :]))
        for step in self._simulation.power_failures(world):
            yield step, (step.world, ())
        unregistered = sum(not driver.generation for driver in drivers)
        if world.newest + unregistered < self._scenario.generations:
            full = len(drivers) == self._scenario.alive
            alive = [drivers[:dead] + drivers[dead + 1 :] for dead in range(len(drivers))] if full else [drivers]
            for begun, newcomer in self._simulation.newcomers(world):
                for step in self._simulation.steps(begun, newcomer):
                    moved = (step.driver,) if step.driver else ()
                    for others in alive:
                        yield step, (step.world, (*others, *moved))

    def _steps(self, world: World, driver: Driver) -> tuple[Step, ...]:
        """What a driver may do depends on the world, not on the other drivers."""
        known = self._known_steps.get((world, driver))
        if known is None:
            known = self._known_steps[world, driver] = tuple(self._simulation.steps(world, driver))
        return known

    def _check(self, step: Step) -> None:
        """What depends on the world alone is checked once for each."""
        world = step.world
        try:
            self._check_stop(world, step.stop)
            if world not in self._checked:
                self._checked.add(world)
                self._check_rows(world)
                calm = world.calm
                self._check_end(calm)
                if world.open:
                    self._check_end(calm._replace(open=frozenset(), expired=world.expired | world.open))
        except Violation as violation:
            violation.trace = (_told(step), *violation.trace)
            raise

    def _check_living(self, world: World, driver: Driver) -> None:
        """The newest run goes on alone; where it comes to the end, it has left nothing open."""
        if (world, driver) in self._living:
            return
        self._living.add((world, driver))
        told, alone, last = ["from here, the newest run alone:"], world.calm, driver
        step: Step | None = None
        while step is None or step.driver:
            last = step.driver if step and step.driver else last
            step = next(self._simulation.steps(alone, last))
            alone = step.world
            told.append(_told(step))
        left = self._simulation.tended(alone, last).open
        if alone.commits == len(self._scenario.rows) and not step.stop and left:
            violation = Violation(f"the newest run lives, and leaves open: {sorted(left)}")
            violation.trace = tuple(told)
            raise violation

    def _check_stop(self, world: World, stop: p.ProtocolStop | None) -> None:
        lost = world.expired and not self._scenario.deterministic
        verified = not self._scenario.log_known and not self._scenario.deterministic
        if isinstance(stop, p.Differs) and not lost and not verified:
            raise Violation("a replay differs, though it cannot or nothing was lost")

    def _check_rows(self, world: World) -> None:
        named = {one.payload["at"] for decision in self._simulation.decisions(world) for one in decision.to_commit}
        if not world.committed <= named:
            raise Violation(f"committed without a decision: {world.committed - named}")
        for epoch, with_rows in enumerate(self._scenario.rows):
            visible = sorted(one for one in world.committed if one.epoch == epoch)
            if len({one.writer for one in visible}) < len(visible):
                raise Violation(f"doubled: {visible}")
            if epoch < world.commits and len(visible) < len(with_rows):
                raise Violation(f"commits/{epoch} is written, but visible are only {visible}")
            cuts = {one.cut for one in visible}
            # Where Spark runs before recovery it may have cut anew already; what counts is that nothing comes of it.
            logged = epoch < min(world.commits, world.barriers) and not self._scenario.running
            # Where runs write over each other's barriers, the file is put right by the next start.
            logged = logged and not self._scenario.races
            # What a superseded drain has written there is removed by the next start, if it is ever looked at.
            logged = logged and (epoch, world.cut[epoch]) not in world.marked
            if len(cuts) > 1 or (logged and cuts - {world.cut[epoch]}):
                raise Violation(f"epoch {epoch} shows rows of the cuts {cuts}, its barrier is cut {world.cut[epoch]}")
            before = {one.cut for one in world.committed if one.epoch == epoch - 1}
            if before and {one.base for one in visible} - before:
                raise Violation(f"epoch {epoch} begins at the cuts {visible}, the one before ended at {before}")
            if visible and not self._scenario.deterministic:
                self._check_versions(world, epoch, {one.execution + 100 * one.cut for one in visible})

    def _check_versions(self, world: World, epoch: int, visible: set[int]) -> None:
        if len(visible) > 1:
            raise Violation(f"epoch {epoch} shows a mixture of the executions of {visible}")
        state, superseded = world.states[epoch]
        promised = not superseded and (self._scenario.log_known or self._scenario.alive == 1)
        if epoch < world.commits and promised and visible != {state}:
            raise Violation(f"epoch {epoch} shows the execution of {visible}, its state is of {state}")

    def _check_end(self, world: World) -> None:
        if world in self._ending:
            return
        self._ending.add(world)
        told = ["from here, a fresh run alone:"]
        driver: Driver | None = self._simulation.fresh_driver()
        try:
            while driver:
                step = next(self._simulation.steps(world, driver))
                world, driver = step.world, step.driver
                told.append(_told(step))
            self._check_stop(world, step.stop)
            self._check_rows(world)
            refused = isinstance(step.stop, p.LogBehind) and self._scenario.running and self._scenario.cuts
            if refused:
                return
            drained = self._simulation.drained(world)
            if not isinstance(step.stop, p.Differs) and world.commits < len(self._scenario.rows) and not drained:
                raise Violation("it does not come to the end")
            if world.open and not self._scenario.running:  # there nothing is swept before there is an epoch
                raise Violation(f"it leaves open: {sorted(world.open)}")
        except Violation as violation:
            violation.trace = tuple(told)
            raise


def _told(step: Step) -> str:
    generation, *words = step.told
    return f"g{generation} " + " ".join(map(str, words)).replace("/ ", "/")
