"""What the text of a failed task says about the machine it ran on: another Python, or a package that is not there.

Spark reports such a failure as a stack trace of the first thing that a Python worker does.
"""

from __future__ import annotations

import re

from penstock.errors import ExecutorMismatch

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
