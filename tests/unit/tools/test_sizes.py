"""The house stays one that a newcomer can read: modules, functions and constructors keep to their size."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import penstock

PACKAGE = Path(penstock.__file__).parent
MOST_LINES_OF_A_MODULE = 500
MOST_LINES_OF_A_FUNCTION = 60
MOST_ARGUMENTS_OF_A_CONSTRUCTOR = 10

#: Constructors with more arguments, each of which says why in its class's docstring.
WITH_A_REASON = {"Coordinator"}


def modules() -> Iterator[tuple[str, str, ast.Module]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        yield str(path.relative_to(PACKAGE)), text, ast.parse(text)


def test_no_module_is_long() -> None:
    long = {name: len(text.splitlines()) for name, text, _ in modules()}
    assert {name: lines for name, lines in long.items() if lines > MOST_LINES_OF_A_MODULE} == {}


def test_no_function_is_long() -> None:
    long = {
        f"{name}::{node.name}": lines
        for name, _, tree in modules()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (lines := (node.end_lineno or 0) - node.lineno + 1) > MOST_LINES_OF_A_FUNCTION
    }
    assert long == {}


def test_no_constructor_takes_much_without_a_reason() -> None:
    found = {
        f"{name}::{kind.name}": count
        for name, _, tree in modules()
        for kind in ast.walk(tree)
        if isinstance(kind, ast.ClassDef) and kind.name not in WITH_A_REASON
        for node in kind.body
        if isinstance(node, ast.FunctionDef)
        and node.name == "__init__"
        and (count := len(node.args.args) + len(node.args.kwonlyargs) - 1) > MOST_ARGUMENTS_OF_A_CONSTRUCTOR
    }
    assert found == {}
