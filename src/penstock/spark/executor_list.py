"""What the text of a failed task says: the Penstock error that the task raised, or what is wrong with the machine it
ran on, such as another Python or a missing package.

Spark reports a failed task as text: a stack trace of the exception, or of the first thing that a Python worker does.
"""

from __future__ import annotations

import contextlib
import re

from penstock.errors import ExecutorMismatch, PenstockError, from_json

_MISSING = re.compile(r"No module named '?(?P<name>\w+)|Error while finding module specification for '(?P<spec>\w+)")
#: Where a worker fails before a job's own code runs: it reads what it is to do, or is not even started.
_READING = re.compile(r"in _read_with_length|in read_command|in read_udfs|Error from python worker|runpy\.py")
_PYTHON = re.compile(r"PYTHON_VERSION_MISMATCH\]\s*(?P<said>[^\n]*)")
#: Not there, not for this machine, or not to be run: no memory for it, for one, is another matter.
_PROGRAM = re.compile(r'Cannot run program "(?P<program>[^"\n]{0,500}+)"[^\n]{0,500}?(?:error=|error: )(?:2|8|13)\b')

_SAFE = "no row was written by it, and nothing is decided."
_SHIP = (
    "ship this very environment: penstock run --master … does, and penstock pack builds the archive for spark-submit."
)

_BEGIN, _END = "penstock-task-error {", "} end-of-penstock-task-error"


class TaskFault(Exception):
    """Carries a Penstock error through Spark's text-only reporting of task failures."""

    def __init__(self, error: PenstockError) -> None:
        super().__init__(f"{_BEGIN[:-1]}{error.to_json()}{_END[1:]}")


def fault_in(text: str) -> PenstockError | None:
    """The Penstock error inside a Spark failure's text, if a task raised one, or could not even begin."""
    begin = text.find(_BEGIN)
    end = text.find(_END, begin) if begin >= 0 else -1
    if end < 0:
        return mismatch_in(text)
    with contextlib.suppress(ValueError):
        return from_json(text[begin + len(_BEGIN) - 1 : end + 1])
    return None


def mismatch_in(text: str) -> ExecutorMismatch | None:
    """The error that names what is wrong with an executor, if the text of Spark's says that something is."""
    if found := _PYTHON.search(text):
        said = found["said"].strip().rstrip(".")
        return mismatch(f"An executor's Python is not the driver's: {said}.")
    if (found := _PROGRAM.search(text)) and "python" in found["program"]:
        return mismatch(f"An executor has no Python where it was told to look for it: {found['program']}.")
    found = _MISSING.search(text)
    if found is not None and ((name := found["name"] or found["spec"]) == "penstock" or _READING.search(text)):
        whose = "the package penstock" if name == "penstock" else f"the module {name!r}, which the job needs"
        return mismatch(f"An executor lacks {whose}.")
    return None


def mismatch(happened: str) -> ExecutorMismatch:
    return ExecutorMismatch(happened, safe=_SAFE, to_do=f"install the same on every worker, or {_SHIP}")
