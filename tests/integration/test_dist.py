"""What is published works: the sdist has all that it should, a wheel is built from it, and the wheel, in an environment
of its own, has every public name and explains a job.

`make dist` sets DIST to the folder of its wheel and sdist, and lets pip install the wheel with its dependencies.
Otherwise they are built here, and the environment sees the packages of this one: the same code runs, without network.

The commands that the first pages print run there, too, as printed.
"""

from __future__ import annotations

import json
import os
import re
import signal
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
from penstock.ops.process.registry import Registry, State
from tests.support.waiting import until

ROOT = Path(__file__).parents[2]
NAMES = "import penstock; print(penstock.__file__); [getattr(penstock, name) for name in penstock.__all__]"
KINDS = {".py", ".md", ".json", ".toml", ".svg", ".arrow", ".gz", ".yml", ".java"}


def without_checkout(more: Mapping[str, str] | None) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHONPATH", "PYSPARK_"))}
    return {**kept, **(more or {})}


def run(command: Sequence[str | Path], folder: Path, more: Mapping[str, str] | None = None) -> str:
    done = subprocess.run(command, cwd=folder, env=without_checkout(more), capture_output=True, text=True, check=False)
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
    assert {name.split("/")[0] for name in names} == {
            "penstock", "pyspark_penstock", f"penstock-{penstock.__version__}.dist-info",
        }  # fmt: skip
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


PAGES = ("README.md", *(f"docs/{name}.md" for name in ("index", "how-to/first-job", "how-to/existing-job")),
         *(f"docs/how-to/{name}.md" for name in ("kafka", "run", "see-a-job")))  # fmt: skip
NOT_RUN_HERE = {
    "make demo": "tests/faults/test_demo.py",
    "make test": "runs this",
    "pip install '.[kafka]'": "`make dist` installs with dependencies",
    "pip install '.[kafka,jdk]'": "`make dist` installs with dependencies",
    "spark-submit --master yarn job.py": "tests/faults/test_yarn.py",
    "penstock ui": "tests/unit/ops/server/test_ui.py",
}
WITH_COMMANDS = ("README.md", "docs/how-to/first-job.md", "docs/how-to/run.md", "docs/how-to/see-a-job.md")


def printed(sdist: Path, page: str) -> list[str]:
    """The commands in the page's blocks, without comments and output."""
    lines = []
    for kind, block in re.findall(r"^```(bash|console)\n(.*?)^```", (sdist / page).read_text(), re.M | re.S):
        shown = [line.removeprefix("$ ") for line in block.splitlines() if kind == "bash" or line.startswith("$ ")]
        lines += [line.partition("  #")[0].rstrip() for line in shown]
    return lines


def variables(environment: Path, home: Path) -> dict[str, str]:
    return {"PATH": f"{environment}{os.pathsep}{os.environ['PATH']}", "PENSTOCK_HOME": str(home)}


def example_lines(sdist: Path) -> list[str]:
    text = (sdist / "examples" / "kafka_to_kafka.py").read_text()
    return [
        line.strip() for line in text.split('"""')[1].splitlines() if line.startswith(("    penstock ", "    python "))
    ]


def test_the_kafka_example_runs_from_nothing_as_printed(environment: Path, sdist: Path, tmp_path: Path) -> None:
    """The four lines at the head of the example and in the docs, in a home and a cache of their own."""
    from penstock.supply.jars import jar_folder, jar_set

    up, *more = lines = example_lines(sdist)
    assert printed(sdist, "docs/how-to/kafka.md") == lines
    (tmp_path / "cache" / "jars").mkdir(parents=True)
    for name in ("kafka-broker", "spark-kafka"):
        jar_set(name)
        (tmp_path / "cache" / "jars" / jar_folder(name).name).symlink_to(jar_folder(name))
    folders = {"PENSTOCK_CACHE": str(tmp_path / "cache"), "CHECKPOINTS": str(tmp_path / "checkpoints")}
    given = {**variables(environment, tmp_path / "home"), **folders}
    try:
        run(["sh", "-c", up], sdist, given)
        status = run(["sh", "-c", "penstock dev kafka status --json"], sdist, given)
        given["KAFKA"] = json.loads(status)["servers"]  # 9092 may be taken
        *_, alerts = [run(["sh", "-c", line], sdist, given) for line in more]
        assert all(json.loads(line.partition(" ")[2])["amount"] > 1000 for line in alerts.splitlines())
        assert len(alerts.splitlines()) == 49
        run(["sh", "-c", "penstock cancel payments"], sdist, given)
    finally:
        run(["sh", "-c", "penstock dev kafka down"], sdist, given)


