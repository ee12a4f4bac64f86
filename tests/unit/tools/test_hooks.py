"""What is checked before a commit is what `make lint` and `make typecheck` check."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[3]


def hooks() -> dict[str, dict[str, Any]]:
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    return {hook["id"]: hook for repository in config["repos"] for hook in repository["hooks"]}


def commands(target: str) -> list[str]:
    """What a target of the Makefile runs from .venv."""
    recipe = re.search(rf"^{target}:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.M)
    assert recipe is not None
    return re.findall(r"^\t\$\(BIN\)/(.*?)(?: \.)?$", recipe[1], re.M)


def test_every_check_of_make_is_a_hook() -> None:
    checked = [*commands("lint"), *commands("typecheck")]
    entries = [hook["entry"] for hook in hooks().values() if hook["language"] == "system"]
    assert [entry.removeprefix(".venv/bin/").replace(" --force-exclude", "") for entry in entries] == checked


@pytest.mark.parametrize(
    ("message", "refused"),
    [("x" * 71, False), ("x" * 72, True), ("short\n\n" + "x" * 100, False), ("é" * 71 + "\n", False)],
)
def test_a_commit_subject_is_short(message: str, refused: bool) -> None:
    hook = hooks()["commit-subject"]
    assert hook["args"] == ["--multiline"]
    assert bool(re.compile(hook["entry"], re.M | re.S).search(message)) == refused
