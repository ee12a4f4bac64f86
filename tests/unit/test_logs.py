"""Log lines as JSON: what is in each, what is hidden, and where the setting for it may stand."""

from __future__ import annotations

import io
import json
import logging
import os
import re
import subprocess
import sys
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from penstock import logs
from penstock.checkpoint.decision import Committable, Outcome
from penstock.cli import program
from penstock.config import levels as load
from penstock.config.operations import LogFormat
from penstock.config.resolve import resolve
from penstock.contracts.sink import Committer, SinkScope, TwoPhaseSink
from penstock.deadline import Deadline
from penstock.engine.committers import Committers
from penstock.errors import ConfigurationError, SystemUnavailable
from penstock.logs import JsonFormatter, bound, is_json, log_as_json


@pytest.fixture(autouse=True)
def logging_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """As in a new process."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(load.FILE_VARIABLE, raising=False)
    monkeypatch.delenv(load.OPTIONS_VARIABLE, raising=False)
    root, penstock = logging.getLogger(), logging.getLogger("penstock")
    handlers, level = list(root.handlers), penstock.level
    root.handlers = []
    monkeypatch.setattr(logs, "_of_process", {})
    yield
    root.handlers = handlers
    penstock.setLevel(level)


class Lines:
    """What a logger writes as JSON."""

    def __init__(self) -> None:
        self.text = io.StringIO()
        handler = logging.StreamHandler(self.text)
        handler.setFormatter(JsonFormatter())
        self.log = logging.getLogger("tests.logs")
        self.log.handlers, self.log.propagate = [handler], False
        self.log.setLevel(logging.DEBUG)

    @property
    def all(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.text.getvalue().splitlines()]

    @property
    def last(self) -> dict[str, Any]:
        return self.all[-1]


@pytest.fixture
def lines() -> Lines:
    return Lines()


def test_a_line(lines: Lines) -> None:
    lines.log.warning("%d rows are late", 7)
    assert set(lines.last) == {"time", "level", "logger", "message", "thread", "process"}
    assert lines.last["message"] == "7 rows are late"
    assert (lines.last["level"], lines.last["logger"]) == ("WARNING", "tests.logs")
    assert lines.last["time"][10] == "T"
    assert lines.last["time"].endswith("+00:00")


def test_what_a_line_is_about(lines: Lines) -> None:
    with bound(job="payments", query="out"):
        with bound(epoch=12, sink=None):
            lines.log.info("inside")
        lines.log.info("outside")
    lines.log.info("after")
    inside, outside, after = lines.all
    assert [inside.get(name) for name in logs.FIELDS] == ["payments", "out", 12, None]
    assert [outside.get(name) for name in logs.FIELDS] == ["payments", "out", None, None]
    assert not set(after) & set(logs.FIELDS)


def test_threads_do_not_speak_for_each_other(lines: Lines) -> None:
    def other() -> None:
        with bound(query="other"):
            lines.log.info("there")

    with bound(query="mine"):
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        lines.log.info("here")
    assert [line["query"] for line in lines.all] == ["other", "mine"]


def test_what_a_call_adds_is_in_the_line(lines: Lines) -> None:
    with bound(epoch=1):
        lines.log.info("x", extra={"epoch": 2, "topic": "orders", "url": "https://me:hunter2@host/", "level": "mine"})
    assert (lines.last["epoch"], lines.last["topic"]) == (2, "orders")
    assert lines.last["url"] == "https://me:***@host/"
    assert lines.last["level"] == "INFO"


def test_one_object_in_one_line_whatever_is_logged() -> None:
    # Formatted, not logged: pytest captures what is logged, and cannot send half a character to another process.
    odd = ("two\nlines and \ud800 and ✓ and %s", ({"a": object()},))
    mistaken = ("%d", ("no number",))
    for (text, arguments), expected in ((odd, "two\nlines"), (mistaken, "no number")):
        line = JsonFormatter().format(logging.LogRecord("tests.logs", logging.INFO, "file", 1, text, arguments, None))
        assert expected in json.loads(line)["message"]
        assert "\n" not in line
        assert line.isascii()


def test_secrets_are_hidden_everywhere(lines: Lines) -> None:
    secret = "password=hunter2"
    try:
        raise ValueError(f"refused: {secret}")
    except ValueError:
        lines.log.exception("with %s", secret, stack_info=True)
    with bound(sink=f"a {secret}"):
        lines.log.error(secret)
    assert "hunter2" not in lines.text.getvalue()
    assert lines.all[0]["message"] == "with password=***"


def test_an_exception_is_a_field(lines: Lines) -> None:
    try:
        try:
            raise OSError("no route")
        except OSError as cause:
            raise SystemUnavailable("The broker is gone.", safe="nothing is lost.", to_do="wait.") from cause
    except SystemUnavailable:
        lines.log.exception("an epoch failed")
    error = lines.last["exception"]
    assert (error["type"], error["happened"]) == ("SystemUnavailable", "The broker is gone.")
    assert (error["safe"], error["to_do"]) == ("nothing is lost.", "wait.")
    assert "OSError: no route" in error["trace"]
    assert lines.last["message"] == "an epoch failed"


# Where it is said what a line is about


class Telling(Committer):
    """Says in the log that it was asked."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log

    def commit(self, epoch: int, committables: Sequence[Committable], deadline: Deadline) -> Mapping[int, Outcome]:
        self._log.warning("committing")
        return {one.writer: Outcome.COMMITTED for one in committables}

    def abort(self, committables: Sequence[Committable], deadline: Deadline) -> None: ...

    def abort_dangling(self, keep: Collection[Committable], deadline: Deadline) -> int:
        self._log.warning("sweeping")
        return 0

    def close(self) -> None: ...


