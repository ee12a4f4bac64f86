"""The demo: a real job, killed again and again, whose outputs are then checked row by row.

    generator ──▶ payments (every row)         ──▶ files
              └─▶ totals   (a sum per account) ──▶ files

The job runs as its own process (`job`) and is killed with SIGKILL, JVM and workers with it, at moments that fall
into every phase of an epoch.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from penstock.errors import DevelopmentError, PenstockError
from penstock.processes import end_session
from tests.support.demo.result import DemoResult, judge

SECONDS_PER_RUN = 2.5  # of work for each run of the job: enough epochs to be killed in
#: Rows a second that two cores handle besides everything else; a longer demo simply takes longer.
MOST_ROWS_PER_SECOND = 50_000.0
SILENCE_SECONDS = 180.0  # without an event: the job hangs. Starting Spark takes a minute on a busy machine
SHOW_SECONDS = 2.0  # between two lines of progress
POLL_SECONDS = 0.002  # between two reads of the events: short against the milliseconds that a phase of an epoch lasts
LOG_LINES = 25  # how many of the log's last lines an error shows

COMMAND = (sys.executable, str(Path(__file__).with_name("job.py")))  # followed by folder, rows and rate

Event = Mapping[str, Any]


@dataclass(frozen=True)
class DemoOptions:
    """What `make demo` takes. The same seed kills at the same places of the same plan."""

    rows: int = 200_000
    kills: int = 5
    json: bool = False
    seed: int | None = None
    keep: bool = False

    @property
    def rate(self) -> float:
        return max(1.0, min(self.rows / (SECONDS_PER_RUN * (self.kills + 1)), MOST_ROWS_PER_SECOND))


#: The steps of an epoch after which a kill may come. "any" is any line, and then some part of a second.
PHASES = ("opened", "precommitted", "decided", "committed", "any")


@dataclass(frozen=True, slots=True)
class Moment:
    """Once `rows` are committed, the next event `phase`, and then `delay` seconds."""

    rows: int
    phase: str
    delay: float


def moments(kills: int, rows: int, chance: random.Random) -> list[Moment]:
    """One moment for each kill, spread evenly over the run with some play, the phases mixed and all taken in turn."""
    phases: list[str] = []
    while len(phases) < kills:
        phases += chance.sample(PHASES, len(PHASES))
    plan = []
    for number, phase in enumerate(phases[:kills]):
        share = (number + chance.uniform(0.3, 0.9)) / (kills + 0.5)
        # Right after the line, or while its work goes on: both are moments at which machines die.
        delay = chance.uniform(0, 0.3) if phase == "any" else chance.choice((0.0, chance.uniform(0, 0.02)))
        plan.append(Moment(int(rows * share), phase, delay))
    return plan


@dataclass(slots=True)
class Progress:
    """What is known of the run. `take` every event, `note_start` and `note_kill` at their time."""

    rows: int
    plan: list[Moment]
    committed: Counter[str] = field(default_factory=Counter)  # rows, by query
    epochs: set[tuple[str, int]] = field(default_factory=set)
    last: dict[str, Event] = field(default_factory=dict)  # the newest event of each query
    kills: list[str] = field(default_factory=list)  # what the job was doing
    recoveries: list[float] = field(default_factory=list)  # seconds from a restart to the first commit of new rows
    runs: int = 0
    _began: float = 0.0
    _actions: list[str] = field(default_factory=list)
    _has_committed: bool = False  # this run has committed an epoch

    def note_start(self, now: float) -> None:
        self.runs += 1
        self._began, self._actions, self._has_committed = now, [], False
        self.last.clear()

    def note_kill(self) -> str:
        """Note a kill; returns what the job was last seen doing."""
        newest = max(self.last.values(), key=lambda event: float(event["time"]), default=None)
        doing = "starting"
        if newest is not None:
            doing = f"{newest['query']} epoch {newest.get('epoch', '?')} {newest['event']}"
        self.kills.append(doing)
        return doing

    def take(self, event: Event) -> Iterator[str]:
        """Learn from one event; yields what a person may want to read about it."""
        name, query = str(event["event"]), str(event.get("query") or "")
        if query:
            self.last[query] = event
        if name == "recovered":
            self._actions.append(str(event.get("action", "none")))
        elif name == "committed":
            epoch = (query, int(event["epoch"]))
            if epoch not in self.epochs:  # a later run that finishes a commit writes the event again
                self.epochs.add(epoch)
                self.committed[query] += int(event.get("rows", 0))
            if not event.get("recovery"):
                yield from self._note_recovery(float(event["time"]))
        elif name == "stopped" and not event.get("error"):
            yield from self._note_recovery(float(event["time"]))  # there was nothing left to commit
        elif name == "failed":
            yield f"{query or 'job'} failed: {event.get('error', 'no reason given')}"

    def _note_recovery(self, time: float) -> Iterator[str]:
        if not self._has_committed and self.kills:
            self.recoveries.append(time - self._began)
            actions = ", ".join(self._actions) or "nothing"
            yield f"recovered in {self.recoveries[-1]:.1f} s, to do was: {actions}"
        self._has_committed = True

    def line(self) -> str:
        done, kills = self.committed["payments"], len(self.kills)
        return f"{done:,} of {self.rows:,} rows, {len(self.epochs):,} epochs, {kills} of {len(self.plan)} kills"

    def kill_after(self, event: Event) -> float | None:
        """Seconds to wait before a kill, if this event is the moment for the next one. Only while the job has
        unfinished work, and has decided and committed something since it was started: a job that is killed faster than
        it can start proves nothing."""
        if len(self.kills) >= len(self.plan) or not self._has_committed:
            return None
        moment, done = self.plan[len(self.kills)], self.committed["payments"]
        ripe = moment.rows <= done < self.rows
        return moment.delay if ripe and moment.phase in ("any", event["event"]) else None


def run_demo(options: DemoOptions) -> int:
    """Play the demo and show it; 0 if every row came out exactly once and every total is right, otherwise 1. The
    temporary folder is removed afterwards, except with `keep` or if something was wrong."""
    demo = Demo(options, Path(tempfile.mkdtemp(prefix="penstock-demo-")))
    keep = True
    sigterm = signal.signal(signal.SIGTERM, signal.default_int_handler)  # `timeout` and service managers send it
    try:
        result = demo.play()
        keep = options.keep or not result.ok
        result = replace(result, folder=str(demo.folder) if keep else None)
        _print(json.dumps(result.to_dict()) if options.json else "\n".join(result.lines()))
        return 0 if result.ok else 1
    except KeyboardInterrupt:
        keep = options.keep
        return 130
    finally:
        signal.signal(signal.SIGTERM, sigterm)
        if not keep:
            shutil.rmtree(demo.folder, ignore_errors=True)


def _print(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


class JobProcess:
    """One run of the job, killed as a machine kills it: driver, JVM and workers at once, found by their session. Its
    events and its log go to files of its own: a run that dies in the middle of a line spoils no other run's."""

    def __init__(self, folder: Path, number: int, arguments: Sequence[str]) -> None:
        self.log = folder / f"job-{number}.log"
        self._events = folder / f"events-{number}.jsonl"
        self._position = 0
        self.began = time.time()
        # The job works in the demo's folder, so that nothing Spark leaves behind lands in the user's; a path relative
        # to the user's folder has to stay what it is.
        path = os.environ.get("PYTHONPATH", "")
        absolute = os.pathsep.join(os.path.abspath(entry) for entry in path.split(os.pathsep) if entry)
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [*COMMAND, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=folder,
                env={**os.environ, "PYTHONPATH": absolute, "PENSTOCK_EVENTS": str(self._events)},
                start_new_session=True,
            )

    @property
    def status(self) -> int | None:
        """The exit status, or None while it runs."""
        return self._process.poll()

    def events(self) -> list[Event]:
        """What the job wrote since the last call; a line that is not finished waits for the next."""
        try:
            with self._events.open("rb") as file:
                file.seek(self._position)
                text = file.read()
        except FileNotFoundError:
            return []
        whole = text[: text.rfind(b"\n") + 1]
        self._position += len(whole)
        return [json.loads(line) for line in whole.splitlines() if line.strip()]

    def kill(self) -> bool:
        """SIGKILL to every process of the job, and return once all are gone. False if it had ended before."""
        with contextlib.suppress(ProcessLookupError):
            if self.status is None:
                os.killpg(self._process.pid, signal.SIGKILL)
        status = self._process.wait()
        end_session(self._process.pid, 0)
        return status == -signal.SIGKILL

    def failure(self, happened: str) -> DevelopmentError:
        lines = self.log.read_text(errors="replace").splitlines()[-LOG_LINES:]
        return DevelopmentError(
            f"The demo's job {happened} The end of its log:" + "".join(f"\n  {line}" for line in lines),
            safe="everything it wrote is kept.",
            to_do="read the logs in the demo's folder.",
        )


