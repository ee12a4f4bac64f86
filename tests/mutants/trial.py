"""One module's trial: a folder for mutmut, a process of its own, and what came of each mutant."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
PACKAGE = "src/penstock"

_WORKER = Path(__file__).with_name("worker.py")
_CAUGHT = ("killed", "timeout")
_SETTINGS = """
[tool.mutmut]
source_paths = ["src"]
only_mutate = [{module}]
pytest_add_cli_args_test_selection = [{tests}]
pytest_add_cli_args = ["-p", "no:cacheprovider", "-p", "no:xdist"]
timeout_constant = 2.0
timeout_multiplier = 3.0
use_git_change_detection = false
track_dependencies = false
"""


@dataclass(frozen=True, slots=True)
class Mutant:
    """`removed` and `added` are what changed of the function, without indentation: they outlive other changes."""

    module: str
    function: str
    removed: str
    added: str
    status: str

    @property
    def caught(self) -> bool:
        return self.status in _CAUGHT

    def __str__(self) -> str:
        return f"{self.module}: {self.function} ({self.status})\n    - {self.removed}\n    + {self.added}"


@dataclass(frozen=True, slots=True)
class Trial:
    module: str
    mutants: tuple[Mutant, ...]
    seconds: float


class TrialFailed(Exception):
    """mutmut could not even begin: the tests fail without a mutant, or do not reach the module."""


def try_module(module: str, tests: Sequence[str], *, repository: Path = REPOSITORY, package: str = PACKAGE) -> Trial:
    """Every mutant of `module`, a path inside the package, against `tests`, paths inside the repository."""
    with tempfile.TemporaryDirectory(prefix="mutants-") as name:
        folder = Path(name)
        for part in ("src", "tests"):
            (folder / part).symlink_to(repository / part)
        path = f"{package}/{module}"
        settings = _SETTINGS.format(module=json.dumps(path), tests=", ".join(map(json.dumps, tests)))
        (folder / "pyproject.toml").write_text((repository / "pyproject.toml").read_text() + settings)
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        done = subprocess.run(
            [sys.executable, str(_WORKER), path],
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        try:
            found = json.loads((folder / "result.json").read_text())
        except FileNotFoundError:
            # Between the carriage returns mutmut turns a wheel for people who watch.
            said = "\n".join(line.rpartition("\r")[2] for line in done.stdout.split("\n"))[-4000:]
            raise TrialFailed(f"{module}: mutmut ended with {done.returncode}\n{said}") from None
    return Trial(module, tuple(Mutant(module, **one) for one in found["mutants"]), found["seconds"])