@pytest.mark.parametrize("sinks", [["a"], ["a", "b", "c"]], ids=["one", "several"])
def test_a_committer_s_lines_name_their_sink(lines: Lines, sinks: list[str]) -> None:
    class Sink:
        def open_committer(self, scope: SinkScope) -> Committer:
            return Telling(lines.log)

    sink: Any = Sink()
    made: Mapping[str, TwoPhaseSink] = dict.fromkeys(sinks, sink)
    committers = Committers("out", made)
    committers.open({uid: SinkScope("payments", uid, 1) for uid in sinks})
    with bound(job="payments", query="out", epoch=12):
        committers.commit(12, [Committable(uid, 0, 1, 1, {}) for uid in sinks], Deadline(5))
        committers.abort_dangling([], Deadline(5))
    committers.close()
    about = [tuple(line[name] for name in (*logs.FIELDS, "message")) for line in lines.all]
    assert sorted(about) == sorted(
        ("payments", "out", 12, uid, what) for uid in sinks for what in ("committing", "sweeping")
    )


# Switching it on


def test_the_setting_is_read_from_every_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert resolve().log.format is LogFormat.TEXT
    assert not program.set_up_log()
    assert not is_json()
    (tmp_path / "penstock.yaml").write_text("penstock.log.format: json\n")
    assert resolve().log.format is LogFormat.JSON
    monkeypatch.setenv(load.OPTIONS_VARIABLE, json.dumps({"penstock.log.format": "text"}))
    assert resolve().log.format is LogFormat.TEXT
    assert not program.set_up_log()
    monkeypatch.setenv(load.OPTIONS_VARIABLE, json.dumps({"penstock.log.format": "JSON"}))
    assert program.set_up_log()
    assert is_json()
    monkeypatch.setenv(load.OPTIONS_VARIABLE, json.dumps({"penstock.log.format": "xml"}))
    with pytest.raises(ConfigurationError, match="xml"):
        resolve()


