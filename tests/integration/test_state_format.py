"""Spark's state in format 2, in which every attempt at an epoch writes state files of its own, named by an id."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock.checkpoint.spark_log import STATE_FORMAT, Commit
from penstock.config.levels import OPTIONS_VARIABLE
from penstock.config.state import CHANGELOG, PARTITIONS, PROVIDER, PROVIDERS, Backend
from penstock.errors import ConfigurationError
from penstock.failpoints import InjectedFault
from penstock.supply.versions import version_of
from tests.support.failpoint_actions import mostly_long
from tests.support.run_job import CrashAt, failing
from tests.support.twins import (
    CRASH,
    ROWS,
    Twin,
    assert_alike,
    assert_tracked,
    assert_went_on,
    crash_and_finish,
    join,
    only,
    stateless,
    users_by_chance,
    windows,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FORMAT_2 = {PROVIDER: PROVIDERS[Backend.ROCKSDB], STATE_FORMAT: "2", PARTITIONS: "3"}
FORMAT_1 = {**FORMAT_2, STATE_FORMAT: "1"}
PLANS = {"windows": windows, "join": join, "stateless": stateless}

Conf = Callable[[dict[str, str]], None]


@pytest.fixture
def conf(session: SparkSession) -> Iterator[Conf]:
    """Settings of the session, for this test only; a second call replaces those of the first."""
    changed: set[str] = set()

    def change(settings: dict[str, str]) -> None:
        for key in changed:
            session.conf.unset(key)
        changed.update(settings)
        for key, value in settings.items():
            session.conf.set(key, value)

    before = {key: session.conf.get(key, None) for key in (*FORMAT_2, CHANGELOG)}
    yield change
    change({key: value for key, value in before.items() if value is not None})


def commits(twin: Twin, folder: str = "spark") -> dict[int, str]:
    return {
        int(path.name): path.read_text()
        for path in (twin.checkpoint.folder / folder / "commits").iterdir()
        if path.name.isdigit()
    }


def ids(twin: Twin, epoch: int) -> Any:
    return twin.checkpoint.manifests[epoch].get("state_ids")


def assert_known_before_spark_wrote_it(twin: Twin) -> None:
    """What the decision says of an epoch is, to the byte, what Spark has written after it."""
    for epoch, text in commits(twin).items():
        manifest = twin.checkpoint.manifests[epoch]
        assert Commit(manifest["watermark"], manifest["state_ids"]).text() == text, epoch


@pytest.mark.parametrize(
    ("plan", "changelog"),
    [("windows", "true"), pytest.param("join", "false", marks=pytest.mark.long),
     pytest.param("stateless", "false", marks=pytest.mark.long)],
)  # fmt: skip
def test_a_decided_epoch_is_finished_with_the_ids_of_its_state(
    session: SparkSession, tmp_path: Path, crash_at: CrashAt, conf: Conf, plan: str, changelog: str
) -> None:
    conf({**FORMAT_2, CHANGELOG: changelog})
    whole, broken = (Twin(session, tmp_path / name, PLANS[plan]) for name in ("whole", "broken"))
    whole.run()
    assert_known_before_spark_wrote_it(whole)
    assert_went_on(crash_and_finish(broken, crash_at))

    assert_known_before_spark_wrote_it(broken)
    assert bool(ids(broken, CRASH)) is (plan != "stateless")
    assert_alike(whole, broken)
    assert_tracked(broken)
    assert whole.files() == broken.files()


@pytest.mark.long
def test_an_attempt_that_lost_leaves_state_that_nothing_goes_on_from(
    session: SparkSession, tmp_path: Path, crash_at: CrashAt, conf: Conf
) -> None:
    """Killed before the decision, the epoch has two sets of files: only those of the second attempt are decided."""
    conf({**FORMAT_2, CHANGELOG: "true"})
    twin = Twin(session, tmp_path, users_by_chance, mode="update")
    crash_at("epoch.precommitted", CRASH + 1)
    failing(twin.job(), InjectedFault)
    crash_at("epoch.decided")
    failing(twin.job(), InjectedFault)
    crash_at.no_more()
    store = twin.checkpoint.folder / "spark" / "state" / "0" / "0"
    attempts = {path.name for path in store.glob(f"{CRASH + 1}_*.changelog")}
    assert len(attempts) == 2
    assert f"{CRASH + 1}_{ids(twin, CRASH)['0'][0][0]}.changelog" in attempts
    recovered = only(twin.run(), "recovered")
    assert (recovered["action"], recovered["epoch"]) == ("finished", CRASH + 1)
    state = session.read.format("statestore").load(str(twin.checkpoint.folder / "spark"))
    assert sum(row["count"] for row in state.select("value.count").collect()) == ROWS


CHANGES = {
    "as it is": (FORMAT_2, FORMAT_2, {}),
    "more partitions": (FORMAT_2, FORMAT_2, {"parallelism.default": "5"}),
    "to hashmap": (FORMAT_2, {PARTITIONS: "3", STATE_FORMAT: "1"}, {"state.backend.type": "hashmap"}),
    "to format 2": (FORMAT_1, FORMAT_2, {}),
    "to format 1": (FORMAT_2, FORMAT_1, {}),
}


@pytest.mark.parametrize("change", mostly_long(CHANGES, "to format 2"))
def test_a_restore_changes_partitions_backend_and_format(
    session: SparkSession, tmp_path: Path, crash_at: CrashAt, conf: Conf, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    before, after, options = CHANGES[change]
    conf({**before, CHANGELOG: "true"})
    whole, moved = (Twin(session, tmp_path / name, windows) for name in ("whole", "moved"))
    whole.run()
    crash_at("epoch.decided", CRASH + 1)
    failing(moved.job(), InjectedFault)
    crash_at.no_more()

    conf({**after, CHANGELOG: "true"})
    for key in ("state.backend.type", "parallelism.default"):
        if key in options:
            session.conf.unset({"state.backend.type": PROVIDER, "parallelism.default": PARTITIONS}[key])
    path = str(moved.checkpoint.folder.parent)
    monkeypatch.setenv(OPTIONS_VARIABLE, json.dumps({"execution.state-recovery.path": path, **options}))
    restored = only(moved.run(), "restored")
    assert restored["epochs"] == {"out": CRASH}
    assert ("format of state" in str(restored["report"])) is (before[STATE_FORMAT] != after[STATE_FORMAT])
    assert whole.files() == moved.files()

    [folder] = [path.name for path in moved.checkpoint.folder.glob("spark-*")]
    listed = ['"stateUniqueIds"' in text for epoch, text in commits(moved, folder).items() if epoch >= CRASH]
    assert len(listed) > 2
    assert set(listed) == {after[STATE_FORMAT] == "2"}
    state = session.read.format("statestore").load(str(moved.checkpoint.folder / folder))
    assert state.count() > 0


def test_what_cannot_be_is_refused_before_anything_is_touched(
    session: SparkSession, tmp_path: Path, conf: Conf
) -> None:
    conf({PARTITIONS: "3", STATE_FORMAT: "2"})
    hashmap = Twin(session, tmp_path / "hashmap", windows)
    assert "hashmap has format 1 only" in str(failing(hashmap.job(), ConfigurationError))
    assert not (hashmap.checkpoint.folder / "spark" / "offsets").exists()

    conf(FORMAT_2)
    other = Twin(session, tmp_path / "other", windows)
    other.run()
    before = commits(other)
    conf(FORMAT_1)
    if version_of(session).state_format == "log":
        other.run()
        assert {Commit.parse(text.encode()).format for text in commits(other).values()} == {"2"}  # type: ignore[union-attr]
        return
    error = failing(other.job(), ConfigurationError)
    assert f"is in format 2, but {STATE_FORMAT} is 1" in str(error)
    assert commits(other) == before
