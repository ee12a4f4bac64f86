"""The code stays readable for a newcomer: the package, its functions and its constructors keep to their size."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from scripts import draw_modules

import penstock

PACKAGE = Path(penstock.__file__).parent
MOST_LINES_OF_A_FUNCTION = 60
MOST_ARGUMENTS_OF_A_CONSTRUCTOR = 10

#: Constructors with more arguments, each of which says why in its class's docstring.
WITH_A_REASON = {"Coordinator", "KafkaSource"}


def modules() -> Iterator[tuple[str, str, ast.Module]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        yield str(path.relative_to(PACKAGE)), text, ast.parse(text)


def test_the_package_keeps_to_its_budget() -> None:
    line, over = draw_modules.over_budget(draw_modules.read_house(), draw_modules.read_budget())
    assert not over, line


def test_a_package_above_its_budget_is_found() -> None:
    house = draw_modules.read_house()
    assert draw_modules.over_budget(house, {"modules": len(house.modules) - 1, "lines": 10**6})[1]
    assert draw_modules.over_budget(house, {"modules": 10**6, "lines": house.lines_of(house.modules) - 1})[1]


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