def test_text_lines_of_libraries_are_masked_and_cannot_steer_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    own = logging.StreamHandler(sys.stderr)
    own.setFormatter(logging.Formatter("%(name)s says: %(message)s"))
    logging.getLogger().addHandler(own)
    logs.set_up("payments", as_json=False)
    logs.set_up("payments", as_json=False)
    try:
        raise ValueError("s3a://key:hunter2@bucket")
    except ValueError:
        logging.getLogger("aiokafka").exception("cannot reach redis://u:hunter2@h \x1b[2J\n\tat x")
    text = capsys.readouterr().err
    assert text.startswith("aiokafka says: cannot reach redis://u:***@h �[2J\n\tat x\nTraceback ")
    assert "hunter2" not in text


def test_settings_that_cannot_be_read_are_the_job_s_to_tell(tmp_path: Path) -> None:
    (tmp_path / "penstock.yaml").write_text("[")
    assert not program.set_up_log()


def test_handlers_of_the_program_stay(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger()
    terminal, file = logging.StreamHandler(sys.stderr), logging.FileHandler(tmp_path / "log")
    terminal.setLevel(logging.ERROR)
    root.handlers = [terminal, file]
    log_as_json(job="payments")
    log_as_json(job="payments")
    assert root.handlers == [terminal, file]
    logging.getLogger("penstock").warning("to the file")
    logging.getLogger("penstock").error("to both")
    file.close()
    assert (tmp_path / "log").read_text() == "to the file\nto both\n"
    [line] = capsys.readouterr().err.splitlines()
    assert (json.loads(line)["message"], json.loads(line)["job"]) == ("to both", "payments")


SCRIPT = """
import logging

logging.getLogger("penstock.sinks.kafka").info("a sink speaks")
logging.getLogger("elsewhere").warning("another library speaks")
raise SystemExit
"""


def penstock_run(folder: Path, how: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from penstock.cli.main import main; main()", "run", how, "--log-format", "json"]
    return subprocess.run(
        [*command, "job.py"], cwd=folder, capture_output=True, text=True, timeout=120, check=False,
        env={**os.environ, "PENSTOCK_HOME": str(folder / "home")},
    )  # fmt: skip


@pytest.mark.parametrize("how", ["--no-supervise", "--supervise"])
def test_the_command_s_option(tmp_path: Path, how: str) -> None:
    """Every line on stderr is JSON: the supervisor's, the job's, and those of libraries."""
    (tmp_path / "job.py").write_text(SCRIPT)
    result = penstock_run(tmp_path, how)
    assert result.returncode == 0, result.stderr
    found = [json.loads(line) for line in result.stderr.splitlines()]
    assert {"a sink speaks", "another library speaks"} <= {line["message"] for line in found}
    assert any(line["logger"] == "penstock.supervisor" for line in found) == (how == "--supervise")


def test_an_error_that_ends_the_program_is_a_line_too(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text("from penstock import Job\nJob('payments').run()\n")
    result = penstock_run(tmp_path, "--no-supervise")
    assert result.returncode != 0
    line = json.loads(result.stderr.splitlines()[-1])
    assert (line["level"], line["job"], line["exception"]["type"]) == ("ERROR", "payments", "ConfigurationError")
    assert "writes nothing" in line["exception"]["happened"]


INFO = """
import logging
from penstock import logs
logs.show_info()
logs.show_info()
log = logging.getLogger("penstock")
log.info("an epoch of %s", "kafka://me:hunter2@host")
logging.basicConfig(format="mine %(message)s")
log.warning("later")
"""


def test_info_is_readable_without_configuration() -> None:
    """Once, and masked; the program's own configuration wins when it comes."""
    done = subprocess.run([sys.executable, "-c", INFO], capture_output=True, text=True, check=True)
    first, second = done.stderr.splitlines()
    assert re.fullmatch(r"\S+ \S+ INFO penstock: an epoch of kafka://\S*host", first)
    assert "hunter2" not in first
    assert second == "mine later"
    configured = INFO.replace("logs.show_info()", "logging.basicConfig(format='mine %(message)s'); logs.show_info()", 1)
    done = subprocess.run([sys.executable, "-c", configured], capture_output=True, text=True, check=True)
    assert done.stderr.splitlines() == ["mine later"]
