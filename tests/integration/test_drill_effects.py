"""What functions of a program do in processes of its own, as a drill notes it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from penstock.drill import effects

PROGRAM = """
import http.client, logging, os, socket, subprocess, sys, tempfile

def reads():
    open(__file__).close()

def appends():
    open(FOLDER + "/sent.txt", "a").close()
    open(FOLDER + "/sent.txt", "a").close()

def removes():
    os.remove(FOLDER + "/sent.txt")

def temporary():
    tempfile.TemporaryFile("w").close()

def logs():
    logging.FileHandler(FOLDER + "/log.txt").close()

def imports():
    import neighbour

def posts():
    connection = http.client.HTTPConnection("127.0.0.1", 9)
    connection.sock = Deaf()
    connection.request("POST", "/", b"{}")

def gets():
    connection = http.client.HTTPConnection("127.0.0.1", 9)
    connection.sock = Deaf()
    connection.request("GET", "/")

def connects():
    with socket.socket() as connection:
        connection.settimeout(0.1)
        try:
            connection.connect(("127.0.0.1", 9))
        except OSError:
            pass

def runs():
    subprocess.run([sys.executable, "-V"], stdout=subprocess.DEVNULL)

class Deaf:
    def sendall(self, data):
        pass

FOLDER = sys.argv[1]
open(FOLDER + "/of_the_program.txt", "w").close()
engine = {"__name__": "penstock.engine.preparation"}
exec("def call(function):\\n    function()", engine)
for name in sys.argv[2:]:
    engine["call"](globals()[name])
reads(), appends()
"""


def noted(folder: Path, *functions: str) -> list[tuple[str, str]]:
    program, file = folder / "program" / "job.py", folder / "effects.jsonl"
    program.parent.mkdir()
    program.write_text(PROGRAM)
    (program.parent / "neighbour.py").write_text("")
    environment = {**os.environ, "PYTHONPATH": effects.hook_into(folder / "hook", file, program)}
    subprocess.run([sys.executable, str(program), str(folder), *functions], env=environment, check=True)
    lines = file.read_text().splitlines() if file.exists() else []
    return [(note["function"], note["kind"]) for note in map(json.loads, lines)]


def test_what_a_function_of_the_program_changes_is_noted_once(tmp_path: Path) -> None:
    assert noted(tmp_path, "appends", "removes") == [("appends", effects.CHANGES), ("removes", effects.CHANGES)]


def test_what_changes_nothing_or_is_a_library_s_own_is_not_noted(tmp_path: Path) -> None:
    assert noted(tmp_path, "reads", "temporary", "logs", "imports") == []


def test_a_request_that_changes_something_is_told_from_one_that_asks(tmp_path: Path) -> None:
    assert noted(tmp_path, "posts", "gets") == [("posts", effects.CHANGES)]


def test_what_cannot_be_known_is_noted_as_a_connection(tmp_path: Path) -> None:
    assert {kind for _, kind in noted(tmp_path, "connects", "runs")} == {effects.CONNECTS}
