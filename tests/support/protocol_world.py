"""A small world for the epoch protocol: ledger, Spark's log, sinks, and runs of a job that come, stall and die.

`Simulation.steps` says what one run may do next in a given world; `exploration.py` walks through all of it. The runs
are driven by the real coroutines of `penstock.engine.protocol`, or by broken variants.

What may happen, and how few kinds of steps are enough for it:

* **A crash** is a run that never takes another step, so whatever holds in every reachable world holds after a crash at
  every point. A **zombie** is a run that takes one after a newer run has started. A write that is stuck on its way and
  arrives after its author has died is an author that waited before it, and died then.
* **Looking, preparing, committing and sweeping** go read by read and transaction by transaction: others act, and
  crashes fall, between. Commits happen in any order.
* **An error of the storage** may be thrown in at any action, with the action done or not. The coroutines must then
  leave without another action (`Moment` sees to that), which makes it a crash before or after that action.
* **The power fails**: every run is gone, and of Spark's log, which nobody syncs, any number of the newest barriers
  and commits. What is synced (generations, claims, decisions) and the other systems stay. A barrier that Spark cuts
  anew is another cut: other rows.
* **A failed epoch is tried again** by the same run (`tries`), if the protocol lets it: after any action that raised.
* **Stop with a drain**: after `Protocol.before_drain` and a look for newer runs, the barrier of the next epoch is
  replaced by one without input, even where a newer run has written it in that very instant; after another look the
  epoch is run, and the job ends. The barrier bears a mark. Undecided, it counts as not there for every start that
  looks, and stops every run that did not ask for it; a job behind one that is complete does not go on.
* **Somebody ends what a job has left** (`settlements`), believing it dead, whether it is or not: commits what is
  decided, with its log finished or not, or aborts what is undecided. No query is started after it.
* **Recovery while Spark runs already** (`running`): Spark has read its log, and written the barrier, before.
* **Two runs create one barrier** (`races`): a file manager that looks first and renames then lets both believe that
  the file is theirs. What Spark runs is in its memory (`Driver.cut`, and `Driver.base` for where the rows begin); the
  file holds the cut of the run that came last.
* **A registration raises after it has created** (`ghosts`), and **a query is started again in its process**
  (`restarts`), which knows the generation that it had (`recover(previous)`).
* **A listing is stale** (`stale`): a run that asks for the newest generation gets an older one.
* **A living run tends**: between two epochs it aborts what older generations have left open.
* **Faults** come out of one budget: a transaction *expires*, an acknowledgement of a commit is *lost* (the commit
  done or not), pre-commit *fails* midway and leaves open what it opened, a *stray* attempt of a task leaves a second
  transaction open. An expiry commutes with every step that does not ask for this transaction, so it comes with one
  that does.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, cast

from penstock.checkpoint.decision import CheckpointState, honoured
from penstock.engine import protocol as p
from tests.support.walking import Moment, Violation

EVERY_WRITER: tuple[p.WriterId, ...] = (("left", 0), ("right", 0), ("right", 1))


@dataclass(frozen=True)
class Scenario:
    """The bounds of a world. `rows` says, by epoch, which writers have rows; the others report none."""

    rows: tuple[tuple[p.WriterId, ...], ...]
    deterministic: bool = True  # else each execution of the plan is a version of its own, of rows and of state
    log_known: bool = True  # can Spark's commit log be completed from outside?
    generations: int = 3
    alive: int = 2
    faults: int = 1
    permuted: bool = False  # does each run number the writers of a sink the other way round?
    dealt: bool = False  # does a replay give all rows of a sink that it only counts to one writer?
    cuts: int = 0  # how often the power fails
    tries: int = 0  # how many failures a run tolerates
    drains: int = 0  # how often somebody stops the job with a drain
    settlements: int = 0  # how often somebody ends what was left
    running: bool = False  # is Spark's query started before recovery?
    races: int = 0  # how often a run writes its barrier over another run's
    ghosts: int = 0  # how often a registration raises though it has created
    restarts: int = 0  # how often a query fails and is started again in its process
    stale: int = 0  # how often a listing is older than the newest registration
    tends: bool = False  # does a run that waits for rows sweep what older ones left, and leave nothing open in the end?
    strict: bool = True  # complain about what is only dangerous (4, 6 and 9 of `exploration.py`), not only of harm


def _commit_and_finish() -> Generator[p.Action, Any, p.Resume]:
    """A whole recovery that leaves open what is undecided, as `Settlement.commit` carries it out."""
    recovery = p.recover()
    action = next(recovery)
    try:
        while True:
            action = recovery.send(None if isinstance(action, p.Sweep) else (yield action))
    except StopIteration as end:
        return end.value


def _abort_undecided() -> Generator[p.Action, Any, p.Decision | None]:
    return p.abort_undecided(lambda _: False)


class Protocol(NamedTuple):
    """What is put to the test."""

    recover: Callable[..., Generator[p.Action, Any, p.Resume]] = p.recover
    run_epoch: Callable[[int, int, p.Replay | None], Generator[p.Action, Any, p.Decision | None]] = p.run_epoch
    may_try_again: Callable[[Collection[type[p.Action]]], bool] = p.may_try_again
    before_drain: Callable[[], Generator[p.Action, Any, p.Resume]] = p.recover
    settle: tuple[Callable[[], Generator[p.Action, Any, Any]], ...] = (
        p.commit_decided,
        _commit_and_finish,
        _abort_undecided,
    )
    # What lies around the coroutines, each with its law; a mutant breaks one.
    manifest_holds_what_ran: bool = True  # else what the barrier's file says
    start_compares_barriers: bool = True  # a start holds the last complete epoch's file against its manifest
    first_epoch_compares: bool = True  # the first epoch begins where the ledger says that the one before has ended
    knows_its_ghosts: bool = True  # a process knows the registrations of its own that raised
    keeps_sweeping: bool = True  # a living run sweeps for as long as it lives


class Transaction(NamedTuple):
    """One writer's transaction in the other system. `cut`: which barrier of the epoch its rows lie before; `base`:
    which barrier of the epoch before they lie behind."""

    epoch: int
    generation: int
    writer: p.WriterId
    stray: bool = False
    attempt: int = 0
    cut: int = 0
    base: int = 0

    @property
    def execution(self) -> int:
        """Where each execution of the plan differs, which one this comes from."""
        return _execution(self.generation, self.attempt)

    def __repr__(self) -> str:
        more = "/stray" * self.stray + f"/try{self.attempt}" * bool(self.attempt) + f"/cut{self.cut}" * bool(self.cut)
        return f"{self.epoch}/g{self.generation}/{self.writer[0]}{self.writer[1]}{more}"


class World(NamedTuple):
    """All that outlives a process. A transaction that is neither open nor committed was aborted."""

    faults: int  # how many may still happen
    states: tuple[tuple[int, bool], ...]  # by epoch: version of the state, and whether a superseded run left it
    cut: tuple[int, ...]  # by epoch: how often its barrier was cut anew
    cuts: int = 0  # how often the power may still fail
    tries: int = 0
    drains: int = 0
    settlements: int = 0
    races: int = 0
    ghosts: int = 0
    restarts: int = 0
    stale: int = 0
    newest: int = 0
    claims: frozenset[int] = frozenset()  # numbers given by `Simulation.number`, as decisions
    decisions: frozenset[int] = frozenset()
    barriers: int = 0  # offsets/0 … are written
    commits: int = 0  # commits/0 … are written; more than barriers only after the power has failed
    open: frozenset[Transaction] = frozenset()
    committed: frozenset[Transaction] = frozenset()
    expired: frozenset[Transaction] = frozenset()
    marked: frozenset[tuple[int, int]] = frozenset()  # epoch and cut of barriers at the end of time

    @property
    def calm(self) -> World:
        """This world, and nothing goes wrong any more."""
        return self._replace(faults=0, cuts=0, tries=0, drains=0, settlements=0, races=0, ghosts=0, restarts=0, stale=0)


class Payload(dict[str, Any]):
    """A payload that can be part of a key."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(tuple(self.items()))


