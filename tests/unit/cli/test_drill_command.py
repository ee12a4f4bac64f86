"""What `penstock drill` refuses before it loads the job, and what `penstock.testing.drill` makes of its output."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from penstock.cli.main import app
from penstock.errors import ConfigurationError
from penstock.testing import drill as in_tests

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("options", "said"),
    [(["--faults", "kill,flood"], "'flood' is none of"), (["--seconds", "5"], "20"), (["--seed", "x"], "--seed")],
)
def test_wrong_options_start_nothing(tmp_path: Path, options: list[str], said: str) -> None:
    script = tmp_path / "job.py"
    script.write_text("raise AssertionError('it is loaded')")
    told = CliRunner().invoke(app, ["drill", str(script), *options])
    assert told.exit_code == 2
    assert said in told.output


def answering(monkeypatch: pytest.MonkeyPatch, code: str) -> list[str]:
    given: list[str] = []

    def command(*arguments: str) -> list[str]:
        given.extend(arguments)
        return [sys.executable, "-c", code]

    monkeypatch.setattr(in_tests, "penstock_command", command)
    return given


def test_a_test_gets_the_facts_and_the_report(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    given = answering(monkeypatch, f"print({json.dumps(json.dumps({'mistakes': [], 'seed': 7}))})")
    assert in_tests.drill("job.py", "--seed", "7", seconds=60, html=tmp_path / "a.html")["seed"] == 7
    assert given == ["drill", "--json", "--seconds", "60", "--seed", "7", "--html", str(tmp_path / "a.html"), "job.py"]


def test_a_job_that_cannot_be_drilled_is_its_error(monkeypatch: pytest.MonkeyPatch) -> None:
    error = ConfigurationError("Source 'a' cannot be drilled.", to_do="drill a copy.").to_json()
    answering(monkeypatch, f"import sys; sys.stderr.write('a warning\\n' + {error!r} + '\\n'); sys.exit(1)")
    with pytest.raises(ConfigurationError, match="cannot be drilled"):
        in_tests.drill("job.py")
    answering(monkeypatch, "import job_that_is_not_there")
    with pytest.raises(RuntimeError, match="No module named 'job_that_is_not_there'"):
        in_tests.drill("job.py")
