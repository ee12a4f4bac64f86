"""What counts as an effect, and whose it is."""

from __future__ import annotations

import os
import sys
from types import FunctionType
from typing import Any

import pytest

from penstock.drill.effects import CHANGES, CONNECTS, effect_of, own_function

pytestmark = pytest.mark.unit

PROGRAM = "/home/user/jobs/"


@pytest.mark.parametrize(
    ("event", "arguments", "effect"),
    [
        ("open", ("/tmp/sent", "a", os.O_WRONLY | os.O_APPEND), (CHANGES, "writes /tmp/sent")),
        ("open", (b"/tmp/sent", None, os.O_RDWR), (CHANGES, "writes /tmp/sent")),
        ("open", ("/tmp/sent", "r", os.O_RDONLY), None),
        ("open", ("/dev/null", "w", os.O_WRONLY), None),
        ("open", (3, "w", os.O_WRONLY), None),
        ("os.remove", ("/tmp/sent", -1), (CHANGES, "removes /tmp/sent")),
        ("http.client.send", (None, b"POST /alert HTTP/1.1\r\n"), (CHANGES, "sends a POST request")),
        ("http.client.send", (None, b"GET /alert HTTP/1.1\r\n"), None),
        ("http.client.send", (None, b"POSTED"), None),
        ("socket.connect", (None, ("db", 5432)), (CONNECTS, "calls ('db', 5432)")),
        ("import", ("json", None), None),
    ],
)
def test_what_is_an_effect(event: str, arguments: tuple[Any, ...], effect: object) -> None:
    assert effect_of(event, arguments) == effect


def called_through(*frames: tuple[str, str]) -> str | None:
    """What `own_function` says inside functions of these modules and files, the outermost first."""
    function: Any = lambda: own_function(sys._getframe(1), PROGRAM)  # noqa: E731
    for number, (module, file) in enumerate(reversed(frames)):
        names: dict[str, Any] = {"__name__": module, "inner": function}
        exec(compile(f"def f{number}():\n    return inner()", file, "exec"), names)
        function = names[f"f{number}"]
    assert isinstance(function, FunctionType)
    return function()


ENGINE, WORKER = ("penstock.engine.preparation", "/site/engine.py"), ("pyspark.worker", "/site/worker.py")
OWN, HTTP = ("__main__", f"{PROGRAM}job.py"), ("http.client", "/lib/client.py")


@pytest.mark.parametrize("caller", [ENGINE, WORKER])
def test_a_function_of_the_program_is_named_also_through_a_library(caller: tuple[str, str]) -> None:
    assert called_through(caller, OWN) == "f0"
    assert called_through(caller, OWN, HTTP) == "f1"


@pytest.mark.parametrize(
    "frames",
    [
        (OWN,),  # the program itself, before the job runs
        (OWN, ENGINE),  # the engine, which the program has called
        (ENGINE, OWN, ENGINE),  # what the engine does for a function
        (WORKER, OWN, ("importlib._bootstrap", "<frozen>")),
        (WORKER, OWN, ("tempfile", "/lib/tempfile.py")),
        (WORKER, ("library", f"{PROGRAM}.venv/lib/site-packages/library.py")),
    ],
)
def test_what_is_not_a_function_s_own(frames: tuple[tuple[str, str], ...]) -> None:
    assert called_through(*frames) is None
