"""What is published works: the sdist has all that it should, a wheel is built from it, and the wheel, in an environment
of its own, has every public name and explains a job.

`make dist` sets DIST to the folder of its wheel and sdist, and lets pip install the wheel with its dependencies.
Otherwise they are built here, and the environment sees the packages of this one: the same code runs, without network.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

import penstock

ROOT = Path(__file__).parents[2]
NAMES = "import penstock; print(penstock.__file__); [getattr(penstock, name) for name in penstock.__all__]"
KINDS = {".py", ".md", ".json", ".toml", ".svg", ".arrow", ".gz", ".yml", ".java"}


def run(command: Sequence[str | Path], folder: Path, more: Mapping[str, str] | None = None) -> str:
    kept = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYSPARK_PYTHON")}
    done = subprocess.run(
        command, cwd=folder, env={**kept, **(more or {})}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def build(source: Path, target: str, into: Path) -> Path:
    path = os.pathsep.join(filter(None, sys.path))
    command = [sys.executable, "-m", "hatchling", "build", "--directory", str(into), "--target", target]
    run(command, source, {"PYTHONPATH": path})
    [made] = into.glob("*.tar.gz" if target == "sdist" else "*.whl")
    return made


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sdist, unpacked."""
    if given := os.environ.get("DIST"):
        [made] = Path(given).glob("*.tar.gz")
    else:
        made = build(ROOT, "sdist", tmp_path_factory.mktemp("sdist"))
    folder = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(made) as archive:
        archive.extractall(folder, filter="data")
    return folder / made.name.removesuffix(".tar.gz")


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    if given := os.environ.get("DIST"):
        [made] = Path(given).glob("*.whl")
        return made
    return build(sdist, "wheel", tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` of an environment that has the wheel."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, symlinks=True)
    whole = "DIST" in os.environ
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python"), "install", "--quiet"]
    run([*pip, *([f"{wheel}[jdk]"] if whole else ["--no-deps", "--no-index", str(wheel)])], folder)
    if not whole:
        [packages] = folder.glob("lib/python*/site-packages")
        # A folder named in a .pth file is looked into last, and its own .pth files are not: nothing of this project's.
        (packages / "neighbours.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder / "bin"


def test_the_sdist_has_all_that_is_needed_to_try_it(sdist: Path) -> None:
    for name in ("LICENSE", "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "Makefile", "uv.lock", "mkdocs.yml"):
        assert (sdist / name).is_file(), name
    for folder in ("src", "tests", "docs", "examples", "bench", "deploy"):
        here, there = ({path.relative_to(root) for path in (root / folder).rglob("*.*")} for root in (ROOT, sdist))
        assert {path for path in here - there if path.suffix in KINDS} == set()


def test_the_wheel_has_the_package_and_what_it_reads(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert {name.split("/")[0] for name in names} == {"penstock", f"penstock-{penstock.__version__}.dist-info"}
    source = ROOT / "src"
    here = {
        str(path.relative_to(source))
        for path in (source / "penstock").rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    assert here <= names
    assert f"penstock-{penstock.__version__}.dist-info/licenses/LICENSE" in names


def test_every_public_name_is_there(environment: Path, tmp_path: Path) -> None:
    found = run([environment / "python", "-c", NAMES], tmp_path).strip()
    assert Path(found).is_relative_to(environment.parent)


def test_the_command_works(environment: Path, sdist: Path, tmp_path: Path) -> None:
    assert penstock.__version__ in run([environment / "penstock", "--version"], tmp_path)
    example = sdist / "examples" / "generator_to_files.py"
    folders = {"CHECKPOINTS": str(tmp_path / "checkpoints"), "ARCHIVE": str(tmp_path / "out")}
    told = run([environment / "penstock", "explain", str(example), "--json"], tmp_path, folders)
    assert [(one["link"], one["guarantee"]) for one in json.loads(told)] == [
        (link, "exactly-once") for link in ("source", "engine", "sink")
    ]
