"""A small world for the protocol of lanes: a broker, a ledger, and runs of a real-time query that come, stall and die.

`Simulation.moves` says what may happen next in a given state, and checks it. The actors are drivers and tasks, driven
by the real coroutine of `penstock.contracts.lanes`, by the model of the task, or by broken variants.

What may happen, and how few kinds of steps are enough for it:

* **A crash** is an actor that never takes another step. A **zombie** is one that takes a step after a newer run has
  started. Each call to the broker is a step, so both fall between any two of them.
* **The broker** knows, for every lane, the newest producer epoch, its open transaction, committed marks and rows. A
  call with an older epoch is fenced, and its actor ends.
* **A commit has no answer** (`unsure`): it was carried out; or not; or not yet, and the request is under way and ends
  whatever transaction of that producer epoch it meets; or it was carried out and a second one is under way.
* **A transaction expires**: the broker aborts it and fences its owner.
* **Spark runs a task again** from its batch's start, with the first attempt dead or alive, and **ends a batch** at any
  row; the next task goes on with the same owner, or opens the lane anew.
* **The ledger** is one step to read (with the registration) and one to write, which only the newest run can: that this
  is as good as the real thing is what `protocol_world.py` is for.
* **The marks topic is lost** and created again. **A partition is added**; Spark may find it before the driver does.
* **The query is restored** from its newest barrier, with another query id; `fresh`: into a new folder, where the
  generations begin at 1 again and the ledger knows nothing of older runs.
* **Micro-batches** take over, and hand over again. Their epochs are single steps.

What is checked at every step:

1. Each commit makes the next rows of its lane visible: none is missing, doubled or out of order.
2. A run that was superseded sends nothing into a lane that a newer one has opened: they never fence each other in turn.
3. After a clean stop no row becomes visible until a new run starts.
4. `MarksLost` only where marks were lost, `Superseded` only where a newer run exists or the run was stopped.
5. A fresh run, all others dead and no faults any more, makes all rows visible, and its clean stop leaves nothing open;
   a fresh run in micro-batches does the same, unless a source row is visible in part. Where marks were lost, both may
   stop with `MarksLost`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from penstock.contracts import lanes as lp
from penstock.contracts.lanes import Mark
from penstock.engine import lanes
from penstock.errors import MarksLost, NotRestorable, PenstockError, ReplayDiffers, Superseded
from tests.support import lane_model
from tests.support.walking import Moment, Violation, walk


@dataclass(frozen=True)
class Scenario:
    """The bounds of a world. `rows` says, by lane and source offset, how many rows the plan gives."""

    rows: tuple[tuple[int, ...], ...] = ((1, 1),)
    runs: int = 2
    alive: int = 3
    unsure: int = 0
    expiries: int = 0
    retries: int = 0
    batches: int = 0  # how often a batch ends before its input does
    stops: int = 0
    losses: int = 0
    restores: int = 0
    fresh: bool = False
    added: int = 0  # how many of the lanes are added later
    micro: int = 0  # how many runs may be in micro-batches
    epochs: int = 1  # how often a running driver writes positions into the ledger
    strict: bool = True  # complain about 2, 4 and open transactions, not only about rows
    fine: bool = False  # is every call a step of its own? Else calls that nobody else can see come with the one before


@dataclass(frozen=True)
class Unfenced:
    """Instead of `Init`, for mutants: a producer that fences nobody."""


@dataclass(frozen=True)
class ReadEnd:
    """Instead of `ReadMark`, for mutants: up to a high watermark, which may be `behind`. → `Mark` or None."""

    behind: bool = False


class Protocol(NamedTuple):
    """What is put to the test."""

    open_by_driver: Callable[[lp.Owner], Generator[Any, Any, Any]] = lp.open_by_driver
    run_task: Callable[..., Generator[Any, Any, Any]] = lane_model.run_task
    begin: Callable[[lp.Owner, lanes.Known, Mark | None], Mark] = lanes.begin
    end: Callable[[lp.Owner, lanes.Known, Mark | None], Mark] = lanes.end
    looks_again: bool = True  # for newer generations, before it commits its mark
    closes_lanes: bool = True  # before micro-batches
    writes_first_epoch: bool = True  # before Spark starts


class Transaction(NamedTuple):
    """An open transaction of a producer epoch."""

    epoch: int
    history: int
    run: int
    rows: tuple[int, ...] = ()  # numbers of rows in the lane
    marks: tuple[Mark, ...] = ()


class Log(NamedTuple):
    """The broker's side of a lane. Producer epochs count from the newest fence."""

    top: int = 0
    floor: int = 0
    open: tuple[Transaction, ...] = ()
    committed: tuple[Mark, ...] = ()  # the newest two
    late: frozenset[int] = frozenset()  # producer epochs with a commit under way
    visible: tuple[int, ...] = (0,)  # by history: how many rows
    opened: int = 0  # the newest run whose driver has opened it
    topic: int = 0


