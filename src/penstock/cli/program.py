"""The processes that run a job: a supervisor and its drivers, each from a `Start`, or this very process. Imports little
at first, so that a supervisor is small and a driver soon reaches the program."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.errors import ConfigurationError, PenstockError
from penstock.ops import attach_process
from penstock.ops.process import lifeline
from penstock.secrets import masked
from penstock.storage.local import own_folder, read_trusted

if TYPE_CHECKING:
    from penstock.job.job import Job

SUPERVISOR = "from penstock.cli.program import supervisor_main; supervisor_main()"
_LOOK_SECONDS, _LOADED = 0.5, "penstock_loaded"
_DRIVER = "from penstock.cli.program import driver_main; driver_main()"


@dataclass(frozen=True)
class Start:
    """What `penstock run` was asked for, in a file that only its owner reads: `-D` may give passwords. `options` are
    those of `-D`, `file` the content of `file_name`; the program's own arguments come between them. `restart` and
    `standby` are what the two resolve to, and hold until a driver reports otherwise. `restores`: it begins with a
    savepoint. `log` is a detached run's. `alone`: the job must not run already."""

    id: str
    script: str
    arguments: Sequence[str] = ()
    options: Mapping[str, str] | None = None
    file_name: str = ""
    file: Mapping[str, str] | None = None
    restart: Mapping[str, Any] | None = None
    standby: bool = False
    restores: bool = False
    log: str | None = None
    alone: bool = False

    def write(self) -> Path:
        """A private file in the registry's folder, or else in the system's temporary one. Raises OSError."""
        from penstock.ops.process.registry import home

        try:
            return self._write(own_folder(home() / "starts"))
        except OSError:
            return self._write(None)

    def _write(self, folder: Path | None) -> Path:
        import tempfile  # only a driver's start is in a hurry, and that reads

        handle, name = tempfile.mkstemp(prefix=f"{self.id}.", suffix=".json", dir=folder)  # made with mode 0600
        with open(handle, "w", encoding="utf-8") as file:
            json.dump(asdict(self), file)
        return Path(name)

    @classmethod
    def read(cls, file: Path) -> Start:
        """Raises `PermissionError` for a file that another user can have written: it names a program to run. Fields
        that this version does not know, as after an upgrade while the supervisor runs, are left out."""
        body = json.loads(read_trusted(file))
        return cls(**{field.name: body[field.name] for field in fields(cls) if field.name in body})

    @contextmanager
    def in_effect(self) -> Iterator[None]:
        """In the block, settings come from this start, and the next job that is registered is this run."""
        from penstock.config.levels import Texts, using
        from penstock.ops.process.registry import expect_run

        expect_run(self.id, alone=self.alone)
        try:
            with using(Texts("-D", self.options or {}), Texts(self.file_name, self.file or {})):
                yield
        finally:
            expect_run(None)


def supervisor_main() -> None:
    file = Path(sys.argv[1])
    sys.exit(supervise(Start.read(file), file))


def driver_main() -> None:
    lifeline.connect()
    attach_process()
    start = Start.read(Path(sys.argv[1]))
    with start.in_effect():
        sys.exit(run(Path(start.script), list(start.arguments)))


def supervise(start: Start, file: Path | None = None) -> int:
    """Run the job's drivers until it has ended; the exit status. `file` is the start, where it is written already."""
    from penstock.config.restart_strategy import RestartStrategy
    from penstock.events import Events
    from penstock.logs import show_info
    from penstock.ops.process.registry import SupervisorEntry, kept_small
    from penstock.ops.process.supervisor import Supervisor, python_command

    with start.in_effect():
        if not set_up_log():
            show_info()
        events = Events()
        events.listen(SupervisorEntry(Path(start.script), id=start.id, log_file=start.log))
        file = file or start.write()
        try:
            strategy = RestartStrategy.from_dict(start.restart or {})
            command = python_command(_DRIVER, str(file), start.script)
            small = kept_small(Path(start.log)) if start.log else nullcontext()
            with show_restore(start), _live(start), small:
                return Supervisor(command, strategy, id=start.id, standby=start.standby, events=events).run()
        finally:
            file.unlink(missing_ok=True)


def run_here(start: Start) -> int:
    """Run the job in this process, without a supervisor."""
    with start.in_effect(), show_restore(start), _live(start):
        return run(Path(start.script), list(start.arguments))


def _live(start: Start) -> AbstractContextManager[None]:
    if start.log or not sys.stderr.isatty():
        return nullcontext()
    from penstock.cli.show import following

    return following(start)


