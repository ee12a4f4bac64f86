"""From where a job starts: what `penstock run` hands over, and what is refused."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.cli import main as cli
from penstock.cli import program
from penstock.config import levels
from penstock.config.operations import Recovery
from penstock.config.resolve import resolve
from penstock.errors import ConfigurationError

SCRIPT = """
import dataclasses, json, sys
from penstock.config.resolve import resolve
settings = resolve()
print(json.dumps({**dataclasses.asdict(settings.recovery), "arguments": sys.argv[1:],
                  "parallelism": {key: one.value for key, one in settings.derived_spark.items()}}))
sys.exit()
"""

Run = Callable[..., dict[str, Any]]


@pytest.fixture(autouse=True)
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in (levels.FILE_VARIABLE, levels.OPTIONS_VARIABLE):
        monkeypatch.setenv(name, "")  # so that what the command sets is undone


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """What a script sees that `penstock run` has started."""
    monkeypatch.setattr(program, "prepare_environment", lambda: None)
    monkeypatch.setattr("penstock.savepoints.restorable.require_path", lambda path: None)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "job.py").write_text(SCRIPT)

    def call(*arguments: str) -> dict[str, Any]:
        monkeypatch.setenv(levels.OPTIONS_VARIABLE, "")
        monkeypatch.setattr(sys, "argv", ["penstock", "run", "--no-supervise", *arguments])
        with pytest.raises(SystemExit) as left:
            cli.main()
        out, err = capfd.readouterr()
        assert not left.value.code, err
        return dict(json.loads(out))

    return call


def given(monkeypatch: pytest.MonkeyPatch, values: dict[str, str]) -> Recovery:
    monkeypatch.setenv(levels.OPTIONS_VARIABLE, json.dumps(values))
    return resolve().recovery


def test_nothing_is_asked_for_unless_somebody_does(run: Run) -> None:
    seen = run("job.py")
    assert {name: value for name, value in seen.items() if value} == {"claim": "no_claim"}


@pytest.mark.parametrize(
    "arguments",
    [
        ["-s", "/sp", "-n", "--claim-mode", "claim", "-p", "7", "--fork", "twin", "--suffix", "-b", "job.py",
         "-s", "x"],
        ["--fromSavepoint", "/sp", "--allowNonRestoredState", "--claimMode", "CLAIM", "--parallelism", "7", "--fork",
         "twin", "--suffix", "-b", "job.py", "-s", "x"],
        ["--from-savepoint", "/sp", "--allow-non-restored-state", "-rm", "CLAIM", "-p", "7", "--fork", "twin",
         "--suffix", "-b", "job.py", "-s", "x"],
    ],
    ids=["short", "Flink's", "others"],
)  # fmt: skip
def test_what_run_hands_over(run: Run, arguments: list[str]) -> None:
    seen = run(*arguments)
    restore_id = seen.pop("restore_id")
    assert len(restore_id) == 32
    assert int(restore_id, 16)
    assert seen == {
        "path": "/sp", "allow_non_restored": True, "claim": "claim", "fork_name": "twin", "fork_suffix": "-b",
        "arguments": ["-s", "x"], "parallelism": {"spark.sql.shuffle.partitions": "7"},
    }  # fmt: skip


def test_each_run_from_a_savepoint_is_a_wish_of_its_own(run: Run) -> None:
    assert run("-s", "/sp", "job.py")["restore_id"] != run("-s", "/sp", "job.py")["restore_id"]


def test_flinks_older_names(monkeypatch: pytest.MonkeyPatch) -> None:
    older = {
        "execution.savepoint.path": "/sp", "execution.savepoint.ignore-unclaimed-state": "true",
        "execution.savepoint-restore-mode": "CLAIM",
    }  # fmt: skip
    assert given(monkeypatch, older) == Recovery("/sp", True, "claim")


@pytest.mark.parametrize("text", ["claim", "CLAIM", "no_claim", "NO-CLAIM"])
def test_claim_modes(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    claim = given(monkeypatch, {"execution.state-recovery.claim-mode": text}).claim
    assert claim == text.lower().replace("-", "_")


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"execution.state-recovery.claim-mode": "legacy"}, "neither claim nor no_claim"),
        ({"execution.state-recovery.claim-mode": "mine"}, "neither claim nor no_claim"),
        ({"execution.state-recovery.path": " "}, "is empty"),
        ({"penstock.restore.id": "7"}, "32 hexadecimal digits"),
        ({"penstock.fork.suffix": "a b"}, "cannot end the name"),
        ({"penstock.fork.name": "a/b"}, "cannot be a name of a fork"),
        ({"execution.state-recovery.pth": "/sp"}, "there is no such setting"),
        ({"rest.prt": "1"}, "there is no such setting"),
        ({"rest.port": "70000"}, "is not a port"),
    ],
)
def test_what_is_refused(monkeypatch: pytest.MonkeyPatch, values: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        given(monkeypatch, values)
    assert said in refused.value.happened
    assert refused.value.to_do


@pytest.mark.parametrize("left_out", ["penstock.fork.name", "penstock.fork.suffix"])
def test_a_fork_is_whole(monkeypatch: pytest.MonkeyPatch, left_out: str) -> None:
    """Half a fork would write into the outputs of the job it comes from."""
    whole = {"penstock.fork.name": "twin", "penstock.fork.suffix": "-b"}  # from its sources; or from a savepoint
    assert given(monkeypatch, {"execution.state-recovery.path": "/sp", **whole}).path == "/sp"
    assert given(monkeypatch, whole).fork_name == "twin"
    del whole[left_out]
    with pytest.raises(ConfigurationError) as refused:
        given(monkeypatch, whole)
    assert f"without {left_out}" in refused.value.happened
