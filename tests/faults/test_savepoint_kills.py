"""SIGKILL in the middle of a savepoint, of a restore, of a rescale, of a switch of the backend. What there was before
is untouched, what was begun is never usable, and in the end nothing is lost or doubled."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.config.levels import OPTIONS_VARIABLE
from penstock.errors import SavepointIncomplete
from penstock.failpoints import POINTS
from penstock.savepoints import savepoint as savepoints
from penstock.storage.local import LocalTree
from tests.support.fault_case import Case

SAVEPOINT = [name for name, process in POINTS.items() if process == "savepoint"]
RESTORE = [name for name, process in POINTS.items() if process == "restore"]


def ask(*words: str) -> subprocess.CompletedProcess[str]:
    """The command line, as a person uses it."""
    return subprocess.run(
        [str(Path(sys.executable).with_name("penstock")), *words, "--json"], capture_output=True, text=True, timeout=120
    )


def taken(*words: str) -> Path:
    done = ask(*words)
    assert done.returncode == 0, done.stderr + done.stdout
    return Path(json.loads(done.stdout)["savepoint"])


def options(**given: object) -> dict[str, str]:
    named = {key.replace("__", "-").replace("_", "."): str(value) for key, value in given.items()}
    return {OPTIONS_VARIABLE: json.dumps(named)}


def files(folder: Path) -> dict[str, int]:
    return {name: hash((folder / name).read_bytes()) for name in LocalTree(folder).files()}


@pytest.mark.parametrize(
    "points",
    [
        pytest.param([SAVEPOINT[0], "savepoint.written"], id="first and last"),
        pytest.param(SAVEPOINT, id="all", marks=pytest.mark.long),
    ],
)
def test_killed_at_every_step_of_a_savepoint(case: Callable[..., Case], tmp_path: Path, points: list[str]) -> None:
    """One job after the other, killed at each point while it makes a savepoint. The earlier savepoint is whole, the
    half one is refused, and the job goes on exactly."""
    world = case(count=True)
    world.source.feed(200)
    folder = tmp_path / "savepoints"
    run = world.start({SAVEPOINT[0]: "crash@2"})  # the second savepoint passes it again
    world.wait_visible(run)
    good = taken("savepoint", world.config.name, str(folder))
    before = files(good)
    for point in points:
        if point != SAVEPOINT[0]:
            run = world.start({point: "crash"})
        world.source.feed(50)
        world.wait_visible(run)
        asked = ask("savepoint", world.config.name, str(folder))
        assert asked.returncode != 0
        assert run.wait() == -9
        assert world.acted(point)
        assert files(good) == before
        for other in folder.iterdir():
            if other != good and point != "savepoint.written":
                with pytest.raises(SavepointIncomplete):
                    savepoints.read(LocalTree(other))
                savepoints.dispose(str(other))
    whole = [other for other in folder.iterdir() if other != good]
    assert len(whole) == 1, "killed after `_metadata`, it is there"
    savepoints.verify(LocalTree(whole[0]), savepoints.read(LocalTree(whole[0])))
    run = world.start()
    world.source.feed(50)
    world.finish(run)


@pytest.mark.long  # test_restore_races.py preempts a restore at every step, and the power fails in one
@pytest.mark.parametrize(
    "points",
    [
        pytest.param(["restore.rewritten"], id="the longest step"),
        pytest.param([*RESTORE, "switch"], id="all"),
    ],
)
def test_killed_in_the_middle_of_a_restore(case: Callable[..., Case], tmp_path: Path, points: list[str]) -> None:
    """Killed at each point, while it rescales and while it switches the backend; the savepoint is untouched, and the
    next start restores anew, or finds it done."""
    world = case(count=True, partitions=None)
    world.source.feed(200)
    run = world.start(**options(parallelism_default=2))
    world.wait_visible(run)
    made = taken("stop", world.config.name, "-p", str(tmp_path / "savepoints"))
    assert run.wait() == 0, run.tail()
    before = files(made)
    rescale: dict[str, Any] = {"parallelism_default": 5}
    switch: dict[str, Any] = {"parallelism_default": 2, "state_backend_type": "rocksdb"}
    kills = [(point, rescale) for point in RESTORE if point in points and point != "restore.recorded"]
    kills += [("restore.rewritten", switch)] if "switch" in points else []
    kills += [("restore.recorded", switch)]
    for number, (point, asked) in enumerate(kills):
        (world.once / point).unlink(missing_ok=True)
        wish = options(execution_state__recovery_path=made, penstock_restore_id=f"{number:032x}", **asked)
        run = world.start({point: "crash"}, **wish)
        assert run.wait() == -9, run.tail()
        assert world.acted(point)
        assert files(made) == before
    run = world.start(**wish)  # the last of them was recorded: it is not restored a second time
    world.source.feed(100)
    world.finish(run)
    assert files(made) == before
    assert run.events("restored") == []
    assert len(list((Path(world.config.storage) / world.config.name / "restores").glob("*.json"))) == 1