class Barrier(NamedTuple):
    """The newest complete epoch."""

    lanes: str | None
    positions: tuple[Mark | None, ...]
    topics: tuple[int, ...]


class World(NamedTuple):
    """All that outlives a process."""

    logs: tuple[Log, ...]
    unsure: int
    expiries: int
    retries: int
    batches: int
    stops: int
    losses: int
    restores: int
    micro: int
    partitions: int
    runs: int = 0
    newest: int = 0  # generation, in the current folder
    left: tuple[int, int] = (0, 0)  # the newest run and its generation, in the folder before
    history: int = 0
    barrier: Barrier | None = None
    stopped: int = 0  # the run that was stopped last, until another one starts
    stopping: frozenset[int] = frozenset()
    lost: bool = False

    @property
    def query(self) -> str:
        return f"q{self.history}"


class Actor(NamedTuple):
    """A driver or a task. `epoch` is its producer's, -1 once it is fenced."""

    kind: str  # "driver", "micro" or "task"
    stage: str
    run: int
    owner: lp.Owner
    history: int
    moment: Moment | None = None
    lane: int = 0
    epoch: int = -1
    known: tuple[lanes.Known, ...] = ()
    begun: tuple[Mark | None, ...] = ()
    topics: tuple[int, ...] = ()
    start: int = 0  # of a task's batch, as a number of a row
    cursor: int = 0
    epochs: int = 0
    adds: int = 0  # the number of lanes that it began with, until it has opened another one


State = tuple[World, tuple[Actor, ...]]
Move = tuple[str, State]


class Explored(NamedTuple):
    """How much there was to see."""

    states: int
    worlds: int


def explore(scenario: Scenario, protocol: Protocol | None = None) -> Explored:
    """Visit everything in the scenario; raises the first `Violation`, with a shortest trace that leads to it."""
    simulation = Simulation(scenario, protocol or Protocol())
    first: State = (simulation.first_world(), ())
    states = walk(first, simulation.moves, str)
    return Explored(states, len(simulation.ended))


