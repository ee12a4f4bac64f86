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
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TextIO

from penstock.dev.demo.plan import Event, Progress, moments
from penstock.dev.demo.result import DemoResult, Outputs, judge
from penstock.errors import DevelopmentError, PenstockError
from penstock.processes import end_session

SECONDS_PER_RUN = 2.5  # of work for each run of the job: enough epochs to be killed in
#: Rows a second that two cores handle besides everything else; a longer demo simply takes longer.
MOST_ROWS_PER_SECOND = 50_000.0
SILENCE_SECONDS = 180.0  # without an event: the job hangs. Starting Spark takes a minute on a busy machine
SHOW_SECONDS = 2.0  # between two lines of progress
POLL_SECONDS = 0.002  # between two reads of the events: short against the milliseconds that a phase of an epoch lasts

COMMAND = (sys.executable, "-m", "penstock.dev.demo.job")  # followed by folder, rows and rate


@dataclass(frozen=True)
class DemoOptions:
    """The options of `penstock demo`. The same seed kills at the same places of the same plan."""

    rows: int = 200_000
    kills: int = 5
    json: bool = False
    seed: int | None = None
    keep: bool = False

    @property
    def rate(self) -> float:
        return max(1.0, min(self.rows / (SECONDS_PER_RUN * (self.kills + 1)), MOST_ROWS_PER_SECOND))


def run_demo(options: DemoOptions) -> int:
    """Play the demo and show it; 0 if every row came out exactly once and every total is right, otherwise 1. The
    temporary folder is removed afterwards, except with `keep` or if something was wrong."""
    seed = options.seed if options.seed is not None else secrets.randbelow(1_000_000)
    folder = Path(tempfile.mkdtemp(prefix="penstock-demo-"))
    view = View(as_json=options.json)
    view.note(f"Penstock demo: {options.rows:,} rows, {options.kills} kills, seed {seed}")
    keep = True
    sigterm = signal.signal(signal.SIGTERM, signal.default_int_handler)  # `timeout` and service managers send it
    try:
        result = _play(options, seed, folder, view)
        keep = options.keep or not result.ok
        view.verdict(result)
        return 0 if result.ok else 1
    except KeyboardInterrupt:
        keep = options.keep
        return 130
    finally:
        signal.signal(signal.SIGTERM, sigterm)
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)


class View:
    """A line for each `note`, and one of progress every few seconds. `as_json` leaves standard output to the result
    alone; the end of a failed job's log goes to standard error then."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._began = self._drawn = time.monotonic()

    def note(self, text: str) -> None:
        seconds = int(time.monotonic() - self._began)
        if not self._as_json:
            self._print(f"{seconds // 60:02d}:{seconds % 60:02d}  {text}")

    def tick(self, progress: Progress) -> None:
        """Show the progress now and then; call it as often as you like."""
        if time.monotonic() - self._drawn >= SHOW_SECONDS:
            self._drawn = time.monotonic()
            rows, kills = f"{progress.committed['payments']:,} of {progress.rows:,} rows", len(progress.kills)
            self.note(f"{rows}, {len(progress.epochs):,} epochs, {kills} of {len(progress.plan)} kills")

    def verdict(self, result: DemoResult) -> None:
        for line in result.log_tail:
            self._print(line, sys.stderr if self._as_json else sys.stdout)
        self._print(json.dumps(result.to_dict()) if self._as_json else "\n".join(result.lines()))

    @staticmethod
    def _print(text: str, file: TextIO | None = None) -> None:
        print(text, file=file, flush=True)


def _play(options: DemoOptions, seed: int, folder: Path, view: View) -> DemoResult:
    began = time.monotonic()
    progress = Progress(options.rows, moments(options.kills, options.rows, random.Random(seed)))
    result = DemoResult(options.rows, seed)
    outputs, run = Outputs(folder), _Run(options, folder, progress, view)
    outputs.start()
    try:
        run.run_until_done()
        outputs.end()
        view.note("the job has ended; checking every row")
        payments, totals, atomicity = judge(options.rows, outputs, progress.spans)
        result = replace(result, payments=payments, totals=totals, atomicity=atomicity)
    except Exception as problem:  # whatever it was, the demo has an answer: not proven
        error = str(problem) if isinstance(problem, PenstockError) else f"{type(problem).__name__}: {problem}"
        result = replace(result, error=error, log_tail=run.job.tail() if run.job is not None else [])
    finally:
        outputs.cancel()
    return replace(
        result,
        killed_after=progress.kills,
        recoveries=progress.recoveries,
        epochs=len(progress.epochs),
        seconds=time.monotonic() - began,
        folder=str(folder) if options.keep or not result.ok else "",
    )


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

    def tail(self, lines: int = 25) -> list[str]:
        return self.log.read_text(errors="replace").splitlines()[-lines:]


class _Run:
    def __init__(self, options: DemoOptions, folder: Path, progress: Progress, view: View) -> None:
        self.folder, self.progress, self.view = folder, progress, view
        self.job: JobProcess | None = None
        self._arguments = (str(folder), str(options.rows), str(options.rate))

    def run_until_done(self) -> None:
        """Returns once the job has processed every row; `DevelopmentError` if it fails or hangs."""
        try:
            killed = True
            while killed:
                self.job = JobProcess(self.folder, self.progress.runs + 1, self._arguments)
                self.progress.note_start(self.job.began)
                self.view.note("job started" if self.progress.runs == 1 else "job started again")
                killed = self._watch(self.job)
        finally:
            if self.job is not None:
                self.job.kill()

    def _watch(self, job: JobProcess) -> bool:
        """Follow one run; True if it was killed, False if it ended by itself."""
        heard = time.monotonic()
        while True:
            status = job.status  # asked before the events, so that none of the last ones is missed
            for event in job.events():
                heard = time.monotonic()
                self._take(event)
                wait = self.progress.kill_after(event)
                if wait is not None and status is None and self._kill(job, wait):
                    return True
            self.view.tick(self.progress)
            if status is not None:
                if status != 0:
                    raise _failure(f"The demo's job ended with exit status {status}.")
                return False
            if time.monotonic() - heard > SILENCE_SECONDS:
                raise _failure(f"The demo's job has written no event for {SILENCE_SECONDS:.0f} seconds.")
            time.sleep(POLL_SECONDS)

    def _kill(self, job: JobProcess, wait: float) -> bool:
        time.sleep(wait)
        if not job.kill():
            return False
        for event in job.events():  # the last ones before it died
            self._take(event)
        self.view.note(f"kill {len(self.progress.kills) + 1}: SIGKILL after {self.progress.note_kill()}")
        return True

    def _take(self, event: Event) -> None:
        for line in self.progress.take(event):
            self.view.note(line)


def _failure(happened: str) -> DevelopmentError:
    return DevelopmentError(
        f"{happened} The end of its log is above.",
        safe="everything it wrote is kept.",
        to_do="read the logs in the demo's folder.",
    )
