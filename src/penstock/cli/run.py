"""`penstock run JOB.py`: what `python JOB.py` does, under a supervisor; with `-d` one that outlives the terminal. And
the commands that load a job's file and do not run it: `pack`, `explain`, `check` and `config`."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from penstock.cli import program
from penstock.cli.output import Display, Json, Output
from penstock.cli.program import Start
from penstock.config.operations import FORMAT, STANDBY, LogFormat
from penstock.errors import ControlError, PenstockError, from_json
from penstock.ops.process.registry import Entry, Registry, State
from penstock.progress import Step

_POLL_SECONDS = 0.05
_BEGUN = (State.RUNNING, State.SUSPENDED, State.FINISHED, State.CANCELED)  # SUSPENDED: another machine has the lease

PACKED = Path("penstock-env.pex")
_CLAIM_HELP = "Whether the savepoint becomes the job's own, which then deletes it. Default no_claim."


def job_file(help: str) -> Any:
    return typer.Argument(metavar="JOB.py", exists=True, dir_okay=False, readable=True, help=help)


#: Everything after the script's name is the script's own, options included.
PASS_ON = {"allow_interspersed_args": False, "ignore_unknown_options": True}

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
    typer.Option(*("--claim-mode", "--claimMode", "-rm", "--restoreMode"), metavar="claim|no_claim", help=_CLAIM_HELP),
]


def _complete_setting(incomplete: str) -> list[str]:
    from penstock.config.levels import BY_KEY

    return [f"{key}=" for key in BY_KEY if key.startswith(incomplete)]


Settings = Annotated[
    list[str] | None,
    typer.Option(
        "-D", metavar="KEY=VALUE", help="A setting; it wins over code and file.", autocompletion=_complete_setting
    ),
]
ConfigFile = Annotated[
    Path | None,
    typer.Option(metavar="FILE", exists=True, dir_okay=False, readable=True, help="The configuration file."),
]
LogFormatOption = Annotated[
    LogFormat | None, typer.Option("--log-format", help="The job's log as text, or a JSON object in each line.")
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
    script: Annotated[Path, job_file("The job to run.")],
    arguments: Annotated[list[str] | None, typer.Argument(metavar="ARGS", help="Given to the job.")] = None,
    savepoint: FromSavepoint = None,
    allow_non_restored: AllowNonRestored = False,
    claim_mode: ClaimMode = None,
    parallelism: Annotated[
        int | None, typer.Option("-p", "--parallelism", metavar="N", help="Partitions of state and of every shuffle.")
    ] = None,
    fork: Annotated[
        str | None, typer.Option(metavar="NAME", help="A second job of this name beside the first.")
    ] = None,
    suffix: Annotated[
        str | None, typer.Option(metavar="SUFFIX", help="With --fork: added to every topic, table and folder written.")
    ] = None,
    detached: Annotated[
        bool, typer.Option("-d", "--detached", help="Leave the job running in the background, and return.")
    ] = False,
    take_over: Annotated[bool, typer.Option("--take-over", help="With -d: replace the job if it runs.")] = False,
    supervise: Supervise = True,
    standby: KeepStandby = None,
    master: Master = None,
    archive: Archive = None,
    ship: Ship = None,
    options: Settings = None,
    config: ConfigFile = None,
    log_format: LogFormatOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="With -d: JSON instead of a table.")] = False,
) -> None:
    """Run a job written in Python.

    The file runs as the main program. If it only defines one Job at module level and does not run it, it is run.
    """
    from penstock.config.levels import from_options
    from penstock.config.operations import ALLOW, CLAIM, FORK_NAME, FORK_SUFFIX, PATH

    if detached and not supervise:
        raise typer.BadParameter("a detached job has a supervisor; leave --no-supervise out.", param_hint="-d")
    if standby and not supervise:
        raise typer.BadParameter("a standby is the supervisor's; leave --no-supervise out.", param_hint="--standby")
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
    given = parse_options(options) | {key: value for key, value in short.items() if value is not None}
    if archive is not None or ship or (ship is None and master is not None):
        given |= _ship(script, master, archive, {**from_options().values, **given}, wanted=ship)
    start = resolve_start(script, arguments or [], given, config)
    if detached:
        sys.exit(_start_detached(replace(start, alone=not take_over), as_json=as_json))
    sys.exit(program.supervise(start) if supervise else program.run_here(start))


def parse_options(options: Sequence[str] | None) -> dict[str, str]:
    """Of `-D`."""
    settings = {}
    for option in options or ():
        key, equals, value = option.partition("=")
        if not equals or not key.strip():
            raise typer.BadParameter(f"{option!r} is not KEY=VALUE.", param_hint="-D")
        settings[key.strip()] = value.strip()
    return settings


def resolve_start(script: Path, arguments: Sequence[str], given: Mapping[str, str], config: Path | None) -> Start:
    """What the run begins with, before the program has run: `given` on the command line, over the environment and the
    file. Wrong settings are an error now; notes about them are the job's to log. A restore gets its id here, once."""
    from penstock.config.levels import FILE_VARIABLE, Texts, from_file, from_options, using
    from penstock.config.operations import PATH, RESTORE_ID
    from penstock.config.resolve import resolve
    from penstock.savepoints.restorable import require_path

    paths = (PATH, "execution.savepoint.path")
    if (path := next((given[key] for key in paths if key in given), None)) is not None:
        configured = [*{**from_options().values, **given}, *os.environ]
        elsewhere = ("fs.defaultFS", "HADOOP_CONF_DIR", "SPARK_CONF_DIR", "SPARK_HOME")
        if path.startswith("file:") or not any(name.endswith(elsewhere) for name in configured):
            require_path(path)  # before Spark starts; not where a path may be another file system's
        given = {RESTORE_ID: uuid.uuid4().hex, **given}
    options = {**from_options().values, **given}
    if config is not None:
        os.environ[FILE_VARIABLE] = str(config.absolute())  # also for commands that the job's page runs
    log = logging.getLogger("penstock")
    log.disabled, file = True, from_file()
    try:
        with using(Texts("-D", options), file):
            settings = resolve()
    finally:
        log.disabled = False
    restart, standby = settings.restart.to_dict(), settings.availability.standby
    start = Start(uuid.uuid4().hex, str(script), list(arguments), options, file.where, file.values, restart, standby)
    return replace(start, restores=any(path in options for path in paths))


