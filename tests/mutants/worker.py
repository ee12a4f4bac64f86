"""Tries every mutant of one module, in the folder that `trial.py` has prepared; the result goes into `result.json`.

mutmut does the work: it writes all mutants of a function beside it, learns which tests reach the function, and forks a
process a mutant which runs those and stops at the first that fails. What is added here:

* **More mutants.** A statement is left out, a condition is turned round, `==` and `!=` hold in one direction only,
  properties and context managers are mutated too. In a protocol the steps matter more than the numbers.
* **Fewer idle ones.** Words of errors and logs, failpoints and asserts are no behaviour; of a string one mutant is
  enough; None in the place of False is none.
* **The quick tests first**, since one that fails ends it.
* **A time limit a test.** mutmut has one for all tests of a mutant together, and threads that wait for one another in
  vain would each take all of it.
* **An item's `_nodeid`**, which mutmut reads and newer versions of pytest do not have any more.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, cast

import libcst as cst
import libcst.matchers as m
import pytest
from _pytest import runner as pytest_runner
from mutmut import __main__ as mutmut
from mutmut.mutation import file_mutation, mutators
from mutmut.mutation.data import SourceFileMutationData
from mutmut.mutation.diff_apply import get_diff_for_mutant
from mutmut.runners.harness import PytestRunner
from mutmut.state import state
from mutmut.stats import status_by_exit_code
from mutmut.utils.format_utils import orig_function_and_class_names_from_key

_PROCESSES = int(os.environ.get("PROCESSES", "2"))
_TIMEOUT = 36  # mutmut's exit code for it
_LEAST_SECONDS, _TIMES = 5.0, 10  # a test may take that long, or so many times what it takes without a mutant

_DECORATORS = m.Name("property") | m.Attribute(m.Name("contextlib"), m.Name("contextmanager"))
_IDLE_CALLS = (
    m.Call(m.Attribute(m.Name("log")))
    | m.Call(m.Name("failpoint"))
    | m.Call(m.Attribute(attr=m.Name("naming") | m.Name("_named")))
    | m.Call(args=[m.ZeroOrMore(), m.Arg(keyword=m.Name("safe") | m.Name("to_do")), m.ZeroOrMore()])
    | m.Call(m.Attribute(m.Call(m.Name("super")), m.Name("__init__")), args=[m.Arg(m.FormattedString())])
)
_FALSE = m.Name("False") | m.Name("None") | m.Tuple([])
_IDLE_IFS = (
    m.If(test=m.Call(m.Name("active")) | m.BooleanOperation(left=m.Call(m.Name("active"))))
    | m.If(test=m.BooleanOperation(left=m.BooleanOperation(right=m.Call(m.Name("active")))))
    | m.If(body=m.IndentedBlock([m.AtLeastN(m.SimpleStatementLine([m.Expr(_IDLE_CALLS)]), n=1)]), orelse=None)
)


# More mutants


def leave_out(node: cst.BaseSmallStatement) -> Iterable[cst.BaseSmallStatement]:
    """A step that is not done; an error that is not raised; a return that goes on."""
    if isinstance(node, cst.Expr) and not m.matches(node.value, m.Call() | m.Yield() | m.Await()):
        return
    if isinstance(node, cst.Expr) and m.matches(node.value, _IDLE_CALLS):
        return
    if isinstance(node, cst.Return) and node.value is not None:
        return
    yield cst.Pass()


def turn_round(node: cst.If | cst.While | cst.CompIf) -> Iterable[cst.CSTNode]:
    """`if x` becomes `if not x`, where no operator stands that would be mutated anyway."""
    if not m.matches(node.test, m.Comparison() | m.BooleanOperation() | m.UnaryOperation()):
        test = node.test.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
        yield node.with_changes(test=cst.UnaryOperation(cst.Not(), test))


def one_direction(node: cst.ComparisonTarget) -> Iterable[cst.ComparisonTarget]:
    """What must be equal may be greater, or smaller."""
    if isinstance(node.operator, cst.NotEqual):
        yield node.with_changes(operator=cst.LessThan())
        yield node.with_changes(operator=cst.GreaterThan())
    elif isinstance(node.operator, cst.Equal):
        yield node.with_changes(operator=cst.LessThanEqual())
        yield node.with_changes(operator=cst.GreaterThanEqual())


def another_text(node: cst.BaseString) -> Iterable[cst.BaseString]:
    """The first of mutmut's three: other letters. Upper and lower case are caught by the same tests."""
    yield from list(mutators.operator_string(node))[:1]


def without_idle(operator: Any) -> Any:
    """mutmut's operator, less what puts one false value in the place of another."""

    def yielding(node: cst.CSTNode) -> Iterable[cst.CSTNode]:
        if isinstance(node, cst.Assign | cst.AnnAssign) and node.value and m.matches(node.value, _FALSE):
            return
        for mutated in operator(node):
            if isinstance(node, cst.Call) and isinstance(mutated, cst.Call) and len(node.args) == len(mutated.args):
                pairs = zip(node.args, mutated.args, strict=True)
                if any(one is not other and m.matches(one.value, _FALSE) for one, other in pairs):
                    continue
            yield mutated

    return yielding