class Demo:
    """Starts the job, kills it as planned, and starts it again, until it has processed every row. Prints a line for
    each `note`, and one of progress every few seconds; with `--json` none."""

    def __init__(self, options: DemoOptions, folder: Path) -> None:
        self.folder, self._options = folder, options
        self._seed = options.seed if options.seed is not None else secrets.randbelow(1_000_000)
        plan = moments(options.kills, options.rows, random.Random(self._seed))
        self._progress = Progress(options.rows, plan)
        self._began = self._shown = time.monotonic()

    def play(self) -> DemoResult:
        self.note(f"Penstock demo: {self._options.rows:,} rows, {self._options.kills} kills, seed {self._seed}")
        progress, result = self._progress, DemoResult(self._options.rows, self._seed)
        try:
            self.run_until_done()
            self.note("the job has ended; checking every row")
            result = replace(result, verdicts=judge(self._options.rows, self.folder))
        except Exception as problem:  # whatever it was, the demo has an answer: not proven
            error = str(problem) if isinstance(problem, PenstockError) else f"{type(problem).__name__}: {problem}"
            result = replace(result, error=error)
        return replace(
            result,
            killed_after=progress.kills,
            recovery_seconds=[round(seconds, 3) for seconds in progress.recoveries],
            epochs=len(progress.epochs),
            seconds=round(time.monotonic() - self._began, 1),
        )

    def run_until_done(self) -> None:
        """`DevelopmentError` if the job fails or hangs."""
        arguments = (str(self.folder), str(self._options.rows), str(self._options.rate))
        killed = True
        while killed:
            job = JobProcess(self.folder, self._progress.runs + 1, arguments)
            try:
                self._progress.note_start(job.began)
                self.note("job started" if self._progress.runs == 1 else "job started again")
                killed = self._watch(job)
            finally:
                job.kill()

    def _watch(self, job: JobProcess) -> bool:
        """Follow one run; True if it was killed, False if it ended by itself."""
        heard = time.monotonic()
        while True:
            status = job.status  # asked before the events, so that none of the last ones is missed
            for event in job.events():
                heard = time.monotonic()
                self._take(event)
                wait = self._progress.kill_after(event)
                if wait is not None and status is None and self._kill(job, wait):
                    return True
            if time.monotonic() - self._shown >= SHOW_SECONDS:
                self._shown = time.monotonic()
                self.note(self._progress.line())
            if status is not None:
                if status != 0:
                    raise job.failure(f"ended with exit status {status}.")
                return False
            if time.monotonic() - heard > SILENCE_SECONDS:
                raise job.failure(f"has written no event for {SILENCE_SECONDS:.0f} seconds.")
            time.sleep(POLL_SECONDS)

    def _kill(self, job: JobProcess, wait: float) -> bool:
        time.sleep(wait)
        if not job.kill():
            return False
        for event in job.events():  # the last ones before it died
            self._take(event)
        self.note(f"kill {len(self._progress.kills) + 1}: SIGKILL after {self._progress.note_kill()}")
        return True

    def _take(self, event: Event) -> None:
        for line in self._progress.take(event):
            self.note(line)

    def note(self, text: str) -> None:
        minutes, seconds = divmod(int(time.monotonic() - self._began), 60)
        if not self._options.json:
            _print(f"{minutes:02d}:{seconds:02d}  {text}")
