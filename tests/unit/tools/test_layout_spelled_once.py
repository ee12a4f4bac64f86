"""Names on disk are spelled in `checkpoint/layout.py`, and nowhere else in the package."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock

PACKAGE = Path(penstock.__file__).parent

#: As a whole literal or as a part of a path.
ALWAYS = r"offsets|commits|_penstock"
#: Words that mean other things as well: as a part of a path only.
IN_PATHS = (
    r"sources|state|spark|metadata|ledger|inflight|checkpoints|restores|global|queries|deleting|generations|claims|"
    r"epochs|begun|rulings|probe|backlog|drained|logs|_metadata"
)
SPELLED = re.compile(rf"^({ALWAYS})$|(^|/)({ALWAYS}|{IN_PATHS})/|/({ALWAYS}|{IN_PATHS})$|(^|[/-])chk-")

#: Literals that look like such names and are none.
OTHERS = {
    ("checkpoint/ledger.py", "offsets"): "a field of a manifest",
    ("sinks/tables/iceberg_mark.py", "commits"): "a counter in a table's properties",
    ("sinks/tables/iceberg.py", "commits"): "a counter in a table's properties",
    ("ops/server/flink.py", "{}/checkpoints"): "an address of the REST interface",
    ("ops/server/flink.py", "{}/checkpoints/config"): "an address of the REST interface",
    ("ops/server/flink.py", "{}/checkpoints/details/{number}"): "an address of the REST interface",
    ("ops/server/commands.py", "{}/checkpoints"): "an address of the REST interface",
    ("ops/server/own.py", "{}/epochs"): "an address of the REST interface",
    ("ops/process/registry.py", ".local/state"): "a user's folder, as XDG names it",
    ("cli/jobs.py", "/jobs/{}/checkpoints"): "an address of the REST interface",
}


def literals(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Every text in the code that is no docstring, with `{}` for what is filled in."""
    docstrings: set[int] = set()
    inner: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            docstrings.add(id(node.value))
        if isinstance(node, ast.JoinedStr):
            inner.update(id(part) for part in node.values if isinstance(part, ast.Constant))
            parts = [str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values]
            yield node.lineno, "".join(parts)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings | inner:
            yield node.lineno, node.value


def is_prose(text: str) -> bool:
    return " " in text


def test_nobody_else_spells_the_layout() -> None:
    found, needed = [], set()
    for path in sorted(PACKAGE.rglob("*.py")):
        module = path.relative_to(PACKAGE).as_posix()
        if module == "checkpoint/layout.py":
            continue
        for line, text in literals(ast.parse(path.read_text())):
            if is_prose(text) or not SPELLED.search(text):
                continue
            if (module, text) in OTHERS:
                needed.add((module, text))
            else:
                found.append(f"{module}:{line}: {text!r}")
    assert not found, "these names belong into checkpoint/layout.py:\n" + "\n".join(found)
    assert needed == OTHERS.keys(), "an exception is no longer needed"


@pytest.mark.parametrize(
    "text", ["offsets", "offsets/{}", "{}/commits", "{}/chk-{}.json", "state/{}/0", "_penstock/{}", "{}/ledger", "chk-"]
)
def test_what_counts_as_spelled(text: str) -> None:
    assert SPELLED.search(text)


@pytest.mark.parametrize("text", ["state", "sources", "offset", "commits_per_second", "statement/{}", "penstock-{}"])
def test_what_does_not(text: str) -> None:
    assert not SPELLED.search(text)