class Simulation:
    """What may happen next, and whether it may."""

    def __init__(self, scenario: Scenario, protocol: Protocol) -> None:
        self.scenario, self._protocol = scenario, protocol
        self._moments: dict[Any, Moment] = {}
        self._rows = [[(at, n + 1) for at, many in enumerate(lane) for n in range(many)] for lane in scenario.rows]
        self._multiplies = [any(many > 1 for many in lane) for lane in scenario.rows]
        self._checked: set[World] = set()
        self.ended: set[World] = set()

    def first_world(self) -> World:
        of = self.scenario
        budgets = (of.unsure, of.expiries, of.retries, of.batches, of.stops, of.losses, of.restores, of.micro)
        return World(tuple(Log() for _ in of.rows), *budgets, partitions=len(of.rows) - of.added)

    # Moves.

    def moves(self, state: State) -> Iterator[Move]:
        world, actors = state
        for place, actor in enumerate(actors):
            others = (*actors[:place], *actors[place + 1 :])
            for told, after, more in self._steps(world, actor):
                yield from self._arrive(f"run {actor.run} {actor.kind} {told}", after, others, more)
        for told, after in self._of_the_world(world):
            yield from self._arrive(told, after, actors, ())
        if world.runs < self.scenario.runs:
            for told, after, newcomer in self._newcomers(world):
                yield from self._arrive(told, after, actors, (newcomer,))

    def _arrive(self, told: str, world: World, others: tuple[Actor, ...], moved: tuple[Actor, ...]) -> Iterator[Move]:
        """Where there are too many actors, one that did not move is forgotten, whichever."""
        if world not in self._checked:
            self._checked.add(world)
            self._check_end(told, world)
        surplus = len(others) + len(moved) - self.scenario.alive
        if surplus <= 0 or not others:
            world, actors = _canonical(world, (*others, *moved))
            yield told, (world, tuple(sorted((one for one in actors if self._matters(world, one)), key=_order)))
            return
        for dead in range(len(others)):
            yield from self._arrive(told, world, (*others[:dead], *others[dead + 1 :]), moved)

    def _matters(self, world: World, actor: Actor) -> bool:
        """Whether anything can come of the actor any more."""
        if actor.stage == "run":
            writes = actor.epochs < self.scenario.epochs and self._is_newest(world, actor)
            return bool(writes or world.stops or 0 < actor.adds < len(world.logs) or len(actor.begun) < len(world.logs))
        fenced = actor.epoch < 0 and actor.moment is not None and not isinstance(actor.moment.action, _FIRST)
        return not fenced or bool(world.unsure or (actor.kind == "task" and world.retries))

    def _of_the_world(self, world: World) -> Iterator[tuple[str, World]]:
        for lane, log in enumerate(world.logs):
            for epoch in log.late:
                fewer = _with(world, lane, late=log.late - {epoch})
                if any(one.epoch == epoch for one in log.open):
                    fewer = self._commit(fewer, lane, epoch)
                yield f"a commit that was under way arrives in lane {lane}", fewer
            if world.expiries and log.open:
                after = _fenced(world, lane)._replace(expiries=world.expiries - 1)
                yield f"the transaction of lane {lane} expires", after
            if world.losses and log.committed:
                left = tuple(one._replace(marks=()) for one in log.open)
                after = _with(world, lane, committed=(), open=left, topic=log.topic + 1)
                yield f"the marks of lane {lane} are lost", after._replace(losses=world.losses - 1, lost=True)
        if world.partitions < len(world.logs):
            yield "a partition is added", world._replace(partitions=world.partitions + 1)
        if world.restores and world.barrier and world.runs < self.scenario.runs:
            yield "restored", self._restored(world)

    def _restored(self, world: World) -> World:
        assert world.barrier
        at = [self._count(lane, one) for lane, one in enumerate(world.barrier.positions)]
        logs = tuple(
            log._replace(visible=(*log.visible, at[lane] if lane < len(at) else 0))
            for lane, log in enumerate(world.logs)
        )
        world = world._replace(logs=logs, history=world.history + 1, restores=world.restores - 1, runs=world.runs + 1)
        if self.scenario.fresh:
            return world._replace(newest=0, left=(world.runs, world.newest))
        return world._replace(newest=world.newest + 1)

    # A run.

    def _newcomers(self, world: World) -> Iterator[tuple[str, World, Actor]]:
        kinds = ("driver", "micro") if world.micro else ("driver",)
        for kind in kinds:
            after = world._replace(runs=world.runs + 1, newest=world.newest + 1, stopped=0)
            after = after._replace(micro=world.micro - (kind == "micro"))
            actor = self._registered(after, kind)
            yield f"run {actor.run} registers as {kind}, generation {actor.owner.generation}", after, actor

    def _registered(self, world: World, kind: str) -> Actor:
        barrier = world.barrier
        topics = tuple(log.topic for log in world.logs)
        known = []
        for lane in range(world.partitions):
            has = barrier is not None and lane < len(barrier.positions)
            replaced = barrier is not None and has and barrier.topics[lane] != topics[lane]
            known.append(
                lanes.Known(barrier.lanes, barrier.positions[lane] if has else None, replaced)
                if barrier
                else lanes.Known()
            )
        owner = lp.Owner(world.query, world.newest)
        actor = Actor(kind, "open", world.runs, owner, world.history, known=tuple(known), topics=topics)
        closes = barrier is not None and barrier.lanes is not None and self._protocol.closes_lanes
        if kind == "micro" and not closes:
            return actor._replace(stage="micro")
        return self._opening(actor, 0)

    def _opening(self, actor: Actor, lane: int) -> Actor:
        moment = self._moment(("driver", actor.owner), lambda: self._protocol.open_by_driver(actor.owner))
        return actor._replace(lane=lane, moment=moment, epoch=-1)

    def _moment(self, key: Any, make: Callable[[], Generator[Any, Any, Any]]) -> Moment:
        if key not in self._moments:
            self._moments[key] = Moment(make)
        return self._moments[key]

    def _task(self, actor: Actor, lane: int, begun: Mark | None, start: int) -> Actor:
        moment = self._moment(
            ("task", actor.owner, begun, self._multiplies[lane]),
            lambda: self._protocol.run_task(actor.owner, begun, multiplies=self._multiplies[lane]),
        )
        return Actor(
            "task",
            "write",
            actor.run,
            actor.owner,
            actor.history,
            moment,
            lane,
            begun=(begun,),
            start=start,
            cursor=start,
        )

    def _count(self, lane: int, mark: Mark | None) -> int:
        """How many rows of the lane are at or before the mark."""
        return 0 if mark is None else sum(row <= mark.position for row in self._rows[lane])

    def _first_of(self, lane: int, mark: Mark | None) -> int:
        """Where Spark begins to read: it knows whole source rows."""
        return 0 if mark is None else sum(row[0] < mark.offset for row in self._rows[lane])

    def _is_newest(self, world: World, actor: Actor) -> bool:
        return actor.history == world.history and actor.owner.generation == world.newest

    def _steps(self, world: World, actor: Actor) -> Iterator[tuple[str, World, tuple[Actor, ...]]]:
        """What was done, the world after it, and what became of the actor, with those that it has started."""
        match actor.stage:
            case "open" | "stop" | "add" | "write" | "ending":
                yield from self._carry_out(world, actor)
            case "epoch":
                yield self._write_epoch(world, actor)
            case "start":
                begun = actor.begun
                tasks = [
                    self._task(actor, lane, begun[lane], self._first_of(lane, begun[lane]))
                    for lane in range(len(begun))
                ]
                yield "starts Spark", world, (actor._replace(stage="run", known=(), adds=len(tasks)), *tasks)
            case "run":
                yield from self._run(world, actor)
            case "ended":
                yield (
                    "goes on with a new batch",
                    world,
                    (self._answered(actor._replace(stage="write"), lane_model.Signal.BEGIN),),
                )
                again = self._task(actor, actor.lane, actor.begun[0], actor.cursor)
                yield "is followed by another task", world, (again,)
            case "micro":
                yield from self._micro(world, actor)
        if actor.kind == "task" and world.retries:
            fewer = world._replace(retries=world.retries - 1)
            again = self._task(actor, actor.lane, actor.begun[0], actor.start)
            yield "is tried again, and lives", fewer, (actor, again)
            yield "is tried again", fewer, (again,)

    def _write_epoch(self, world: World, actor: Actor) -> tuple[str, World, tuple[Actor, ...]]:
        """The epoch at the positions of the marks that the lanes were opened with."""
        if not self._is_newest(world, actor):
            return "finds a newer run, and ends", world, ()
        if actor.kind == "micro":
            try:
                positions = [Mark("", 0, lanes.for_micro_batches(one)) for one in actor.begun if one]
            except NotRestorable:
                return "stops: a source row is visible in part", world, ()
            after = world._replace(barrier=Barrier(None, tuple(positions), actor.topics))
            return "closes the lanes", after, (actor._replace(stage="micro", moment=None),)
        after = world._replace(barrier=Barrier(actor.owner.query, actor.begun, actor.topics))
        if actor.known:
            return "writes its first epoch", after, (actor._replace(stage="start", moment=None),)
        return "writes its last epoch", after._replace(stopped=actor.run), ()

    def _run(self, world: World, actor: Actor) -> Iterator[tuple[str, World, tuple[Actor, ...]]]:
        if actor.epochs < self.scenario.epochs and world.barrier:
            newest = tuple(
                next((one for one in reversed(log.committed) if one.query == actor.owner.query), None)
                for log in world.logs[: len(actor.begun)]
            )
            if not self._is_newest(world, actor):
                yield "finds a newer run, and ends", world, ()
            elif all(newest) and newest != world.barrier.positions:
                after = world._replace(barrier=Barrier(actor.owner.query, newest, actor.topics))
                yield "writes an epoch", after, (actor._replace(epochs=actor.epochs + 1),)
        if world.stops:
            after = world._replace(stops=world.stops - 1, stopping=world.stopping | {actor.run})
            yield "is to stop", after, (self._stopping(world, actor),)
        lane = world.partitions - 1
        if len(actor.begun) < world.partitions:
            found = actor._replace(begun=(*actor.begun, None))
            yield "has a task for a new partition", world, (found, self._task(actor, lane, None, 0))
        if actor.adds and actor.adds < world.partitions:
            known = (lanes.Known(actor.owner.query),) * world.partitions
            yield (
                "opens a lane for a new partition",
                world,
                (self._opening(actor._replace(stage="add", adds=0, known=known), lane),),
            )

    def _stopping(self, world: World, actor: Actor) -> Actor:
        positions = world.barrier.positions if world.barrier else ()
        known = tuple(
            lanes.Known(actor.owner.query, positions[lane] if lane < len(positions) else None)
            for lane in range(world.partitions)
        )
        return self._opening(actor._replace(stage="stop", known=known), 0)

    def _micro(self, world: World, actor: Actor) -> Iterator[tuple[str, World, tuple[Actor, ...]]]:
        """An epoch of micro-batches: the next source row of each lane."""
        if not self._is_newest(world, actor):
            yield "finds a newer run, and ends", world, ()
            return
        barrier = world.barrier
        positions = []
        for lane in range(world.partitions):
            at = barrier.positions[lane] if barrier and lane < len(barrier.positions) else None
            offset = at.offset if at else 0
            many = [number for number, row in enumerate(self._rows[lane]) if row[0] == offset]
            world = self._show(world, lane, actor.history, actor.run, tuple(many))
            positions.append(Mark("", 0, min(offset + 1, len(self.scenario.rows[lane]))))
        after = world._replace(barrier=Barrier(None, tuple(positions), actor.topics))
        done = all(one.offset == len(rows) for one, rows in zip(positions, self.scenario.rows, strict=False))
        yield "completes a micro-batch", after, () if done else (actor,)

    # The broker.

    def _carry_out(self, world: World, actor: Actor) -> Iterator[tuple[str, World, tuple[Actor, ...]]]:
        moment, lane = actor.moment, actor.lane
        assert moment
        action, log = moment.action, world.logs[lane]
        if isinstance(action, lp.Init | Unfenced):
            after = _fenced(world, lane) if isinstance(action, lp.Init) else _with(world, lane, top=log.top + 1)
            yield f"inits lane {lane}", *self._goes_on(after, actor._replace(epoch=log.top + 1), None)
            return
        if isinstance(action, lp.Begin):
            yield f"begins lane {lane} after {_short(action.found)}", *self._begin(world, actor, action.found)
            return
        if isinstance(action, lane_model.Take):
            yield from self._take(world, actor)
            return
        if isinstance(action, lane_model.Wait):
            again = self._task(actor, lane, None, actor.start)  # it has taken nothing yet: the same as a new one
            yield "waits for its driver", world, (again,)
            return
        if isinstance(action, ReadEnd):
            for newest in (log.committed[-1:], log.committed[-2:-1])[: 1 + action.behind]:
                found = newest[0] if newest else None
                yield f"reads {_short(found)}", *self._goes_on(world, actor, found)
            return
        if actor.epoch < 0:
            yield f"is fenced in lane {lane} at {type(action).__name__}", world, ()
            if isinstance(action, lp.Commit) and world.unsure:
                fewer = world._replace(unsure=world.unsure - 1)
                yield f"commits in lane {lane} without an answer, fenced", *self._goes_on(fewer, actor, False)
            return
        mine = [one for one in log.open if one.epoch == actor.epoch]
        others = tuple(one for one in log.open if one.epoch != actor.epoch)
        current = mine[0] if mine else Transaction(actor.epoch, actor.history, actor.run)
        match action:
            case lp.SendOpening():
                after = _with(world, lane, open=(*others, current))
                yield f"opens lane {lane}", *self._goes_on(after, actor, 0)
            case lp.ReadMark():
                found = log.committed[-1] if log.committed else None
                yield f"reads {_short(found)}", *self._goes_on(world, actor, found)
            case lane_model.SendRow():
                self._check_owner(log, actor, action)
                current = current._replace(rows=(*current.rows, actor.cursor - 1))
                yield (
                    f"sends row {actor.cursor - 1}",
                    *self._goes_on(_with(world, lane, open=(*others, current)), actor, None),
                )
            case lp.SendMark():
                self._check_owner(log, actor, action)
                current = current._replace(marks=(*current.marks, replace(action.mark, rows=0)))
                after = _with(world, lane, open=(*others, current))
                yield f"sends {_short(action.mark)}", *self._goes_on(after, actor, None)
            case lp.Abort():
                yield f"aborts in lane {lane}", *self._goes_on(_with(world, lane, open=others), actor, None)
            case lp.Commit():
                done = self._commit(world, lane, actor.epoch) if mine else world
                yield f"commits in lane {lane}", *self._goes_on(done, actor, True)
                if world.unsure:
                    under_way = log.late | {actor.epoch}
                    for told, after in (
                        ("done", done),
                        ("not done", world),
                        ("under way", _with(world, lane, late=under_way)),
                        ("done, and again under way", _with(done, lane, late=under_way)),
                    ):
                        fewer = after._replace(unsure=world.unsure - 1)
                        yield f"commits in lane {lane} without an answer, {told}", *self._goes_on(fewer, actor, False)
            case _:
                raise AssertionError(action)

    def _begin(self, world: World, actor: Actor, found: Mark | None) -> tuple[World, tuple[Actor, ...]]:
        answer: Mark | PenstockError
        last, newest = world.left
        in_time = actor.owner.generation == newest if actor.run <= last else self._is_newest(world, actor)
        if self._protocol.looks_again and not in_time:
            answer = _SUPERSEDED
        else:
            decide = self._protocol.end if actor.stage == "stop" else self._protocol.begin
            try:
                answer = decide(actor.owner, actor.known[actor.lane], found)
            except MarksLost:
                answer = _MARKS_LOST
            except Superseded:
                answer = _SUPERSEDED
        return self._goes_on(world, actor, answer)

    def _take(self, world: World, actor: Actor) -> Iterator[tuple[str, World, tuple[Actor, ...]]]:
        rows, lane = self._rows[actor.lane], actor.lane
        whole = actor.cursor == len(rows) or rows[actor.cursor][1] == 1  # no batch ends inside a source row
        if actor.cursor < len(rows):
            offset, part = rows[actor.cursor]
            row = lane_model.Row(offset, offset * 10 + part if self._multiplies[lane] else 0)
            moved = actor._replace(cursor=actor.cursor + 1)
            yield f"takes row {actor.cursor}", *self._goes_on(world, moved, row)
        assert actor.moment
        if not isinstance(actor.moment.then(lane_model.Signal.CUT).action, lane_model.Take):
            yield "cuts", *self._goes_on(world, actor, lane_model.Signal.CUT)
        if whole and actor.cursor < len(rows) and self._multiplies[lane]:
            upcoming = lane_model.Next(rows[actor.cursor][0])
            if not isinstance(actor.moment.then(upcoming).action, lane_model.Take):
                yield "cuts before a source row", *self._goes_on(world, actor, upcoming)
        if whole and (actor.cursor == len(rows) or world.batches):
            fewer = world._replace(batches=world.batches - (actor.cursor < len(rows)))
            yield "comes to the end", *self._goes_on(fewer, actor._replace(stage="ending"), lane_model.Signal.END)

    def _check_owner(self, log: Log, actor: Actor, action: Any) -> None:
        if actor.run < log.opened and self.scenario.strict:
            raise Violation(f"run {actor.run} goes on in a lane that run {log.opened} has opened: {action}")

    def _commit(self, world: World, lane: int, epoch: int) -> World:
        log = world.logs[lane]
        done = next(one for one in log.open if one.epoch == epoch)
        left = tuple(one for one in log.open if one.epoch != epoch)
        committed = log.committed
        for mark in done.marks:
            if committed[-1:] != (mark,):
                committed = (*committed, mark)[-2:]
        world = _with(world, lane, open=left, committed=committed)
        return self._show(world, lane, done.history, done.run, done.rows)

    def _show(self, world: World, lane: int, history: int, run: int, rows: tuple[int, ...]) -> World:
        log = world.logs[lane]
        seen = log.visible[history]
        if rows and world.stopped:
            raise Violation(f"rows of run {run} become visible after the clean stop of run {world.stopped}")
        if rows != tuple(range(seen, seen + len(rows))):
            kind = "doubled" if rows[0] < seen else "lost or out of order"
            raise Violation(f"{kind}: rows {rows} become visible in lane {lane} behind {seen} rows")
        visible = (*log.visible[:history], seen + len(rows), *log.visible[history + 1 :])
        return _with(world, lane, visible=visible)

    def _answered(self, actor: Actor, answer: Any) -> Actor:
        assert actor.moment
        return actor._replace(moment=actor.moment.then(answer))

    def _goes_on(self, world: World, actor: Actor, answer: Any) -> tuple[World, tuple[Actor, ...]]:
        actor = self._answered(actor, answer)
        moment = actor.moment
        assert moment
        if moment.stop is not None:
            self._check_stop(world, actor, moment.stop)
            return world, ()
        if actor.stage == "ending" and isinstance(moment.action, lane_model.Take):
            done = actor.cursor == len(self._rows[actor.lane])
            return world, () if done else (actor._replace(stage="ended", start=actor.cursor),)
        if moment.action is None:
            return self._opened(world, actor, moment.result)
        unseen = isinstance(moment.action, _UNSEEN) and actor.epoch >= 0 and not self.scenario.fine
        if unseen and actor.epoch >= world.logs[actor.lane].floor:
            [(_, world, after)] = self._carry_out(world, actor)
            return world, after
        return world, (actor,)

    def _opened(self, world: World, actor: Actor, mark: Mark) -> tuple[World, tuple[Actor, ...]]:
        """A driver has opened its lane: the next one, or what comes after the last."""
        world = _with(world, actor.lane, opened=max(actor.run, world.logs[actor.lane].opened))
        if actor.stage == "add":
            return world, (actor._replace(stage="run", moment=None, epoch=-1, known=()),)
        if actor.lane == 0:
            actor = actor._replace(begun=())
        actor = actor._replace(begun=(*actor.begun, mark))
        if actor.lane + 1 < len(actor.known):
            return world, (self._opening(actor, actor.lane + 1),)
        if actor.stage == "stop":
            return world, (actor._replace(stage="epoch", moment=None, epoch=-1, known=()),)
        first = actor.kind == "micro" or actor.known[0].lanes != actor.owner.query
        stage = "epoch" if first and (self._protocol.writes_first_epoch or actor.kind == "micro") else "start"
        return world, (actor._replace(stage=stage, moment=None, epoch=-1),)

    def _check_stop(self, world: World, actor: Actor, stop: PenstockError) -> None:
        if isinstance(stop, ReplayDiffers):
            raise Violation(f"run {actor.run} finds other rows: {stop}")
        if not self.scenario.strict:
            return
        if isinstance(stop, MarksLost) and not world.lost:
            raise Violation(f"run {actor.run} misses marks, though none was lost: {stop}")
        if isinstance(stop, Superseded) and actor.run == world.runs and actor.run not in world.stopping:
            raise Violation(f"run {actor.run} is superseded, though it is the newest: {stop}")

    # How it ends.

    def _check_end(self, told: str, world: World) -> None:
        """One fresh run alone, in either mode."""
        calm = world._replace(unsure=0, expiries=0, retries=0, batches=0, losses=0, restores=0, micro=0, stops=1)
        calm = calm._replace(runs=world.runs + 1, newest=world.newest + 1, stopped=0)
        calm = _canonical(calm, ())[0]
        if calm in self.ended:
            return
        self.ended.add(calm)
        for kind in ("driver", "micro"):
            self._end(told, calm, kind)

    def _end(self, told: str, world: World, kind: str) -> None:
        actors: tuple[Actor, ...] = (self._registered(world, kind),)
        trace = [told, f"from here, a fresh run alone ({kind}):"]
        try:
            at = [mark for log in world.logs for mark in log.committed[-1:]]
            part = any(mark and mark.part for mark in (*at, *(world.barrier.positions if world.barrier else ())))
            while actors:
                actor, *rest = sorted(actors, key=lambda one: one.stage in ("run", "ended"))
                steps = list(self._steps(world, actor))
                if actor.stage == "run":  # all tasks are done
                    steps = [one for one in steps if one[0] != "writes an epoch"][-1:]
                step, world, moved = steps[0]
                trace.append(step)
                world, actors = _canonical(world, (*rest, *moved))
            lost = world.lost or (kind == "micro" and part)
            if not lost and any(
                log.visible[world.history] != len(rows)
                for log, rows in zip(world.logs[: world.partitions], self._rows, strict=False)
            ):
                raise Violation("it does not come to the end")
            if any(log.open for log in world.logs) and not lost and kind == "driver" and self.scenario.strict:
                raise Violation("it leaves a transaction open")
        except Violation as violation:
            violation.trace = tuple(trace)
            raise