def extend() -> None:
    """mutmut's list of operators is read where it stands, so it is changed there."""
    operators = cast("list[Any]", mutators.mutation_operators)
    ours = {
        mutators.operator_string: another_text,
        mutators.operator_assignment: without_idle(mutators.operator_assignment),
        mutators.operator_arg_removal: without_idle(mutators.operator_arg_removal),
    }
    operators[:] = [(kind, ours.get(operator, operator)) for kind, operator in operators]
    operators += [
        (cst.Expr, leave_out),
        (cst.Raise, leave_out),
        (cst.Return, leave_out),
        (cst.Del, leave_out),
        (cst.If, turn_round),
        (cst.While, turn_round),
        (cst.CompIf, turn_round),
        (cst.ComparisonTarget, one_direction),
    ]
    skip, arrange = file_mutation.MutationVisitor._skip_node_and_children, file_mutation.function_trampoline_arrangement

    def skip_idle(visitor: Any, node: cst.CSTNode) -> bool:
        if m.matches(node, _IDLE_CALLS | _IDLE_IFS | m.Assert()):
            return True
        if isinstance(node, cst.FunctionDef) and _unwrapped(node) is not node:
            return False
        return bool(skip(visitor, node))

    def arrange_decorated(function: cst.FunctionDef, mutants: Any, class_name: str | None) -> Any:
        before, nodes, after, names = arrange(function, mutants, class_name)
        return before, [nodes[0], *(_unwrapped(node) for node in nodes[1:])], after, names

    file_mutation.MutationVisitor._skip_node_and_children = skip_idle  # type: ignore[assignment,method-assign]
    file_mutation.function_trampoline_arrangement = arrange_decorated


def _unwrapped(function: Any) -> Any:
    """Without the decorator that the function which chooses between the mutants carries already."""
    if len(function.decorators) == 1 and m.matches(function.decorators[0].decorator, _DECORATORS):
        return function.with_changes(decorators=[])
    return function


# The run


def arguments(runner: PytestRunner, tests: Iterable[str]) -> list[str]:
    """For pytest, in the process that runs it: the quick tests first, and a folder for temporary files of its own.
    Processes that tidy up one folder side by side stumble over each other, and that must not pass for a catch."""
    own = Path.cwd() / "tmp" / str(os.getpid())
    own.mkdir(parents=True, exist_ok=True)
    os.environ["PYTEST_DEBUG_TEMPROOT"] = str(own)
    known = state().duration_by_test
    chosen = sorted(tests, key=lambda test: (known.get(test, 0.0), test))
    return ["-x", "-q", *(chosen or runner._pytest_add_cli_args_test_selection)]


def limit_tests() -> None:
    """End a mutant's process when a test takes far longer than it did without one. This process learns how long."""
    protocol, learning = pytest_runner.runtestprotocol, os.getpid()

    def limited(item: pytest.Item, *args: Any, **more: Any) -> Any:
        if os.getpid() != learning:
            usual = state().duration_by_test.get(item.nodeid, 0.0)
            signal.setitimer(signal.ITIMER_REAL, max(_LEAST_SECONDS, usual * _TIMES))
        try:
            return protocol(item, *args, **more)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)

    signal.signal(signal.SIGALRM, lambda *_: os._exit(_TIMEOUT))
    pytest_runner.runtestprotocol = limited


def results(module: str) -> Iterator[dict[str, Any]]:
    data = SourceFileMutationData(path=Path(module))
    data.load()
    for name, code in data.exit_code_by_key.items():
        function, owner = orig_function_and_class_names_from_key(name)
        changed = [
            line[0] + line[1:].strip()
            for line in get_diff_for_mutant(name, path=Path(module)).splitlines()
            if line[:1] in ("-", "+") and line[:3] not in ("---", "+++")
        ]
        yield {
            "function": f"{owner}.{function}" if owner else function,
            "status": status_by_exit_code[code],
            "removed": " ".join(line[1:] for line in changed if line[0] == "-"),
            "added": " ".join(line[1:] for line in changed if line[0] == "+"),
        }


def main() -> None:
    [module] = sys.argv[1:]
    started = time.monotonic()
    extend()
    pytest.Item._nodeid = property(lambda item: item.nodeid)  # type: ignore[attr-defined]
    PytestRunner._pytest_args_regular_run = arguments  # type: ignore[assignment,method-assign]
    limit_tests()
    mutmut._run((), _PROCESSES)
    found = list(results(module))
    Path("result.json").write_text(json.dumps({"seconds": time.monotonic() - started, "mutants": found}))


if __name__ == "__main__":
    main()
