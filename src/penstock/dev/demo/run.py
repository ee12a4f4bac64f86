"""The demo: a real job, killed again and again, whose outputs are then checked row by row.

    generator ──▶ payments (every row)         ──▶ sink
              └─▶ totals   (a sum per account) ──▶ sink

The job runs as its own process (`job`) and is killed with SIGKILL, JVM and workers with it, at moments that fall
into every phase of an epoch. It is started again each time, and at the end plain Python and numpy compute from the
definition of the payments (`truth`, which uses neither Spark nor the generator) what must be there.
"""

from __future__ import annotations

import contextlib
import random
import secrets
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from penstock.dev.demo.job_process import POLL_SECONDS, JobConfig, JobProcess
from penstock.dev.demo.plan import Progress, moments
from penstock.dev.demo.result import DemoResult, Stage, Watcher, judge
from penstock.dev.demo.view import View, open_view
from penstock.errors import DevelopmentError, PenstockError

#: How long each run of the job should have work for: enough epochs to be killed in, little enough to keep waiting fun.
SECONDS_PER_RUN = 2.5
#: Rows a second that two cores handle besides everything else; a longer demo simply takes longer.
MOST_ROWS_PER_SECOND = 50_000.0
#: A job that says nothing for so long hangs: starting Spark takes seconds, on a busy machine a minute.
SILENCE_SECONDS = 180.0


@dataclass(frozen=True)
class DemoOptions:
    """What `penstock demo` can be asked for. The same seed kills at the same places of the same plan."""

    rows: int = 200_000
    kills: int = 5
    kafka: bool = False
    json: bool = False
    seed: int | None = None
    keep: bool = False

    @property
    def rate(self) -> float:
        return max(1.0, min(self.rows / (SECONDS_PER_RUN * (self.kills + 1)), MOST_ROWS_PER_SECOND))


def run_demo(options: DemoOptions) -> int:
    """Play the demo and show it; 0 if every row came out exactly once and every total is right, otherwise 1.

    The temporary folder is removed afterwards, unless `keep` was asked for or something was wrong.
    """
    seed = options.seed if options.seed is not None else secrets.randbelow(1_000_000)
    mode = "kafka" if options.kafka else "files"
    folder = Path(tempfile.mkdtemp(prefix="penstock-demo-"))
    view = open_view(
        f"Penstock demo: {mode}, {options.rows:,} rows, {options.kills} kills, seed {seed}", as_json=options.json
    )
    keep = True
    try:
        with _ending_like_ctrl_c():
            result = _play(options, seed, folder, view)
        keep = options.keep or not result.ok
        view.verdict(result)
        return result.status
    except KeyboardInterrupt:
        keep = options.keep
        return 130
    finally:
        view.close()
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _ending_like_ctrl_c() -> Iterator[None]:
    """SIGTERM, as `timeout` and service managers send it, ends the job and the broker too. Only in the main thread,
    where handlers can be installed."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _play(options: DemoOptions, seed: int, folder: Path, view: View) -> DemoResult:
    began = time.monotonic()
    progress = Progress(options.rows, moments(options.kills, options.rows, random.Random(seed)))
    found = DemoResult("kafka" if options.kafka else "files", options.rows, seed)
    run: _Run | None = None
    try:
        with contextlib.ExitStack() as stack:
            stage = _open_stage(options, folder, view)
            stack.callback(stage.close)
            watcher = Watcher(stage.look)
            watcher.start()
            stack.callback(watcher.cancel)
            run = _Run(stage, folder, progress, view)
            run.run_until_done()
            watcher.end()
            view.note("the job has ended; checking every row")
            payments, totals, atomicity = judge(options.rows, stage.outputs(progress), progress.spans)
            found = replace(found, payments=payments, totals=totals, atomicity=atomicity)
    except Exception as problem:  # whatever it was, the demo has an answer: not proven
        error = str(problem) if isinstance(problem, PenstockError) else f"{type(problem).__name__}: {problem}"
        tail = run.job.tail() if run is not None and run.job is not None else []
        found = replace(found, error=error, log_tail=tail)
    seconds = time.monotonic() - began
    return replace(
        found,
        kills=len(progress.kills),
        killed_after=progress.kills,
        recovery_seconds=[recovery.seconds for recovery in progress.recoveries],
        recovery_actions=[recovery.actions for recovery in progress.recoveries],
        epochs=len(progress.epochs),
        seconds=seconds,
        rows_per_second=options.rows / seconds,
        folder=str(folder) if options.keep or not found.ok else "",
    )


def _open_stage(options: DemoOptions, folder: Path, view: View) -> Stage:
    if options.kafka:
        from penstock.dev.demo.kafka import KafkaStage

        view.note("starting a Kafka broker and writing the payments into it")
        return KafkaStage(JobConfig(str(folder), "kafka", options.rows, options.rate))
    from penstock.dev.demo.files import FileStage

    return FileStage(JobConfig(str(folder), "files", options.rows, options.rate))


@dataclass(slots=True)
class _Run:
    """Starts the job as often as it takes."""

    stage: Stage
    folder: Path
    progress: Progress
    view: View
    job: JobProcess | None = None
    _config: Path = field(init=False)

    def __post_init__(self) -> None:
        self._config = self.folder / "job.json"
        self.stage.config.write(self._config)

    def run_until_done(self) -> None:
        """Returns once the job has done everything; `DevelopmentError` if it fails or hangs."""
        try:
            killed = True
            while killed:
                self.job = JobProcess(self.folder, self._config, self.progress.runs + 1)
                self.progress.note_start(self.job.began)
                self.view.note("job started" if self.progress.runs == 1 else "job started again")
                killed = self._watch(self.job)
        finally:
            if self.job is not None:
                self.job.kill()

    def _watch(self, job: JobProcess) -> bool:
        """Follow one run; True if it was killed, False if it ended by itself or because all is done."""
        heard = time.monotonic()
        while True:
            status = job.status  # asked before the events, so that none of the last ones is missed
            for event in job.events():
                heard = time.monotonic()
                for line in self.progress.take(event):
                    self.view.note(line)
                wait = self.progress.kill_after(event)
                if wait is not None and status is None and self._kill(job, wait):
                    return True
            self.view.tick(self.progress)
            if status is not None:
                if status != 0:
                    raise self._failure(f"The demo's job ended with exit status {status}.")
                return False
            if self.stage.full():
                job.stop()
            elif time.monotonic() - heard > SILENCE_SECONDS:
                if self.stage.endless and self.progress.commits:
                    job.stop()  # it has come to an end without everything: the verdict will say what is missing
                    continue
                raise self._failure(f"The demo's job has said nothing for {SILENCE_SECONDS:.0f} seconds.")
            time.sleep(POLL_SECONDS)

    def _kill(self, job: JobProcess, wait: float) -> bool:
        time.sleep(wait)
        if not job.kill():
            return False
        for event in job.events():  # what it still said before it died
            for line in self.progress.take(event):
                self.view.note(line)
        self.view.note(f"kill {len(self.progress.kills) + 1}: SIGKILL after {self.progress.note_kill()}")
        return True

    def _failure(self, happened: str) -> DevelopmentError:
        return DevelopmentError(
            f"{happened} The end of its log is above.",
            safe="everything it wrote is kept.",
            to_do="read the logs in the demo's folder.",
        )
