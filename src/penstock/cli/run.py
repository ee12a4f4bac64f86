"""`penstock run JOB.py`: what `python JOB.py` does, with the environment set up, errors shown as sentences, and a
supervisor that starts the job again when its process dies; with `-d` one that outlives the terminal."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli import program
from penstock.cli.output import Output
from penstock.cli.progress_display import show_restore, show_start
from penstock.cli.ship import ship_environment
from penstock.config.levels import FILE_VARIABLE, OPTIONS_VARIABLE, from_options
from penstock.config.operations import FORMAT, STANDBY, LogFormat
from penstock.config.recovery import ALLOW, CLAIM, FORK_NAME, FORK_SUFFIX, PATH, RESTORE_ID
from penstock.errors import ControlError, PenstockError, from_json
from penstock.ops.process.registry import ID_VARIABLE, Entry, Registry, State

if TYPE_CHECKING:
    from penstock.config.settings import Settings

_POLL_SECONDS = 0.05
_BEGUN = (State.RUNNING, State.SUSPENDED, State.FINISHED, State.CANCELED)  # SUSPENDED: another machine has the lease

#: Everything after the script's name is the script's own, options included.
PASS_ON = {"allow_interspersed_args": False, "ignore_unknown_options": True}

_PATHS = (PATH, "execution.savepoint.path")

FromSavepoint = Annotated[
    str | None,
    typer.Option(
        "-s", "--from-savepoint", "--fromSavepoint", metavar="PATH", help="Start from this savepoint or checkpoint."
    ),
]
AllowNonRestored = Annotated[
    bool,
    typer.Option("-n", "--allow-non-restored-state", "--allowNonRestoredState", help="State may be left behind in it."),
]
ClaimMode = Annotated[
    str | None,
    typer.Option(
        "--claim-mode",
        "--claimMode",
        "-rm",
        "--restoreMode",
        metavar="claim|no_claim",
        help="Whether the savepoint becomes the job's own, which then deletes it. Default no_claim.",
    ),
]

Supervise = Annotated[
    bool, typer.Option("--supervise/--no-supervise", help="Start the job again when its process dies.")
]
KeepStandby = Annotated[
    bool | None,
    typer.Option("--standby/--no-standby", help="Keep a second driver ready to take over when the first dies."),
]

Master = Annotated[
    str | None,
    typer.Option(metavar="URL", help="Where tasks run: local[4], spark://HOST:7077, yarn. Ships what they need."),
]
Archive = Annotated[
    Path | None, typer.Option(metavar="FILE", help="With --master: what penstock pack has made, to be shipped.")
]
Ship = Annotated[
    bool | None,
    typer.Option("--pack/--no-pack", help="Whether to ship; left out: to masters that are not on this machine."),
]


def run(
    script: Annotated[
        Path, typer.Argument(metavar="JOB.py", exists=True, dir_okay=False, readable=True, help="The job to run.")
    ],
    arguments: Annotated[list[str] | None, typer.Argument(metavar="[ARGS]...", help="Given to the job.")] = None,
    savepoint: FromSavepoint = None,
    allow_non_restored: AllowNonRestored = False,
    claim_mode: ClaimMode = None,
    parallelism: Annotated[
        int | None, typer.Option("-p", "--parallelism", metavar="N", help="Partitions of state and of every shuffle.")
    ] = None,
    fork: Annotated[
        str | None, typer.Option(metavar="NAME", help="With -s: a second job of this name beside the first.")
    ] = None,
    suffix: Annotated[
        str | None, typer.Option(metavar="SUFFIX", help="With --fork: added to every topic, table and folder written.")
    ] = None,
    detached: Annotated[
        bool, typer.Option("-d", "--detached", help="Leave the job running in the background, and return.")
    ] = False,
    supervise: Supervise = True,
    standby: KeepStandby = None,
    master: Master = None,
    archive: Archive = None,
    ship: Ship = None,
    options: Annotated[
        list[str] | None, typer.Option("-D", metavar="KEY=VALUE", help="A setting; it wins over code and file.")
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(metavar="FILE", exists=True, dir_okay=False, readable=True, help="The configuration file."),
    ] = None,
    log_format: Annotated[
        LogFormat | None, typer.Option("--log-format", help="The job's log as text, or a JSON object in each line.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="With -d: JSON instead of a table.")] = False,
) -> None:
    """Run a job written in Python.

    The file runs as the main program. If it only defines one Job at module level and does not run it, it is run.
    """  # fmt: skip
    short = {
        PATH: savepoint,
        ALLOW: "true" if allow_non_restored else None,
        CLAIM: claim_mode,
        "parallelism.default": None if parallelism is None else str(parallelism),
        FORK_NAME: fork,
        FORK_SUFFIX: suffix,
        STANDBY: None if standby is None else str(standby).lower(),
        FORMAT: None if log_format is None else log_format.value,
        "spark.master": master,
    }
    _set_environment(options or [], config, {key: value for key, value in short.items() if value is not None})
    if detached and not supervise:
        raise typer.BadParameter("a detached job has a supervisor; leave --no-supervise out.", param_hint="-d")
    if standby and not supervise:
        raise typer.BadParameter("a standby is the supervisor's; leave --no-supervise out.", param_hint="--standby")
    if archive is not None or ship or (ship is None and master is not None):
        ship_environment(script, master, archive, wanted=ship)
    sys.exit(_start(script, arguments or [], detached=detached, supervise=supervise, as_json=as_json))


def _start(script: Path, arguments: list[str], *, detached: bool, supervise: bool, as_json: bool) -> int:
    """In the background, under a supervisor, or in this very process; the exit status."""
    if detached:
        _settings()
        return _start_detached(script, arguments, as_json=as_json)
    if supervise:
        return _run_supervised(script, arguments)
    from penstock.supply import early

    early.begin(script)
    with _shown_restore():
        return program.run(script, arguments)


def _run_supervised(script: Path, arguments: list[str]) -> int:
    from penstock.events import Events
    from penstock.ops.process.registry import SupervisorEntry, kept_small
    from penstock.ops.process.supervisor import Supervisor

    _log_to_stderr()
    settings = _settings()
    given = os.environ.get(ID_VARIABLE)  # where `run -d` has started this one
    log_file = Registry().log_file(given) if given else None
    entry = SupervisorEntry(script, id=given, log_file=log_file)
    os.environ[ID_VARIABLE] = entry.id
    events = Events()
    events.listen(entry)
    with _shown_restore(entry.id), kept_small(log_file):
        own = [sys.executable, "-P", "-m", "penstock.cli.supervised", str(script), *arguments]
        standby = settings.availability.standby
        return Supervisor(own, settings.restart, id=entry.id, standby=standby, events=events).run()


def _shown_restore(id: str | None = None) -> AbstractContextManager[None]:
    """Show how far the restore of the run `id` is, if it is to begin with one; None: of a run in this process."""
    if not any(path in from_options().values for path in _PATHS):
        return nullcontext()
    return show_restore(Output.for_people(), id or os.environ.setdefault(ID_VARIABLE, uuid.uuid4().hex))


def _set_environment(options: list[str], config: Path | None, short: Mapping[str, str] | None = None) -> None:
    """Put `-D`, what has an option of its own (`short`), and `--config` where the job looks for them, on top of what is
    there already. A wish to start from a savepoint gets an id here, once, however often the driver is started."""
    given: dict[str, str] = {}
    for option in options:
        key, equals, value = option.partition("=")
        if not equals or not key.strip():
            raise typer.BadParameter(f"{option!r} is not KEY=VALUE.", param_hint="-D")
        given[key.strip()] = value.strip()
    given.update(short or {})
    if any(path in given for path in _PATHS):
        given.setdefault(RESTORE_ID, uuid.uuid4().hex)
    if given:
        os.environ[OPTIONS_VARIABLE] = json.dumps({**from_options().values, **given})
    if config is not None:
        os.environ[FILE_VARIABLE] = str(config.absolute())


def _settings() -> Settings:
    """As far as they are known before the job has spoken. What is wrong with the settings is an error now; what is only
    worth a remark, the job itself says."""
    from penstock.config.settings import resolve

    log = logging.getLogger("penstock")
    log.disabled = True
    try:
        return resolve()
    finally:
        log.disabled = False


def _log_to_stderr() -> None:
    """The supervisor's lines go to stderr, among the job's own."""
    if program.set_up_log():
        return
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    log = logging.getLogger("penstock.supervisor")
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False


def _start_detached(script: Path, arguments: list[str], *, as_json: bool) -> int:
    """0 once the job runs, or has already done all it had to. Otherwise its error is shown, and the status is the one
    it ended with. Left early by Ctrl-C, the job goes on."""
    output, run = Output.choose(as_json), uuid.uuid4().hex
    try:
        process = _detach(script, arguments, run)
    except OSError as error:
        output.error(
            ControlError(
                f"The job's log cannot be written: {error}.",
                safe="nothing was started.",
                to_do="set PENSTOCK_HOME to a folder of yours.",
            )
        )
        return 1
    with output.progress(f"Starting {script.name}") as display:
        entry = _wait_until_running(run, process, lambda now: show_start(display, now))
    if entry is None or entry.state is State.FAILED:
        output.error(_start_error(entry, run))
        return process.wait() or 1
    facts = {"id": run, "name": entry.name, "state": entry.state, "address": entry.address, "log": entry.log}
    output.record("Job", facts)
    return 0


def _start_error(entry: Entry | None, run: str) -> PenstockError:
    log = Registry().log_file(run)
    if entry is None or entry.error is None:
        return ControlError("The job ended before it ran.", to_do=f"see {log}.")
    error = from_json(json.dumps({"error": "", **entry.error}))
    error.to_do = f"{error.to_do} Its log is {log}.".strip()
    return error


def _detach(script: Path, arguments: Sequence[str], id: str) -> subprocess.Popen[bytes]:
    """Start `penstock run script` in a session of its own, its output in the registry's log of `id`. Raises OSError
    where there is no place for that log."""
    from penstock.ops.process.supervisor import penstock_command

    with Registry().open_log(id) as log:
        return subprocess.Popen(
            penstock_command("run", str(script), *arguments),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, ID_VARIABLE: id, "PYTHONUNBUFFERED": "1"},
            start_new_session=True,
        )


def _wait_until_running(
    id: str, process: subprocess.Popen[bytes], each: Callable[[Entry], None] = lambda _: None
) -> Entry | None:
    """The entry once the job runs, waits for the lease, or has ended; None where it ended without having made one."""
    registry = Registry()
    while True:
        gone = process.poll() is not None  # asked before the registry: what it wrote last is then seen
        entry = registry.get(id)
        if entry is not None:
            each(entry)
        if gone or (entry is not None and entry.state in _BEGUN):
            return entry
        time.sleep(_POLL_SECONDS)
