"""The supervisor's decisions, and what travels between it and its driver. Real processes: tests/faults."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from py4j.protocol import Py4JNetworkError

from penstock.cli.program import Start
from penstock.cli.run import parse_options, resolve_start
from penstock.config.levels import FILE_VARIABLE, OPTIONS_VARIABLE
from penstock.config.operations import RESTORE_ID
from penstock.config.resolve import resolve
from penstock.config.restart_strategy import RestartStrategy
from penstock.engine.restarts import Restarts
from penstock.errors import ConfigurationError, PreCommitFailed, SystemUnavailable, TopicMissing
from penstock.ops.process import lifeline
from penstock.ops.process.lifeline import CRASHED, DONE, FAILED, GAVE_UP, LOST_TURN, DriverReport, DriverRun, status_of
from penstock.ops.process.registry import Entry, Registry, State
from penstock.ops.process.supervisor import DriverEnd, Supervisor, classify_end
from penstock.processes import mark


@pytest.mark.parametrize(
    ("status", "end"),
    [
        (DONE, DriverEnd.DONE),
        (-signal.SIGKILL, DriverEnd.CRASHED),
        (-signal.SIGSEGV, DriverEnd.CRASHED),
        (-signal.SIGABRT, DriverEnd.CRASHED),
        (CRASHED, DriverEnd.CRASHED),
        (-signal.SIGTERM, DriverEnd.STOPPED),
        (-signal.SIGINT, DriverEnd.STOPPED),
        (FAILED, DriverEnd.FAILED),
        (GAVE_UP, DriverEnd.FAILED),
        (LOST_TURN, DriverEnd.LOST_TURN),
        (2, DriverEnd.FAILED),
        (7, DriverEnd.FAILED),
    ],
)
def test_what_an_end_calls_for(status: int, end: DriverEnd) -> None:
    assert classify_end(status, stopping=False) is end
    assert classify_end(status, stopping=True) is DriverEnd.STOPPED


@pytest.mark.parametrize(
    ("asked", "status", "exit_status"),
    [
        (signal.SIGTERM, LOST_TURN, 128 + signal.SIGTERM),
        (signal.SIGINT, LOST_TURN, 128 + signal.SIGINT),
        (None, LOST_TURN, DONE),  # by a command: no signal came
        (signal.SIGTERM, DONE, DONE),
        (signal.SIGTERM, CRASHED, CRASHED),
        (signal.SIGTERM, -signal.SIGKILL, 128 + signal.SIGKILL),
    ],
)
def test_a_stop_ends_with_the_status_of_a_stop_also_where_the_driver_lost_its_turn(
    monkeypatch: pytest.MonkeyPatch, asked: signal.Signals | None, status: int, exit_status: int
) -> None:
    supervisor = Supervisor(["driver"], RestartStrategy.none())

    def run_once(wake: int) -> DriverRun:
        if asked is not None:
            signal.raise_signal(asked)
        return DriverRun(status, DriverReport(stopping=True))

    monkeypatch.setattr(supervisor, "_run_once", run_once)
    assert supervisor.run() == exit_status


def caused(error: BaseException, cause: BaseException) -> BaseException:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (TopicMissing("gone"), FAILED),
        (SystemUnavailable("away"), CRASHED),
        (ConnectionResetError(), CRASHED),
        (MemoryError(), CRASHED),
        (Py4JNetworkError("Answer from Java side is empty"), CRASHED),
        (caused(PreCommitFailed("failed"), Py4JNetworkError("Answer from Java side is empty")), CRASHED),
        (caused(TypeError("on the way"), Py4JNetworkError("Answer from Java side is empty")), CRASHED),
        (TypeError("a mistake in the program"), FAILED),
        (FileNotFoundError("a mistake in the program"), FAILED),
    ],
)
def test_the_status_a_program_ends_with(error: BaseException, status: int) -> None:
    assert status_of(error) == status


def test_the_status_when_the_strategy_gave_up() -> None:
    error = SystemUnavailable("away")
    assert Restarts(RestartStrategy.none()).delay(error) is None
    assert status_of(error) == GAVE_UP


@pytest.fixture
def line(monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """The supervisor's end of a line that this process is the driver of."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        monkeypatch.setattr(lifeline, "_line", theirs)
        yield ours


def test_what_a_driver_tells(line: socket.socket) -> None:
    assert lifeline.Receiver(line).report() == DriverReport()
    strategy = RestartStrategy.fixed_delay(7, "3s")
    lifeline.report(strategy=RestartStrategy.none().to_dict())
    lifeline.report(strategy=strategy.to_dict())
    lifeline.report(stopping=True)
    lifeline.report_error(ValueError("no\n\nlines: ✓"), "unknown")
    assert lifeline.Receiver(line).report() == DriverReport(strategy, True, "ValueError: no\n\nlines: ✓", "unknown")


def test_what_is_cut_off_or_not_understood_was_not_said(line: socket.socket) -> None:
    assert lifeline._line is not None
    lifeline._line.send(b'{"strategy": {"of": "a newer version"}}\nnonsense\n{"stopping": true}\n{"error": "cut of')
    assert lifeline.Receiver(line).report() == DriverReport(stopping=True)


def test_telling_never_hurts(line: socket.socket) -> None:
    """Neither when nobody reads, nor when nobody is there any more."""
    for _ in range(1000):
        lifeline.report_error(ValueError("x" * 10_000), "unknown")
    assert (lifeline.Receiver(line).report().error or "").startswith("ValueError: xxx")
    line.close()
    lifeline.report(stopping=True)