class Driver(NamedTuple):
    """A living run: where it is in its life (`stage`), in its coroutine (`moment`) and in its action (`done`)."""

    stage: str  # "recover", "start", "barrier", "epoch", "finish", "drain" or "settle"
    moment: Moment
    generation: int = 0
    epoch: int = -1
    done: tuple[Any, ...] = ()
    resume: int | None = None  # how recovery ended, numbered, until the first epoch begins
    replay: int | None = None  # what it handed over to this epoch, numbered
    late: bool = False  # a newer generation was registered already when it decided
    proven: int = -1  # the last epoch of which it was told that every writer is visible
    attempt: int = 0  # at this epoch
    cut: int = 0  # the barrier of this epoch that Spark runs
    base: int = 0  # that of the epoch before, from which it runs
    own: frozenset[int] = frozenset()  # generations that this process has registered
    performed: frozenset[type[p.Action]] = frozenset()  # in this attempt
    final: bool = False  # it was asked to drain


class Step(NamedTuple):
    """One thing that a driver may do next; of several, the first is the one without a fault."""

    told: tuple[Any, ...]  # for people, put together only when somebody reads it
    world: World
    driver: Driver | None  # None: it ended
    stop: p.ProtocolStop | None = None


class Simulation:
    """What one run may do next: its coroutine's action, or Spark's part of the work."""

    def __init__(self, scenario: Scenario, protocol: Protocol) -> None:
        self.scenario, self._protocol = scenario, protocol
        self._recovering = Moment(protocol.recover)
        self._recovering_again: dict[int, Moment] = {}
        self._draining = Moment(protocol.before_drain)
        self._settling = [Moment(make) for make in protocol.settle]
        self._epochs: dict[tuple[int, int, int | None], Moment] = {}
        self._numbers: dict[Any, int] = {}
        self._values: list[Any] = []

    def number(self, value: Any) -> int:
        """A number for a value, so that worlds are quick to compare."""
        if value not in self._numbers:
            self._numbers[value] = len(self._values)
            self._values.append(value)
        return self._numbers[value]

    def first_world(self) -> World:
        of, none = self.scenario, tuple(0 for _ in self.scenario.rows)
        budgets = (of.cuts, of.tries, of.drains, of.settlements, of.races, of.ghosts, of.restarts, of.stale)
        return World(of.faults, tuple((0, False) for _ in none), none, *budgets)

    def fresh_driver(self) -> Driver:
        return Driver("start" if self.scenario.running else "recover", self._recovering)

    def newcomers(self, world: World) -> Iterator[tuple[World, Driver]]:
        """Who may begin: a run of the job, and where somebody still may, a person who takes it for dead."""
        yield world, self.fresh_driver()
        if world.settlements:
            fewer = world._replace(settlements=world.settlements - 1)
            yield from ((fewer, Driver("settle", moment)) for moment in self._settling)

    def power_failures(self, world: World) -> Iterator[Step]:
        """What may be left of Spark's log."""
        for barriers in range(world.barriers + 1 if world.cuts else 0):
            for commits in range(world.commits + 1):
                after = world._replace(cuts=world.cuts - 1, barriers=barriers, commits=commits)
                yield Step((0, "loses power; left are", barriers, "barriers,", commits, "commits"), after, None)

    def decisions(self, world: World) -> list[p.Decision]:
        return sorted((self._values[number] for number in world.decisions), key=lambda one: one.id)

    def steps(self, world: World, driver: Driver) -> Iterator[Step]:
        match driver.stage:
            case "start":
                yield self._start_query(world, driver)
            case "barrier":
                yield from self._write_barrier(world, driver)
            case "finish":
                yield self._write_commit(world, driver)
            case "drain":
                yield self._drain(world, driver)
            case "recover" | "settle":
                yield from self._carry_out(world, driver)
            case _:
                driver = driver._replace(
                    performed=driver.performed | {cast("type[p.Action]", type(driver.moment.action))}
                )
                for step in self._carry_out(world, driver):
                    yield step
                    if isinstance(step.stop, p.NotPrepared) and world.tries:
                        yield self._try_again(step.world, driver)
                if world.tries and self._protocol.may_try_again(driver.performed):
                    yield self._try_again(world, driver)
        if driver.stage in ("barrier", "finish") and world.drains and not driver.final:
            told = (driver.generation, "is stopped with a drain")
            yield Step(told, world._replace(drains=world.drains - 1), Driver("recover", self._draining, final=True))
        if driver.stage == "barrier" and self.scenario.tends and self._protocol.keeps_sweeping:
            yield from self._tend(world, driver)
        if world.restarts and driver.generation:
            told = (driver.generation, "fails, and its process starts the query again")
            yield Step(told, world._replace(restarts=world.restarts - 1), self._again(driver, driver.generation))

    def _tend(self, world: World, driver: Driver) -> Iterator[Step]:
        """Older generations' transactions, one by one; what this run has decided is settled between two epochs."""
        left = sorted(one for one in world.open if one.generation < driver.generation)
        for one in left[:1]:
            yield Step((driver.generation, "tends, and aborts", one), world._replace(open=world.open - {one}), driver)

    def tended(self, world: World, driver: Driver) -> World:
        """What a living run leaves open when it goes on tending."""
        while step := next(self._tend(world, driver) if self._protocol.keeps_sweeping else iter(()), None):
            world = step.world
        return world

    def _known(self, driver: Driver, generation: int) -> frozenset[int]:
        """Kept only where it can matter: it would tell drivers apart that do the same."""
        return driver.own | {generation} if self.scenario.ghosts or self.scenario.restarts else driver.own

    def _again(self, driver: Driver, previous: int) -> Driver:
        if previous not in self._recovering_again:
            self._recovering_again[previous] = Moment(lambda: self._protocol.recover(previous))
        return Driver("recover", self._recovering_again[previous], own=driver.own)

    def _try_again(self, world: World, driver: Driver) -> Step:
        """The action raised, and the failure is tolerated."""
        told = (driver.generation, "fails, and tries epoch", driver.epoch, "again")
        return Step(told, world._replace(tries=world.tries - 1), self._begin(driver, driver.attempt + 1))

    def _carry_out(self, world: World, driver: Driver) -> Iterator[Step]:
        match driver.moment.action:
            case p.NewestGeneration(of_others):
                if of_others and self._protocol.knows_its_ghosts and world.newest in driver.own:
                    yield self._answer(world, driver, 0, "recognises the newest generation:", world.newest)
                    return
                yield self._answer(world, driver, world.newest, "reads the newest generation:", world.newest)
                if world.stale and world.newest > driver.generation:
                    after = world._replace(stale=world.stale - 1)
                    yield self._answer(after, driver, driver.generation, "reads a stale listing")
            case p.Commit(decision):
                yield from self._commit(world, driver, decision)
            case p.Sweep(keep):
                yield self._sweep(world, driver, keep)
            case p.PreCommit(epoch, only):
                yield from self._pre_commit(world, driver, epoch, only)
            case p.Register():
                newest = world.newest + 1
                after = world._replace(newest=newest)
                known = driver._replace(generation=newest, own=self._known(driver, newest))
                yield self._answer(after, known, newest, "starts")
                if world.ghosts:
                    told = (newest, "is registered, but its process gets an error, and starts again")
                    again = self._again(driver._replace(own=driver.own | {newest}), max(driver.own, default=0))
                    yield Step(told, after._replace(ghosts=world.ghosts - 1), again)
            case p.Look():
                yield self._look(world, driver)
            case p.WriteClaim(claim):
                after = world._replace(claims=world.claims | {self.number(claim)})
                yield self._answer(after, driver, None, "claims to honour", claim.honours)
            case p.Decide(decision):
                if decision.id in (one.id for one in self.decisions(world)):
                    raise Violation(f"{decision.id} is decided twice")
                after = world._replace(decisions=world.decisions | {self.number(decision)})
                decided = driver._replace(late=world.newest > driver.generation)
                yield self._answer(after, decided, None, "decides", [one.payload["at"] for one in decision.to_commit])
            case p.RestoreLog(epoch, decided):
                yield self._restore_log(world, driver, epoch, decided)
            case p.FinishLog(epoch) if self.scenario.log_known and not self.scenario.running:
                after = self._with_commit(world, driver, epoch) if world.commits <= epoch else world
                yield self._answer(after, driver, True, "itself writes commits/", epoch)
            case p.FinishLog():
                yield self._answer(world, driver, False, "does not know the format of Spark's log")

    def _answer(self, world: World, driver: Driver, answer: Any, *told: Any) -> Step:
        """The action is done: on to the coroutine's next, or to what Spark does after its end."""
        moment = driver.moment.then(answer)
        told = (driver.generation, *told)
        if moment.action:
            return Step(told, world, driver._replace(moment=moment, done=()))
        if moment.stop:
            if isinstance(moment.stop, p.Fenced) and moment.stop.newest in driver.own - {driver.generation}:
                raise Violation(f"a run ends because of generation {moment.stop.newest}, which is its own")
            return Step((*told, "and stops:", moment.stop), world, None, moment.stop)
        if driver.stage == "settle":
            return Step((*told, "and has settled"), world, None)
        driver = driver._replace(moment=self._recovering, done=())
        if driver.stage == "epoch":
            return Step(told, world, driver._replace(stage="finish", replay=None, performed=frozenset()))
        resume: p.Resume = moment.result
        told = (*told, "and has recovered:", resume.action)
        driver = driver._replace(resume=self.number(resume))
        if driver.final:
            rests = resume.replay is None and resume.action != "void"
            rests = rests and not self.drained(world) and world.newest == driver.generation
            return Step(told, world, driver._replace(stage="drain", epoch=resume.epoch) if rests else None)
        if self.scenario.running:
            return self._enter(told, world, driver)
        return Step(told, world, driver._replace(stage="start"))

    def _look(self, world: World, driver: Driver) -> Step:
        """Spark's log, then the claims, then the decisions."""
        match driver.done:
            case ():
                epoch, damaged = world.commits, world.commits > world.barriers
                barrier = world.barriers > epoch
                done: tuple[Any, ...] = (world.barriers - 1 if barrier else epoch, barrier, damaged)
                return Step((driver.generation, "reads Spark's log:", done), world, driver._replace(done=done))
            case (epoch, barrier, damaged):
                claims = sorted((self._values[number] for number in world.claims), key=lambda one: one.generation)
                done = (epoch, barrier, damaged, tuple(claims))
                return Step((driver.generation, "reads the claims"), world, driver._replace(done=done))
            case (epoch, barrier, damaged, claims):
                decisions = [one for one in self.decisions(world) if one.id.epoch >= epoch]
                found = CheckpointState(epoch, barrier, tuple(decisions), claims, damaged)
                decision = honoured(found) if barrier else None
                decided = decision if decision and decision.id.epoch == epoch else None
                if decided:
                    damaged = damaged or bool(_decided_on(decided) - {world.cut[epoch]})
                elif barrier and self._cut_by_drain(world, epoch):
                    barrier, damaged = False, True
                if self._protocol.start_compares_barriers and world.barriers >= epoch > 0:
                    damaged = damaged or bool(self._manifest(world, epoch - 1) - {world.cut[epoch - 1]})
                found = replace(found, barrier=barrier, damaged=damaged)
                return self._answer(world, driver, found, "reads the decisions:", [one.id for one in decisions])
        raise AssertionError

    def _restore_log(self, world: World, driver: Driver, epoch: int, decided: p.DecisionId | None) -> Step:
        """From the decisions for the epoch and the one before; where a file differs, the ledger is right."""
        barriers, commits, cut = max(world.barriers, epoch), max(world.commits, epoch), list(world.cut)
        for number in (epoch - 1, *((epoch,) if decided else ())):
            if number < 0:
                continue
            known = any(one.id.epoch == number for one in self.decisions(world))
            if not known or self.scenario.running:
                return self._answer(world, driver, False, "cannot restore Spark's log")
            cut[number] = min(self._manifest(world, number), default=cut[number])
            barriers = max(barriers, number + 1)
        if not decided and self._cut_by_drain(world, epoch):
            barriers = epoch
        after = world._replace(barriers=barriers, commits=commits, cut=tuple(cut))
        return self._answer(after, driver, True, "restores Spark's log up to epoch", epoch)

    def _manifest(self, world: World, epoch: int) -> set[int]:
        """The barrier that the newest decision for the epoch was made on; none where it has no rows, or is unknown."""
        newest = max((one for one in self.decisions(world) if one.id.epoch == epoch), key=_by_id, default=None)
        return _decided_on(newest) if newest else set()

    def _pre_commit(self, world: World, driver: Driver, epoch: int, only: frozenset[str] | None) -> Iterator[Step]:
        """Opens one transaction; the answer comes with the last. Every step may be the one that leaves state."""
        generation, with_rows = driver.generation, self.scenario.rows[epoch]
        version = 1 if self.scenario.deterministic else _execution(generation, driver.attempt)
        version += 100 * driver.cut
        if not self.scenario.deterministic:
            state = (version, world.newest > generation)
            world = world._replace(states=(*world.states[:epoch], state, *world.states[epoch + 1 :]))
        named = {
            writer: Transaction(epoch, generation, writer, False, driver.attempt, driver.cut, driver.base)
            for writer in EVERY_WRITER
        }
        barrier = driver.cut if self._protocol.manifest_holds_what_ran else world.cut[epoch]
        writing = [named[writer] for writer in with_rows if only is None or writer[0] in only]
        opening = frozenset(writing[len(driver.done) :][:1])
        after = world._replace(open=world.open | opening)
        if len(driver.done) + 1 < len(writing):
            yield Step((generation, "opens", *opening), after, driver._replace(done=(*driver.done, True)))
        else:
            committables = tuple(
                p.Committable(
                    *self._numbered(writer, generation),
                    rows=5 + writer[1],
                    checksum=version,
                    payload=Payload(at=at, barrier=barrier) if at in writing else Payload(),
                )
                if writer in with_rows
                else p.Committable(*self._numbered(writer, generation), rows=0, checksum=0, payload=Payload())
                for writer, at in named.items()
            )
            if self.scenario.dealt and only is not None:
                committables = _dealt_out(committables, only)
            yield self._answer(after, driver, p.Prepared(committables), "has prepared", writing)
            if opening and world.faults:
                strays = {one._replace(stray=True) for one in opening}
                after = after._replace(open=after.open | strays, faults=world.faults - 1)
                prepared = p.Prepared(committables, strays=True)
                yield self._answer(after, driver, prepared, "has prepared", writing, "and left", strays)
        if world.faults:
            failed = world._replace(faults=world.faults - 1)
            yield self._answer(failed, driver, p.Failed(_TASK_FAILED), "fails to prepare epoch", epoch)

    def _numbered(self, writer: p.WriterId, generation: int) -> p.WriterId:
        """Transactions are named after the rows they hold; this is the number their writer has in this run."""
        turned = self.scenario.permuted and generation % 2 and writer[0] == "right"
        return (writer[0], 1 - writer[1]) if turned else writer

    def _commit(self, world: World, driver: Driver, decision: p.Decision) -> Iterator[Step]:
        """Commits one committable of the decision, whichever, or finds out what became of it."""
        if driver.late and decision.id.generation == driver.generation and self.scenario.strict:
            raise Violation(f"g{driver.generation} carries {decision.id} out, though superseded when it decided")
        asked = dict(driver.done)
        if len(asked) == len(decision.to_commit):
            yield self._outcomes(world, driver, decision, asked, "has nothing to commit")
        for one in decision.to_commit:
            if one.id in asked:
                continue
            at = one.payload["at"]
            visible = world._replace(open=world.open - {at}, committed=world.committed | {at})
            fewer = world.faults - 1
            if at in world.committed:
                may_be = [(world, p.Outcome.ALREADY_COMMITTED, "already committed")]
            elif at in world.open:
                gone = world._replace(open=world.open - {at}, expired=world.expired | {at}, faults=fewer)
                may_be = [
                    (visible, p.Outcome.COMMITTED, "committed"),
                    (gone, p.Outcome.LOST, "expired"),
                    (visible._replace(faults=fewer), p.Outcome.UNKNOWN, "unknown, but done"),
                ]
            elif at in world.expired or not self.scenario.strict:
                may_be = [(world, p.Outcome.LOST, "lost")]
            else:
                raise Violation(f"g{driver.generation} commits {at}, which was swept before")
            may_be.append((world._replace(faults=fewer), p.Outcome.UNKNOWN, "unknown, not done"))
            for after, outcome, told in may_be:
                if after.faults >= 0:
                    yield self._outcomes(after, driver, decision, {**asked, one.id: outcome}, "commits", at, told)

    def _outcomes(
        self, world: World, driver: Driver, decision: p.Decision, outcomes: dict[p.WriterId, p.Outcome], *told: Any
    ) -> Step:
        if len(outcomes) < len(decision.to_commit):
            done = tuple(sorted(outcomes.items(), key=lambda item: item[0]))
            return Step((driver.generation, *told), world, driver._replace(done=done))
        if all(outcome.visible for outcome in outcomes.values()):
            driver = driver._replace(proven=decision.id.epoch)
        return self._answer(world, driver, {one.id: outcomes[one.id] for one in decision.to_commit}, *told)

    def _sweep(self, world: World, driver: Driver, keep: tuple[p.Committable, ...]) -> Step:
        """Aborts one transaction after the other, until none is left."""
        kept = {one.payload.get("at") for one in keep}
        left = sorted(one for one in world.open if one.generation <= driver.generation and one not in kept)
        if not left:
            return self._answer(world, driver, None, "has swept")
        if driver.stage == "settle" and left[0] in self._decided(world):
            raise Violation(f"g{driver.generation} aborts {left[0]}, which is decided")
        return Step((driver.generation, "aborts", left[0]), world._replace(open=world.open - {left[0]}), driver)

    def _decided(self, world: World) -> set[Transaction]:
        """What the decision names that counts now."""
        claims = tuple(self._values[number] for number in world.claims)
        decisions = tuple(one for one in self.decisions(world) if one.id.epoch >= world.commits)
        decision = honoured(CheckpointState(world.commits, True, decisions, claims))
        return {one.payload["at"] for one in decision.to_commit} if decision else set()

    # Spark's part.

    def _start_query(self, world: World, driver: Driver) -> Step:
        """Spark reads its log once: unless the newest barrier has its commit, that epoch runs again. It begins at 0
        where there is no barrier, whatever is committed."""
        complete = world.commits == world.barriers
        if self.drained(world) and complete:
            return Step((driver.generation, "does not go on behind a drain"), world, None)
        epoch = world.barriers - (not complete and world.barriers > 0)
        base = world.cut[epoch - 1] if epoch else 0
        driver = driver._replace(epoch=epoch, stage="barrier", base=base)
        told = (driver.generation, "starts its query at epoch", driver.epoch)
        if complete and world.commits == len(self.scenario.rows):
            return Step(told, world, None)
        if world.barriers > driver.epoch:
            return self._enter(told, world, driver._replace(cut=world.cut[driver.epoch]))
        return Step(told, world, driver)

    def _write_barrier(self, world: World, driver: Driver) -> Iterator[Step]:
        epoch = driver.epoch
        if world.barriers <= epoch:
            after = self._with_barrier(world, epoch)
            yield self._enter(
                (driver.generation, "writes offsets/", epoch), after, driver._replace(cut=after.cut[epoch])
            )
            return
        yield Step((driver.generation, "is stopped by Spark: there is an offsets/", epoch), world, None)
        if world.races:
            cut = (*world.cut[:epoch], world.cut[epoch] + 1, *world.cut[epoch + 1 :])
            after = world._replace(races=world.races - 1, cut=cut)
            told = (driver.generation, "writes its own offsets/", epoch, "over another run's")
            yield self._enter(told, after, driver._replace(cut=cut[epoch]))

    def _with_barrier(self, world: World, epoch: int) -> World:
        """A cut of its own, wherever the power has failed or the barrier is replaced."""
        drained = (epoch, world.cut[epoch]) in world.marked  # and removed since
        anew = epoch < world.barriers or world.cuts < self.scenario.cuts or drained
        cut = (*world.cut[:epoch], world.cut[epoch] + anew, *world.cut[epoch + 1 :])
        return world._replace(barriers=epoch + 1, cut=cut)

    def _drain(self, world: World, driver: Driver) -> Step:
        """Look, replace the barrier, look again, run the epoch."""
        if driver.epoch == len(self.scenario.rows):
            return Step((driver.generation, "has nothing to drain"), world, None)
        if not driver.done:
            after = world._replace(marked=world.marked | {(driver.epoch, world.cut[driver.epoch] + 1)})
            barriers = max(driver.epoch + 1, world.barriers)
            after = self._with_barrier(after._replace(barriers=barriers), driver.epoch)._replace(barriers=barriers)
            return Step((driver.generation, "replaces offsets/", driver.epoch), after, driver._replace(done=("cut",)))
        if world.newest > driver.generation:
            return Step((driver.generation, "finds its drain superseded"), world, None)
        told = (driver.generation, "runs the epoch that closes all windows")
        base = world.cut[driver.epoch - 1] if driver.epoch else 0
        return self._enter(told, world, driver._replace(done=(), cut=world.cut[driver.epoch], base=base))

    def drained(self, world: World) -> bool:
        """Whether the newest complete epoch has closed all windows."""
        last = world.commits - 1
        return last >= 0 and world.barriers == world.commits and (last, world.cut[last]) in world.marked

    def _cut_by_drain(self, world: World, epoch: int) -> bool:
        return world.barriers > epoch and (epoch, world.cut[epoch]) in world.marked

    def _enter(self, told: tuple[Any, ...], world: World, driver: Driver) -> Step:
        if not driver.generation:  # Spark runs; it calls us, and we recover
            return Step(told, world, driver._replace(stage="recover", moment=self._recovering))
        replay: p.Replay | None = None
        if driver.resume is not None:
            try:
                replay = p.replay_of(self._values[driver.resume], driver.epoch)
            except p.LogBehind as stop:
                return Step((*told, "and stops:", stop), world, None, stop)
            if self._protocol.first_epoch_compares and self._runs_another_barrier(world, driver, replay):
                return Step((*told, "and stops: another run has written over a barrier"), world, None)
        due = driver.resume is not None and (replay or self._values[driver.resume].action == "void")
        if (driver.epoch, driver.cut) in world.marked and not driver.final and not due:
            return Step((*told, "and refuses the barrier of a drain"), world, None)
        driver = driver._replace(resume=None, replay=None if replay is None else self.number(replay))
        return Step(told, world, self._begin(driver, 0))

    def _runs_another_barrier(self, world: World, driver: Driver, replay: p.Replay | None) -> bool:
        before = self._manifest(world, driver.epoch - 1)
        return bool(before - {driver.base} or (replay is not None and _decided_on(replay.decision) - {driver.cut}))

    def _begin(self, driver: Driver, attempt: int) -> Driver:
        key = (driver.generation, driver.epoch, driver.replay)
        if key not in self._epochs:
            replay: p.Replay | None = None if driver.replay is None else self._values[driver.replay]
            self._epochs[key] = Moment(lambda: self._protocol.run_epoch(key[0], key[1], replay))
        driver = driver._replace(attempt=attempt, performed=frozenset(), done=(), late=False)
        return driver._replace(stage="epoch", moment=self._epochs[key])

    def _write_commit(self, world: World, driver: Driver) -> Step:
        if world.commits > driver.epoch:
            return Step((driver.generation, "is stopped by Spark: there is a commits/", driver.epoch), world, None)
        after, told = (
            self._with_commit(world, driver, driver.epoch),
            (driver.generation, "writes commits/", driver.epoch),
        )
        if after.commits == len(self.scenario.rows) or self.drained(after):
            return Step(told, after, None)
        return Step(told, after, driver._replace(stage="barrier", epoch=after.commits, base=driver.cut))

    def _with_commit(self, world: World, driver: Driver, epoch: int) -> World:
        if driver.proven != epoch and self.scenario.strict:
            raise Violation(f"g{driver.generation} writes commits/{epoch} without proof that all is visible")
        return world._replace(commits=epoch + 1)


def _decided_on(decision: p.Decision) -> set[int]:
    """The barrier that its manifest holds; none where it has no rows."""
    return {one.payload["barrier"] for one in decision.to_commit}


def _by_id(decision: p.Decision) -> p.DecisionId:
    return decision.id


def _dealt_out(committables: tuple[p.Committable, ...], only: frozenset[str]) -> tuple[p.Committable, ...]:
    """One writer of each sink that is only counted has all its rows, another one than before."""
    found = [one for one in committables if one.sink in only]
    for sink in sorted({one.sink for one in committables} - only):
        own = [one for one in committables if one.sink == sink]
        rows, checksum = sum(one.rows for one in own), sum(one.checksum for one in own)
        found.append(p.Committable(sink, 7, rows=rows, checksum=checksum, payload=Payload()))
    return tuple(found)


def _execution(generation: int, attempt: int) -> int:
    return generation * 10 + attempt


_TASK_FAILED = RuntimeError("a task failed")
