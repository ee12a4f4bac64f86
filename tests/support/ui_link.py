"""What `penstock ui --json` says when it is up."""

from __future__ import annotations

import json
import subprocess


def link_of(process: subprocess.Popen[str]) -> str:
    """The link with the one-time code, of a process whose stdout is a pipe."""
    assert process.stdout is not None
    text = ""
    while not text.rstrip().endswith("}"):
        text += process.stdout.readline()
    return str(json.loads(text)["link"])
