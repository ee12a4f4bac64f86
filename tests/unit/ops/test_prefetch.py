"""What is imported while Java starts: what a start needs, all of which exists; nothing that goes wrong matters."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

from penstock.kafka.connections import kafka_python
from penstock.ops import prefetch


def test_every_name_is_a_module() -> None:
    kafka_python()  # which knows of a warning in there
    for name in {*prefetch.LATER, *prefetch.FOR, *(one for names in prefetch.FOR.values() for one in names)}:
        assert importlib.util.find_spec(name) is not None, name


def test_what_cannot_be_imported_is_passed_over() -> None:
    prefetch.fetch(["penstock.no_such_module", "colorsys"])
    assert "colorsys" in sys.modules


def test_clients_are_loaded_for_those_that_use_them() -> None:
    """In a process of its own: this one has loaded everything."""
    program = """
import sys, threading
from penstock.ops import prefetch
{first}
prefetch.begin()
for thread in threading.enumerate():
    if thread.name == "penstock-prefetch":
        thread.join()
print("kafka.admin" in sys.modules, "uvicorn" in sys.modules)
"""
    for first, expected in (("", "False True"), ("from penstock import KafkaSink", "True True")):
        command = [sys.executable, "-c", program.format(first=first)]
        assert subprocess.check_output(command, text=True).strip() == expected