def commands(sdist: Path, page: str) -> list[str]:
    """Those that are run page by page, not elsewhere."""
    return [line for line in printed(sdist, page) if line not in NOT_RUN_HERE and line not in example_lines(sdist)]


def test_no_first_page_has_commands_that_are_not_run(sdist: Path) -> None:
    assert tuple(page for page in PAGES if commands(sdist, page)) == WITH_COMMANDS


@pytest.mark.long
@pytest.mark.parametrize("page", WITH_COMMANDS)
def test_the_commands_of_the_first_pages_run_as_printed(
    environment: Path, sdist: Path, tmp_path: Path, page: str
) -> None:
    """Page by page, with the job of the first one; one that goes on for the commands that end it, and runs where the
    page takes it for granted. Only the places of savepoints differ from what is printed."""
    text = (sdist / "docs/how-to/first-job.md").read_text()
    job = re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)[0]
    places = [tmp_path / "ends", tmp_path / "goes-on"]
    for place, rows in zip(places, ("200_000", "200_000_000"), strict=True):
        place.mkdir()
        for name in ("job.py", "payments.py"):
            (place / name).write_text(job.replace("200_000", rows))
    (places[0] / "penstock.yaml").write_text("restart-strategy.failure-rate.delay: 2s\n")
    given, savepoints = variables(environment, tmp_path / "home"), tmp_path / "savepoints"

    def saved(found: re.Match[str]) -> str:
        folder = savepoints if found[1] == "/savepoints" else places[1] / found[1]
        return str(max(folder.iterdir(), key=lambda path: path.stat().st_mtime))

    process: subprocess.Popen[bytes] | None = None
    registry = Registry(tmp_path / "home")
    try:
        if page.endswith("see-a-job.md"):
            run(["penstock", "run", "-d", "job.py"], places[1], given)
        for line in commands(sdist, page):
            fitted = re.sub(r"(\S+)/savepoint-\S+", saved, line).replace("-p /savepoints", f"-p {savepoints}")
            ends = not line.startswith("penstock") or "--and-its own" in line
            if line.startswith("penstock run -s"):  # in the foreground: Ctrl-C, once it runs, is a clean end
                process = subprocess.Popen(["sh", "-c", f"exec {fitted}"], cwd=places[1], env=without_checkout(given))
                # By the registry: `penstock list` again and again would take the cores that the driver starts on.
                until(lambda: any(entry.state is State.RUNNING for entry in registry.entries()), fitted)
                process.send_signal(signal.SIGINT)
                assert process.wait(120) == 0, fitted
            elif line == "penstock ui payments":
                run(["sh", "-c", f"{fitted} --no-open"], tmp_path, given)
            else:
                run(["sh", "-c", fitted], places[not ends], given)
            if ends:
                assert any((places[0] / "large-payments").glob("*.parquet")), line
    finally:
        if process is not None and process.poll() is None:
            process.terminate()
        command = ["penstock", "cancel", "payments"]
        ended = subprocess.run(command, env=without_checkout(given), capture_output=True, text=True, check=False)
    if page.endswith(("run.md", "see-a-job.md")):
        assert "CANCELED" in ended.stdout
