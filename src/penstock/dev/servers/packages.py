"""Bringing a server program from the system's packages, for root on Debian."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Mapping

_INSTALL_SECONDS = 300.0
_APT = ("apt-get", "-o", "DPkg::Lock::Timeout=120")

Run = Callable[[list[str], Mapping[str, str]], str]


def may_install() -> bool:
    return os.geteuid() == 0 and shutil.which("apt-get") is not None


def install(packages: list[str], there: Callable[[], object], run: Run) -> str:
    """Install until `there` finds something; the end of what the last command said."""
    # In runlevel 1 a package does not start a server of its own.
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    command = [*_APT, "install", "-y", "--no-install-recommends", *packages]
    said = run(command, environment)
    if there() is None:  # the lists of packages may be old, or were never fetched
        run([*_APT, "update"], environment)
        said = run(command, environment)
    return said


def run(command: list[str], environment: Mapping[str, str]) -> str:
    """The end of what a command printed."""
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL,
            timeout=_INSTALL_SECONDS, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    lines = (done.stdout + done.stderr).strip().splitlines()
    return lines[-1] if lines else f"exit status {done.returncode}"