@contextmanager
def show_restore(start: Start) -> Iterator[None]:
    """Until the job has started, show how far its restore is, as the registry has it, if it begins with one."""
    if not start.restores:
        yield
        return
    from penstock.cli.output import Output
    from penstock.deadline import polling
    from penstock.ops.process.registry import Registry, State
    from penstock.progress import Step

    display: Any = None
    with ExitStack() as shown:

        def look() -> bool:
            nonlocal display
            entry = Registry().read_entry(start.id)
            if entry is None:
                return display is None
            if (step := Step.of(entry.progress)) is not None:
                display = display or shown.enter_context(Output().progress(f"Restoring {entry.name}"))
                display(step)
                return True
            shown.close()
            return display is None and not entry.state.ended and entry.state is not State.RUNNING

        with polling("penstock-restore", _LOOK_SECONDS, look):
            yield


def prepare_environment() -> None:
    """Let Spark's workers use this very Python, and Spark find a Java; variables that the user has set stay."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    from penstock.supply.java import find_java

    os.environ["JAVA_HOME"] = str(find_java().home)


def set_up_log() -> bool:
    """Log as JSON where `-D` or the file asks for it; whether they do. The job reports errors in them."""
    from penstock import logs
    from penstock.config.levels import from_file, from_options
    from penstock.config.operations import FORMAT, LogFormat

    try:
        wanted = {**from_file().values, **from_options().values}.get(FORMAT, "")
    except PenstockError:
        wanted = ""
    if wanted.strip().lower() != LogFormat.JSON:
        logs.mask_log()
        return False
    logs.log_as_json()
    return True


def execute(script: Path, arguments: list[str]) -> None:
    """Run `script` as `__main__`, then the one Job it defined, unless it has run it itself."""
    names, waiting = _load(script, arguments, "__main__"), dict[str, Any]()
    if (module := sys.modules.get("penstock.job.job")) is not None:  # or it cannot have defined a Job
        jobs = {id(value): (name, value) for name, value in names.items() if isinstance(value, module.Job)}
        waiting = {} if any(job.started for _, job in jobs.values()) else dict(jobs.values())
    if len(waiting) > 1:
        raise ConfigurationError(
            f"{script} defines {len(waiting)} jobs and runs none of them: {', '.join(sorted(waiting))}.",
            safe="Nothing was started.",
            to_do='Call run() on the one you mean, under `if __name__ == "__main__":`.',
        )
    for job in waiting.values():
        job.run()


def _load(script: Path, arguments: list[str], name: str) -> dict[str, Any]:
    import runpy

    sys.argv = [str(script), *arguments]
    sys.path.insert(0, str(script.absolute().parent))  # as Python does for a script, so its neighbours import
    return runpy.run_path(str(script), run_name=name)


def load_job(script: Path) -> Job:
    """The one Job that `script` makes at module level when it is loaded and not run."""
    from types import ModuleType

    from pyspark import cloudpickle

    from penstock.job.job import Job

    prepare_environment()
    # Workers cannot import it: what is defined in it, such as a source, goes to them whole, as out of `__main__`.
    by_value: Any = cloudpickle.register_pickle_by_value
    by_value(sys.modules.setdefault(_LOADED, ModuleType(_LOADED)))
    jobs = {id(value): value for value in _load(script, [], _LOADED).values() if isinstance(value, Job)}
    if len(jobs) != 1:
        raise ConfigurationError(
            f"{script} has {len(jobs)} jobs at module level when it is loaded and not run; one is needed.",
            to_do='make the Job at module level and call run() under `if __name__ == "__main__":`.',
        )
    return next(iter(jobs.values()))


def run(script: Path, arguments: list[str]) -> int:
    """Prepare, execute; the exit status: see `status_of`. Errors are shown; the program's own SystemExit passes."""
    from penstock.engine.restarts import classify
    from penstock.ops.process.registry import expected_run

    try:
        set_up_log()
        prepare_environment()
        execute(script, arguments)
        job = sys.modules.get("penstock.job.job")
        ran = "penstock.job.dropin" in sys.modules or (job is not None and job.Job.any_started)
        if expected_run() is not None and not ran:
            raise ConfigurationError(
                f"{script} ran to its end and started no job.",
                safe="nothing was read or written by Penstock.",
                to_do="make a Job at module level, or call run() on it. A program without one is run by python.",
            )
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except Exception as error:
        lifeline.report_error(error, classify(error))
        _show(error)
        return lifeline.status_of(error)
    return lifeline.DONE


def _show(error: Exception) -> None:
    import traceback

    from penstock import logs

    if logs.is_json():
        logging.getLogger("penstock").error("the program failed: %s", error, exc_info=error)
    elif isinstance(error, PenstockError):
        from penstock.cli.output import Output

        Output().error(error)
    elif sys.excepthook is not sys.__excepthook__:
        sys.excepthook(type(error), error, error.__traceback__)  # the program's own
    else:  # another library's traceback must stay whole
        sys.stderr.write(logs.plain_text(masked("".join(traceback.format_exception(error)))))