def _ship(
    script: Path, master: str | None, archive: Path | None, settings: Mapping[str, str], *, wanted: bool | None
) -> dict[str, str]:
    from penstock import __version__
    from penstock.spark.executors import is_local, runs_here
    from penstock.supply import pack

    if archive is None and wanted is None and (master is None or runs_here(master) or "PYSPARK_PYTHON" in os.environ):
        return {}
    if is_local(master or "local"):
        raise typer.BadParameter("local tasks need no archive; give --master spark://HOST:PORT.", param_hint="--pack")
    if archive is not None:
        environment = pack.require_fitting(archive, __version__)
    else:
        Output().line("Packing what executors need …")
        environment = pack.build(__version__, None, script)
    os.environ.update(environment.environment())
    return environment.settings(settings.get(pack.FILES, ""))


def pack(
    script: Annotated[
        Path | None, job_file("The job: what it imports is packed, with Penstock and its installed extras.")
    ] = None,
    target: Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="Where to write it.")] = PACKED,
    more: Annotated[
        list[str] | None, typer.Option("--with", metavar="PACKAGE", help="An installed package that no import names.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Pack Penstock and what a job imports into one file, for workers that have Python and none of it.

    Prints the line for spark-submit. `penstock run --master` does all of it by itself.
    """
    from penstock import __version__
    from penstock.supply.pack import build

    packed = build(__version__, target, script, more or ())
    submit = packed.submit_line("spark://HOST:7077", script.name if script is not None else "JOB.py")
    facts = {"archive": str(packed.path), "megabytes": round(packed.path.stat().st_size / 1e6, 1)}
    facts |= {name: packed.manifest[name] for name in ("python", "platform")}
    Output.choose(as_json).record("Archive", {**facts, "packages": packed.packages, "submit": submit})


_NOT_RUN = job_file("The job; it is not run.")


def explain(script: Annotated[Path, _NOT_RUN], as_json: Json = False) -> None:
    """Show the chain of each query, what each link promises and why, and the weakest."""
    job, rows = program.load_job(script), []
    for query, chain in job.chains().items():
        for link in chain.links:
            weakest = link is chain.weakest
            rows.append({
                "query": query, "link": link.kind, "name": link.name, "guarantee": str(link.guarantee),
                "because": link.because, "weakest": weakest, "lift": link.lift if weakest else "",
            })  # fmt: skip
    output = Output.choose(as_json)
    output.table("What the job gives", rows)
    if job.settings.availability.cost:
        output.line(job.settings.availability.cost)


def check(script: Annotated[Path, _NOT_RUN], as_json: Json = False) -> None:
    """Connect to every source and sink and verify what the job needs of them, writing nothing.

    Exit status 1, with the error, where something cannot work; what is only unwise is listed.
    """
    output = Output.choose(as_json)
    job = program.load_job(script)
    for chain in job.chains().values():
        job.require(chain)
    findings = [{"name": finding.sink, "warning": finding.message} for finding in job.check()]
    output.table("Works, but", findings) if findings or as_json else output.line("Everything the job needs is there.")


def config(
    script: Annotated[Path | None, job_file("A job, for what it says.")] = None,
    define: Settings = None,
    file: Annotated[
        Path | None, typer.Option("--config", metavar="FILE", help="Instead of penstock.yaml in this folder.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show every setting, its value, and where it came from: -D, code, file or default.

    A job's file is loaded but not run, so only a Job at module level is seen.
    """
    from penstock.config.levels import FILE_VARIABLE, Texts, from_file, from_options, using
    from penstock.config.resolve import resolve

    if file is not None:
        os.environ[FILE_VARIABLE] = str(file)
    with using(Texts("-D", {**from_options().values, **parse_options(define)}), from_file()):
        settings = resolve() if script is None else program.load_job(script).settings
    Output.choose(as_json).table("Settings", settings.rows())


def _start_detached(start: Start, *, as_json: bool) -> int:
    """0 once the job runs or is done; otherwise its error is shown, and the status is its own."""
    output = Output.choose(as_json)
    start = replace(start, log=str(Registry().log_file(start.id)))
    try:
        process = _detach(start)
    except OSError as error:
        to_do = "set PENSTOCK_HOME to a folder of yours."
        output.error(
            ControlError(f"The job's log cannot be written: {error}.", safe="nothing was started.", to_do=to_do)
        )
        return 1
    with output.progress(f"Starting {Path(start.script).name}") as display:
        entry = _wait_until_running(start.id, process, lambda now: show_start(display, now))
    if entry is None or entry.state is State.FAILED:
        failure: PenstockError = ControlError("The job ended before it ran.", to_do=f"see {start.log}.")
        if entry is not None and entry.error is not None:
            failure = from_json(json.dumps({"error": "", **entry.error}))
            failure.to_do = f"{failure.to_do} Its log is {start.log}.".strip()
        output.error(failure)
        return process.wait() or 1
    output.record("Job", {name: getattr(entry, name) for name in ("id", "name", "state", "address", "log")})
    return 0


def show_start(display: Display, entry: Entry) -> None:
    """A job on its way up: its state, and how far its restore is."""
    display.describe(f"Starting {entry.name}: {entry.state}")
    step = Step.of(entry.progress)
    if step is not None:
        display(step)


def _detach(start: Start) -> subprocess.Popen[bytes]:
    """Start the supervisor in a session of its own, writing to the run's log. Raises OSError."""
    from penstock.ops.process.supervisor import python_command

    with Registry().open_log(start.id) as log:
        file = start.write()
        try:
            # Only the file counts; the script is there for `ps`.
            command = python_command(program.SUPERVISOR, str(file), start.script)
            env = {**os.environ, "PYTHONUNBUFFERED": "1"}
            nothing = subprocess.DEVNULL
            return subprocess.Popen(command, stdin=nothing, stdout=log, stderr=log, env=env, start_new_session=True)
        except OSError:
            file.unlink(missing_ok=True)
            raise


def _wait_until_running(id: str, process: subprocess.Popen[bytes], each: Callable[[Entry], None]) -> Entry | None:
    """The entry once the job runs, waits for the lease, or has ended; None where it ended before it had one."""
    registry = Registry()
    while True:
        gone = process.poll() is not None  # asked before the registry: what it wrote last is then seen
        entry = registry.get(id)
        if entry is not None:
            each(entry)
        if gone or (entry is not None and entry.state in _BEGUN):
            return entry
        time.sleep(_POLL_SECONDS)