def _with(world: World, lane: int, **changes: Any) -> World:
    log = world.logs[lane]._replace(**changes)
    return world._replace(logs=(*world.logs[:lane], log, *world.logs[lane + 1 :]))


def _fenced(world: World, lane: int) -> World:
    """A new producer epoch, above all others."""
    top = world.logs[lane].top + 1
    return _with(world, lane, top=top, floor=top, open=(), late=frozenset())


def _canonical(world: World, actors: tuple[Actor, ...]) -> State:
    """Count producer epochs from the newest fence, so that states do not differ by how many there were."""
    floors = [log.floor for log in world.logs]
    if not any(floors):
        return world, actors
    logs = tuple(
        log._replace(
            top=log.top - log.floor, floor=0, open=tuple(one._replace(epoch=one.epoch - log.floor) for one in log.open)
        )
        for log in world.logs
    )
    return world._replace(logs=logs), tuple(one._replace(epoch=max(-1, one.epoch - floors[one.lane])) for one in actors)


def _short(mark: Mark | None) -> str:
    return "no mark" if mark is None else f"{mark.query}/g{mark.generation}@{mark.offset}.{mark.part}"


def _order(actor: Actor) -> tuple[Any, ...]:
    return actor.run, actor.kind, actor.lane, actor.start, actor.cursor


_UNSEEN = (lp.SendOpening, lp.ReadMark, lane_model.SendRow, lp.SendMark, lp.Abort)
_FIRST = (lp.Init, Unfenced, ReadEnd)
_SUPERSEDED = Superseded("a newer run exists")
_MARKS_LOST = MarksLost("marks are lost")
