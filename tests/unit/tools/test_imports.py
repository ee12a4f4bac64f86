"""The rooms' contract in pyproject.toml finds what it forbids, also inside functions and for types alone."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
LINT = "from importlinter.cli import lint_imports_command; lint_imports_command()"


def lint(source: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", LINT, "--config", str(ROOT / "pyproject.toml"), "--no-cache", "--no-logo"],
        cwd=source,  # looked at before everything that is installed
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(source), *sys.path])},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture
def house(tmp_path: Path) -> Path:
    ignored = shutil.ignore_patterns("__pycache__", "*.json")
    shutil.copytree(ROOT / "src" / "penstock", tmp_path / "penstock", ignore=ignored)
    return tmp_path


def add(house: Path, module: str, code: str) -> None:
    path = house / "penstock" / module
    path.write_text((path.read_text() if path.exists() else "") + "\n" + code)


def test_every_room_imports_downward_only() -> None:
    done = lint(ROOT / "src")
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_forbidden_import_is_found_wherever_it_stands(house: Path) -> None:
    add(house, "storage/__init__.py", "def late() -> None:\n    import penstock.cli.main\n")
    add(house, "errors.py", "import typing\nif typing.TYPE_CHECKING:\n    from penstock.checkpoint import ledger\n")
    add(house, "naming.py", "from penstock import failpoints\n")
    add(house, "sinks/kafka/__init__.py", "import penstock.sinks.redis.sink\n")
    done = lint(house)
    assert done.returncode == 1, done.stdout + done.stderr
    for line in (
        "penstock.storage is not allowed to import penstock.cli",
        "penstock.errors is not allowed to import penstock.checkpoint",
        "penstock.naming is not allowed to import penstock.failpoints",
        "penstock.sinks.kafka is not allowed to import penstock.sinks.redis",
    ):
        assert line in done.stdout


def test_a_module_that_has_no_place_is_found(house: Path) -> None:
    add(house, "attic.py", "")
    add(house, "sinks/attic.py", "")
    done = lint(house)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "penstock.attic" in done.stdout
    assert "penstock.sinks.attic" in done.stdout
