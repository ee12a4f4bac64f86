"""Several processes in one, in simulated time: one thread moves at a time, and every call is a place to die.

A `Scheduler` runs bodies of code, each in a thread of its own, and hands one of them the baton. A body passes a place
with `call`: there it may be killed, paused or overtaken, or the answer, the request or both are lost. Which of these
happens where is a list of `Fault`s, so a history is its list: the same list gives the same history, and a shorter list
a simpler one (`shrunk`).
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

_T = TypeVar("_T")

LOSSES = {
    "lose": "the request is lost",
    "answer": "the answer is lost",
    "late": "no answer comes, and the request arrives later",
    "twice": "the request arrives a second time, later",
    "outage": "the answer is lost, and the system is away for a while",
    "delay": "the request arrives only after a while, and is answered",
    "slow": "the answer comes after a while",
    "partition": "from here on no request of this process arrives, for a while",
}
DEATHS = {
    "kill": "the process is killed just before",
    "killed": "the process is killed just after, before the answer",
    "orphan": "the process is killed, and the request arrives later",
    "lapse": "the process is killed just after, and is down for so long that what is open expires",
    "oblivion": "the process is killed just after, and is down for so long that the other system forgets it",
    "taken": "the process is killed just after, and a reader takes the finished files away",
}
_LATENCY = 0.001
_SIZE = 0.1  # seconds for each unit of a delay, and of a partition
_GIVES_UP = 5.0  # seconds after which a client waits no longer for an answer
_CUT_OFF = 0.3  # seconds until a request of a process that is cut off fails


class Killed(BaseException):
    """The process is gone: nothing may catch this and go on."""


class Stuck(BaseException):
    """The history does not come to an end."""


@dataclass(frozen=True, slots=True, order=True)
class Fault:
    """What happens at the `nth` call of a process, or at its `nth` call of the class `at`. `size` says how long it
    lasts, in calls of others or, for `stall`, in seconds."""

    process: int
    nth: int
    kind: str
    at: str = ""
    size: int = 1

    def __str__(self) -> str:
        where = f"{self.at} {self.nth}" if self.at else f"call {self.nth}"
        return f"{self.kind}({self.size}) at {where} of process {self.process}"


@dataclass(eq=False)
class Process:
    """What is killed and paused as one."""

    number: int
    name: str
    calls: int = 0
    seen: dict[str, int] = field(default_factory=dict)
    dead: bool = False
    until_step: int = 0
    until_time: float = 0.0
    cut_off_until: float = 0.0
    memory: dict[str, Any] = field(default_factory=dict)  # for those who play a process: what dies with it


class _Worker(threading.Thread):
    """A thread that is used again for the next body: to start one takes longer than many a body runs."""

    def __init__(self) -> None:
        super().__init__(name="penstock-simulated", daemon=True)
        self.go, self.actor = threading.Lock(), None  # type: tuple[threading.Lock, Actor | None]
        self.go.acquire()
        self.start()

    def run(self) -> None:
        while True:
            self.go.acquire()
            assert self.actor is not None
            self.actor.live()


_idle: list[_Worker] = []


class Actor:
    """One body of code of one process."""

    def __init__(self, schedule: Scheduler, process: Process, name: str, body: Callable[[], None]) -> None:
        self.schedule, self.process, self.name, self._body = schedule, process, name, body
        self.done, self.error = False, None  # type: tuple[bool, BaseException | None]
        self.ready: Callable[[], bool] | None = None
        self.wakes: float | None = None
        self._worker: _Worker | None = None

    def move(self) -> None:
        """Called by the loop: the actor moves, until it waits or is done."""
        if self._worker is None:
            self._worker = _idle.pop() if _idle else _Worker()
            self._worker.actor = self
        self._worker.go.release()
        self.schedule.baton.acquire()

    def stop(self) -> None:
        """Called by the actor itself: gives the baton back, returns when it has it again."""
        assert self._worker is not None
        self.schedule.baton.release()
        self._worker.go.acquire()

    def live(self) -> None:
        self.run()
        assert self._worker is not None
        _idle.append(self._worker)
        self.schedule.baton.release()

    def run(self) -> None:
        try:
            if not self.process.dead:
                self._body()
        except Killed:
            pass
        except BaseException as error:
            self.error = error
        self.done = True

    def runnable(self) -> bool:
        process, schedule = self.process, self.schedule
        if process.dead:
            return True
        if process.until_step > schedule.steps or process.until_time > schedule.now:
            return False
        return self.ready is None or self.ready() or (self.wakes is not None and self.wakes <= schedule.now)


class Scheduler:
    """`quantum`: after so many calls another actor moves, if one can; 0: only where one waits. `most` is how many
    calls a history may take. `interfere` carries out faults of kinds that are not known here; `lost` is told which
    process was killed or paused."""

    actor = Actor

    def __init__(
        self,
        faults: Sequence[Fault] = (),
        *,
        quantum: int = 0,
        most: int = 20_000,
        interfere: Callable[[Fault], None] = lambda fault: None,
        lost: Callable[[Process], None] = lambda process: None,
    ) -> None:
        self.now, self.steps, self.applied = 1_000.0, 0, list[Fault]()
        self.story: list[str] = []
        self.baton = threading.Lock()
        self.baton.acquire()
        self.actors: list[Actor] = []
        self.current: Actor | None = None
        self.interfere, self.lost = interfere, lost
        self.more: Callable[[], bool] = lambda: False  # asked when all have ended: whether it has started another
        self._faults: dict[tuple[int, str, int], list[Fault]] = {}
        for fault in faults:
            self._faults.setdefault((fault.process, fault.at, fault.nth), []).append(fault)
        self._quantum, self._most, self._moved = quantum, most, 0
        self._late: list[tuple[int, str, Callable[[], object]]] = []
        self._numbers = itertools.count(1)
        self._ending, self._turns = False, 0

    # Processes and their actors

    def start(self, name: str, body: Callable[[], None]) -> Process:
        process = Process(next(self._numbers), name)
        self.spawn(body, name, process)
        return process

    def spawn(self, body: Callable[[], None], name: str, process: Process | None = None) -> Actor:
        actor = self.actor(self, process or self.process, name, body)
        self.actors.append(actor)
        return actor

    @property
    def process(self) -> Process:
        assert self.current is not None
        return self.current.process

    def kill(self, process: Process) -> None:
        process.dead = True
        self.lost(process)

    def forget_faults(self) -> None:
        """From now on nothing goes wrong, and what was on its way has arrived."""
        self._faults.clear()
        self._deliver(all_=True)

    def tell(self, text: str) -> None:
        who = f"{self.current.process.name}: " if self.current is not None else ""
        self.story.append(f"{self.now - 1_000:8.3f}  {who}{text}")

    # What an actor does

    def call(
        self,
        label: str,
        work: Callable[[], _T],
        lose: Callable[[], Exception] | None = None,
        *,
        steady: bool = False,
        once: bool = False,
        again: Callable[[], None] = lambda: None,
    ) -> _T:
        """Carry out `work`, unless a fault happens here. The first word of the label is its class. `lose` makes the
        error of a client that gets no answer; without it there is no way between the two on which one could be
        lost. `steady`: the process may die here, and does not stand still. `once`: the request goes over a connection
        that repeats nothing, and its client sends nothing again by itself. `again`: what a client that does so notes of
        it, where the request arrives a second time."""
        assert self.current is not None
        process = self.current.process
        if process.dead:
            raise Killed
        self.steps += 1
        self.now += _LATENCY
        process.calls += 1
        kind = label.partition(" ")[0]
        process.seen[kind] = process.seen.get(kind, 0) + 1
        if self._late:
            self._deliver()
        if self._quantum and not steady:
            self._moved += 1
            if self._moved >= self._quantum and self._another():
                self._pause()
        if self.steps > self._most and not self._ending:
            raise Stuck(f"{label}: still not at its end after {self.steps} calls")
        if lose is not None and process.cut_off_until > self.now:
            self.sleep(_CUT_OFF)
            raise lose()
        faults, number = self._faults, process.number
        if faults and ((number, "", process.calls) in faults or (number, kind, process.seen[kind]) in faults):
            due = faults.pop((number, "", process.calls), []) + faults.pop((number, kind, process.seen[kind]), [])
            due = [fault for fault in due if not steady or fault.kind in ("kill", "killed")]
            due = [fault for fault in due if not once or fault.kind != "twice"]
            if any(fault.kind == "twice" for fault in due):
                again()
            return self._disturbed(due, label, work, lose)
        if process.dead:
            raise Killed
        return work()

    def _disturbed(
        self, due: Sequence[Fault], label: str, work: Callable[[], _T], lose: Callable[[], Exception] | None
    ) -> _T:
        process, waits = self.process, 0.0
        for fault in due:
            waits += self._happen(fault, label, work, lose)
        if process.dead:
            raise Killed
        if not waits:
            return work()
        answer = work()
        self.sleep(min(waits, _GIVES_UP))
        if waits > _GIVES_UP:
            assert lose is not None
            raise lose()
        return answer

    def _happen(
        self, fault: Fault, label: str, work: Callable[[], object], lose: Callable[[], Exception] | None
    ) -> float:
        """How many seconds the answer takes; raises where there is none."""
        process, kind = self.process, fault.kind
        if kind in LOSSES and lose is None:
            return 0.0
        self.applied.append(fault)
        if kind in DEATHS:
            self.tell(f"✗ {label} ({DEATHS[kind] if lose is not None or kind != 'orphan' else DEATHS['kill']})")
            if kind == "orphan" and lose is not None:
                self._late.append((self.steps + fault.size, label, work))
            process.dead = True
            try:
                if kind not in ("kill", "orphan"):
                    work()
                if kind in ("lapse", "oblivion", "taken"):
                    self.interfere(fault)
            finally:
                self.lost(process)
                raise Killed
        if kind in LOSSES:
            assert lose is not None
            self.tell(f"✗ {label} ({LOSSES[kind]})")
            if kind in ("late", "twice"):
                self._late.append((self.steps + fault.size, label, work))
            if kind == "slow":
                return fault.size * _SIZE
            if kind == "delay":
                self.sleep(fault.size * _SIZE)
                return 0.0
            if kind == "partition":
                process.cut_off_until = self.now + fault.size * _SIZE
                self.lost(process)
            if kind in ("answer", "outage"):
                work()
            if kind == "outage":
                self.interfere(fault)
            if kind != "twice":
                raise lose()
        elif kind in ("pause", "stall"):
            self.tell(f"✗ {label} (the process stands still, {fault.size} {'calls' if kind == 'pause' else 's'})")
            if kind == "pause":
                process.until_step = self.steps + fault.size
            else:
                process.until_time = self.now + fault.size
            self.lost(process)
            self._pause()
            if process.dead:
                raise Killed  # meanwhile, by itself: it is lost once, and meets no further fault
            self.tell(f"goes on with {label}")
        elif kind == "switch":
            self._pause()
            if process.dead:
                raise Killed
        else:
            self.interfere(fault)
        return 0.0

    def wait(self, ready: Callable[[], bool], seconds: float | None = None) -> bool:
        """Let others move until `ready`, or so many seconds have passed; whether it is ready."""
        actor = self.current
        assert actor is not None
        if actor.process.dead:
            raise Killed
        actor.ready, actor.wakes = ready, None if seconds is None else self.now + seconds
        self._pause()
        actor.ready = actor.wakes = None
        if actor.process.dead:
            raise Killed
        return ready()

    def sleep(self, seconds: float) -> None:
        self.wait(lambda: False, seconds)

    def _another(self) -> bool:
        """Whether an actor besides the one that moves could move now."""
        self._moved = 0
        return any(actor is not self.current and not actor.done and actor.runnable() for actor in self.actors)

    def _pause(self) -> None:
        actor = self.current
        assert actor is not None
        actor.stop()

    def _deliver(self, *, all_: bool = False) -> None:
        for late in [late for late in self._late if all_ or late[0] <= self.steps]:
            self._late.remove(late)
            self.story.append(f"{self.now - 1_000:8.3f}  ✗ {late[1]} arrives only now")
            try:
                late[2]()
            except Exception:
                pass

    # The loop

    def run(self) -> None:
        """Until every actor has ended. Raises `Stuck`, and what an actor raised."""
        try:
            last = -1
            while (chosen := self._choose(last)) is not None:
                last = chosen
                self._turns += 1
                if self._turns > self._most:
                    raise Stuck(f"{self.actors[chosen].process.name} waits, and nothing comes of it")
                self._move(self.actors[chosen])
            self._deliver(all_=True)
        finally:
            self._end()

    def _move(self, actor: Actor) -> None:
        self.current, self._moved = actor, 0
        actor.move()
        self.current = None
        if actor.done and actor.error is not None and not self._ending:
            raise actor.error

    def _choose(self, last: int) -> int | None:
        while True:
            living = [number for number, actor in enumerate(self.actors) if not actor.done]
            if not living:
                if self.more():
                    continue
                return None
            able = [number for number in living if self.actors[number].runnable()]
            if able:
                return next((number for number in able if number > last), able[0])
            times = [actor.wakes for actor in map(self.actors.__getitem__, living) if actor.wakes is not None]
            paused = [self.actors[number].process for number in living]
            times += [process.until_time for process in paused if process.until_time > self.now]
            later = [time for time in times if time > self.now]
            if later:
                self.now = min(later)
            elif any(process.until_step > self.steps for process in paused):
                for process in paused:
                    process.until_step = 0
            else:
                names = ", ".join(f"{self.actors[number].process.name}/{self.actors[number].name}" for number in living)
                raise Stuck(f"{names} wait for each other")

    def _end(self) -> None:
        """All that still live are killed, so that their threads can be used again."""
        self._ending = True
        for actor in self.actors:
            actor.process.dead = True
        for _ in range(100):
            living = [actor for actor in self.actors if not actor.done]
            for actor in living:
                self._move(actor)
            if not living:
                return
        raise AssertionError("an actor does not die")


def shrunk(faults: Sequence[Fault], fails: Callable[[Sequence[Fault]], bool], tries: int = 300) -> list[Fault]:
    """The fewest of these faults, as small as they can be, with which it still fails: first whole parts are left out,
    then each one, then each is made smaller."""
    left = list(faults)
    part = max(1, len(left) // 2)
    while tries > 0:
        for start in range(0, len(left), part):
            tries -= 1
            less = left[:start] + left[start + part :]
            if fails(less):
                left = less
                break
        else:
            if part == 1:
                break
            part = max(1, part // 2)
    for number, fault in enumerate(left):
        for size in (1, 3, 10, 30):
            smaller = Fault(fault.process, fault.nth, fault.kind, fault.at, size)
            if size < fault.size and tries > 0:
                tries -= 1
                if fails([*left[:number], smaller, *left[number + 1 :]]):
                    left[number] = smaller
                    break
    return left
