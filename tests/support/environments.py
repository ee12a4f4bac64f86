"""Environments with other versions of Spark and Python, made once and kept in the user's cache.

All else in them is what the lock says, so that a difference is Spark's, or Python's.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from penstock.naming import user_cache
from penstock.storage.local import only_one

ROOT = Path(__file__).parents[2]
_READY = "ready"  # written last


def environment(spark: str, python: str = sys.executable) -> Path:
    """The Python of an environment with that PySpark; made where there is none. `python`: a path, or a version that uv
    finds on this machine. Checkouts that have the same Python and the same lock share it."""
    return _made(f"spark-{spark}", [*_without_spark(), f"pyspark=={spark}"], python)


def thin_client(spark: str) -> Path:
    """The same with `pyspark-client` and what it needs alone: no Java, no jars, and no Penstock."""
    return _made(f"client-{spark}", [f"pyspark-client=={spark}"], sys.executable, constraints=_without_spark())


def _made(name: str, wanted: list[str], python: str, constraints: Sequence[str] = ()) -> Path:
    python = str(Path(python).resolve()) if os.path.isabs(python) else python
    digest = hashlib.sha256("\n".join([*wanted, *constraints, python]).encode()).hexdigest()[:8]
    folder = user_cache() / "environments" / f"{name}-{digest}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with only_one(folder.with_suffix(".lock")):
        if not (folder / _READY).is_file():
            shutil.rmtree(folder, ignore_errors=True)
            folder.parent.mkdir(parents=True, exist_ok=True)
            _uv("venv", "--quiet", "--python", python, str(folder))
            listed, bounds = folder / "locked.txt", folder / "constraints.txt"
            bounds.write_text("\n".join(constraints))
            listed.write_text("\n".join([f"-c {bounds}", *wanted]))
            _install(folder / "bin" / "python", listed)
            (folder / _READY).touch()
    return folder / "bin" / "python"


def _without_spark() -> list[str]:
    return [line for line in _locked() if not re.match(r"pyspark\W", line)]


def variables(python: Path) -> dict[str, str]:
    """What a process of that environment must find set, to run this checkout."""
    return {**os.environ, "PYSPARK_PYTHON": str(python), "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}


def another_python() -> str | None:
    """An interpreter of this machine with another minor version than this one's, if it has any: on the path, or
    installed beside this one."""
    names = [f"python3.{minor}" for minor in range(11, 15) if minor != sys.version_info.minor]
    beside = Path(sys.base_prefix).parent
    found = [str(path) for name in names for path in beside.glob(f"*/bin/{name}")]
    for program in [*found, *filter(None, map(shutil.which, names))]:
        with contextlib.suppress(CommandFailed):  # a name on the path need not lead to a program
            _run([program, "-c", ""])
            return program
    return None


def _locked() -> list[str]:
    told = _uv("export", "--quiet", "--frozen", "--all-extras", "--no-emit-project", "--no-hashes", "--no-annotate")
    return [line for line in told.splitlines() if line and not line.startswith("#")]


def _install(python: Path, listed: Path) -> None:
    """uv does not read pip's settings; where only pip's way leads to a package index, pip installs the same list."""
    wanted = ["--quiet", "-r", str(listed)]
    try:
        _uv("pip", "install", "--python", str(python), *wanted)
    except CommandFailed:
        _run([sys.executable, "-m", "pip", "--python", str(python), "install", "--disable-pip-version-check", *wanted])


def _uv(*arguments: str) -> str:
    uv = Path(sys.executable).with_name("uv")
    return _run([str(uv) if uv.exists() else "uv", *arguments])


class CommandFailed(Exception):
    """With what the command wrote about it."""


def _run(command: list[str]) -> str:
    # Compiled when it is first imported: most of what is installed is not.
    own = {**os.environ, "UV_PYTHON_DOWNLOADS": "never", "UV_COMPILE_BYTECODE": "0"}
    own.pop("UV_PROJECT_ENVIRONMENT", None)
    own.pop("VIRTUAL_ENV", None)
    done = subprocess.run(command, cwd=ROOT, env=own, capture_output=True, text=True)
    if done.returncode != 0:
        raise CommandFailed(f"{' '.join(command)}\n{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    from penstock.supply.versions import VERSIONS

    environment(VERSIONS[0].patch)