def test_without_a_supervisor_nothing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(lifeline.VARIABLE, raising=False)
    lifeline.connect()
    assert not lifeline.connected()
    lifeline.report(stopping=True)


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in (OPTIONS_VARIABLE, FILE_VARIABLE):
        monkeypatch.setenv(name, "")  # so that whatever is set later is undone
        del os.environ[name]
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)


def start(*options: str, config: Path | None = None) -> Start:
    return resolve_start(Path("job.py"), ["--its", "own"], parse_options(options), config)


@pytest.mark.usefixtures("environment")
def test_options_reach_the_job_and_the_supervisor(tmp_path: Path) -> None:
    assert start().restart == RestartStrategy.exponential_delay().to_dict()
    file = tmp_path / "settings.yaml"
    file.write_text("restart-strategy.type: fixed-delay\nrestart-strategy.fixed-delay.attempts: 4\n")
    assert start(config=file).restart == RestartStrategy.fixed_delay(4).to_dict()
    os.environ[OPTIONS_VARIABLE] = '{"restart-strategy.fixed-delay.delay": "7s"}'
    begun = start("restart-strategy.fixed-delay.attempts=5", "state.backend.type = rocksdb")
    assert begun.restart == RestartStrategy.fixed_delay(5, "7s").to_dict()
    assert begun.options == {
        "restart-strategy.fixed-delay.delay": "7s",
        "restart-strategy.fixed-delay.attempts": "5",
        "state.backend.type": "rocksdb",
    }
    file.unlink()
    del os.environ[OPTIONS_VARIABLE], os.environ[FILE_VARIABLE]
    with Start.read(begun.write()).in_effect():  # a driver reads neither file nor environment
        assert resolve().restart == RestartStrategy.fixed_delay(5, "7s")
        assert resolve(restart=RestartStrategy.none()).restart == RestartStrategy.none()  # code wins over the file
    assert resolve().restart == RestartStrategy.exponential_delay()


@pytest.mark.usefixtures("environment")
def test_a_restore_gets_an_id_once_and_for_each_command_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.savepoints.restorable.require_path", lambda path: None)
    assert not start().restores
    first = start("execution.state-recovery.path=/savepoints/one")
    assert first.restores
    restore = (first.options or {})[RESTORE_ID]
    assert Start.read(first.write()).options == first.options
    os.environ[OPTIONS_VARIABLE] = json.dumps(first.options)
    assert (start().options or {})[RESTORE_ID] == restore
    assert (start("execution.state-recovery.path=/savepoints/two").options or {})[RESTORE_ID] != restore


@pytest.mark.usefixtures("environment")
def test_settings_that_cannot_be_are_refused_before_anything_starts() -> None:
    with pytest.raises(ConfigurationError, match="sometimes"):
        start("restart-strategy.type=sometimes")


@pytest.mark.usefixtures("environment")
def test_a_start_is_its_owner_s_alone_and_goes_with_its_run(tmp_path: Path) -> None:
    begun = start("spark.hadoop.fs.s3a.secret.key=hunter2")
    file = begun.write()
    assert file.parent == tmp_path / "home" / "starts"
    assert (stat.S_IMODE(file.stat().st_mode), stat.S_IMODE(file.parent.stat().st_mode)) == (0o600, 0o700)
    assert Start.read(file) == begun
    body = json.loads(file.read_text())
    file.write_text(json.dumps({**body, "of_a_newer_version": 1}))
    assert Start.read(file) == begun
    registry = Registry()
    registry.put(Entry(begun.id, "job", State.RUNNING, supervisor=os.getpid(), supervisor_mark=mark(os.getpid())))
    registry.prune()
    assert file.exists()
    registry.put(Entry(begun.id, "job", State.RUNNING))  # of a supervisor that was killed
    registry.prune()
    assert not file.exists()


@pytest.mark.usefixtures("environment")
def test_a_start_that_others_can_write_is_refused() -> None:
    file = start().write()
    file.chmod(0o666)
    with pytest.raises(PermissionError):
        Start.read(file)


@pytest.mark.usefixtures("environment")
def test_a_registry_that_cannot_be_written_stops_no_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path / "file"))
    begun = start()
    file = begun.write()
    assert Start.read(file) == begun
    file.unlink()


@pytest.mark.usefixtures("environment")
def test_supervising_leaves_no_start_file(tmp_path: Path) -> None:
    """The driver reads it, once the command line is parsed and the settings are resolved."""
    (tmp_path / "job.py").write_text(
        "import os, sys; from penstock.config.resolve import resolve\n"
        "print(sys.argv[1:], resolve().checkpoints.interval_seconds)\n"
        "print([name for name in os.environ if name.startswith('PENSTOCK_')])\n"
        "sys.exit()\n"
    )
    command = [sys.executable, "-c", "from penstock.cli.main import main; main()", "run"]
    command += ["-D", "execution.checkpointing.interval=7s", "job.py", "-D", "own"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["['-D', 'own'] 7.0", "['PENSTOCK_HOME']"]
    assert list((tmp_path / "home" / "starts").iterdir()) == []


def test_the_supervisor_is_small() -> None:
    script = (
        "import sys, penstock.cli.main, penstock.ops.process.supervisor, penstock.config.resolve\n"
        "sys.exit(str({'pyspark', 'py4j', 'pyarrow', 'numpy', 'pandas', 'confluent_kafka'} & set(sys.modules) or ''))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.stderr.strip() == ""
