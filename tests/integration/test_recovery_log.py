"""A job that dies after its decision goes on without computing anything again, and as if it had never died."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock import FileSource, KafkaSink, RestartStrategy
from penstock.checkpoint.spark_log import Commit, SparkLog
from penstock.errors import CheckpointBehind, ReplayDiffers
from penstock.failpoints import InjectedFault, hooked
from tests.support.failpoint_actions import mostly_long
from tests.support.run_job import CrashAt, Kafka, failing, run_all
from tests.support.twins import (
    CRASH,
    ROWS,
    START,
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


pytestmark = pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")

PROVIDER = "spark.sql.streaming.stateStore.providerClass"
STATES = "org.apache.spark.sql.execution.streaming.state"
BACKENDS = {"hashmap": f"{STATES}.HDFSBackedStateStoreProvider", "rocksdb": f"{STATES}.RocksDBStateStoreProvider"}
CHANGELOG = "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"
POLICY = "spark.sql.streaming.multipleWatermarkPolicy"
CORES = "spark.sql.leafNodeDefaultParallelism"

Settings = Callable[..., None]


@pytest.fixture
def settings(session: SparkSession) -> Iterator[Settings]:
    """`settings(key=value)` for this test only."""
    before: dict[str, str | None] = {}

    def change(conf: dict[str, str]) -> None:
        for key, value in conf.items():
            before.setdefault(key, session.conf.get(key, None))
            session.conf.set(key, value)

    yield change
    for key, former in before.items():
        if former is None:
            session.conf.unset(key)
        else:
            session.conf.set(key, former)


@pytest.mark.core("log")
@pytest.mark.parametrize("point", mostly_long(["commit.first", "epoch.committed"], "commit.first"))
def test_stateless_into_kafka(
    session: SparkSession, kafka: Kafka, tmp_path: Path, crash_at: CrashAt, point: str
) -> None:
    topic = kafka.topic()
    twin = Twin(session, tmp_path, stateless, sink=KafkaSink(topic, servers=kafka.servers))
    assert_went_on(crash_and_finish(twin, crash_at, point))
    assert kafka.values(topic) == Counter(str(number) for number in range(ROWS))
    assert twin.checkpoint.watermarks == dict.fromkeys(twin.checkpoint.epochs, 0)


@pytest.mark.core("log")
@pytest.mark.parametrize("backend", mostly_long(BACKENDS, "rocksdb"))
def test_windows_with_a_watermark(
    session: SparkSession, kafka: Kafka, tmp_path: Path, crash_at: CrashAt, settings: Settings, backend: str
) -> None:
    settings({PROVIDER: BACKENDS[backend]})
    topics = kafka.topic(), kafka.topic()
    whole, broken = (
        Twin(session, tmp_path / name, windows, sink=KafkaSink(topic, servers=kafka.servers))
        for name, topic in zip(("whole", "broken"), topics, strict=True)
    )
    whole.run()
    assert_went_on(crash_and_finish(broken, crash_at))

    assert broken.checkpoint.outputs[CRASH], "the crash hit an epoch without output"
    assert_alike(whole, broken)
    assert_tracked(whole)
    assert_tracked(broken)
    assert kafka.values(topics[0]) == kafka.values(topics[1])


@pytest.mark.parametrize(
    ("backend", "policy"), [pytest.param("hashmap", "min", marks=pytest.mark.long), ("rocksdb", "max")]
)
def test_a_join_with_two_watermarks(
    session: SparkSession, tmp_path: Path, crash_at: CrashAt, settings: Settings, backend: str, policy: str
) -> None:
    settings({PROVIDER: BACKENDS[backend], POLICY: policy})
    whole, broken = Twin(session, tmp_path / "whole", join), Twin(session, tmp_path / "broken", join)
    whole.run()
    assert_went_on(crash_and_finish(broken, crash_at))

    assert_alike(whole, broken)
    assert_tracked(whole)
    assert_tracked(broken)
    assert whole.files() == broken.files()
    slow, fast = START + (ROWS - 1) // 2 - 60, START + ROWS - 1 - 10
    last = whole.checkpoint.watermark(4) // 1000
    assert last == slow if policy == "min" else slow < last <= fast
    if policy == "min":  # by the faster watermark some rows are late, in both runs the same ones
        assert whole.files() == Counter(str(number) for number in range(ROWS))


@pytest.mark.parametrize("backend", mostly_long(BACKENDS, "hashmap"))
def test_a_plan_left_to_chance_stays_consistent(
    session: SparkSession, kafka: Kafka, tmp_path: Path, crash_at: CrashAt, settings: Settings, backend: str
) -> None:
    settings({PROVIDER: BACKENDS[backend]})
    topic = kafka.topic(1)
    twin = Twin(session, tmp_path, users_by_chance, sink=KafkaSink(topic, servers=kafka.servers), mode="update")
    assert_went_on(crash_and_finish(twin, crash_at))

    state = session.read.format("statestore").load(str(twin.checkpoint.folder / "spark"))
    kept = dict(map(tuple, state.selectExpr("key.bucket", "value.count").collect()))
    seen: dict[int, int] = {}
    for key, value in kafka.read(topic):
        seen[int(key or b"")] = max(int(value or b""), seen.get(int(key or b""), 0))
    assert seen == kept
    assert sum(seen.values()) == ROWS


def test_a_log_we_do_not_know_is_proven_by_replay(
    session: SparkSession, tmp_path: Path, crash_at: CrashAt, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    # More partitions than keys: some writers of the decided epoch have no rows.
    settings({PROVIDER: BACKENDS["rocksdb"], "spark.sql.shuffle.partitions": "5"})
    monkeypatch.setattr(Commit, "parse", lambda data: None)
    whole, broken = Twin(session, tmp_path / "whole", windows), Twin(session, tmp_path / "broken", windows)
    whole.run()
    events = crash_and_finish(broken, crash_at)

    recovered = only(events, "recovered")
    assert (recovered["action"], recovered["epoch"]) == ("verify", CRASH)
    assert next(event["epoch"] for event in events if event["event"] == "opened") == CRASH
    assert_alike(whole, broken)
    assert whole.files() == broken.files()


def test_files_that_are_dealt_out_by_the_number_of_cores_are_repaired_with_another_number(
    session: SparkSession, tmp_path: Path, crash_at: CrashAt, settings: Settings
) -> None:
    """Spark packs files into tasks by the cores that are there; this setting stands for them."""
    settings({CORES: "2"})
    (tmp_path / "in").mkdir()
    for number in range(8):
        (tmp_path / "in" / f"{number}.json").write_text(f'{{"value":"{number}"}}\n')
    source = FileSource(str(tmp_path / "in"), schema="value string", bounded=True)
    twin = Twin(session, tmp_path, lambda job: job.read(source, uid="in"))
    crash_at("epoch.decided", 1)
    failing(twin.job(), InjectedFault)
    crash_at.no_more()
    staged = sorted(file for file in (tmp_path / "out" / "_penstock").rglob("*") if file.suffix == ".json")
    assert len(staged) > 1
    staged[0].unlink()
    settings({CORES: "4"})
    assert only(events := twin.run(), "recovered")["action"] == "repair"
    assert twin.files() == Counter(map(str, range(8)))
    assert [event["writers"] for event in events if event["event"] == "precommitted"] == [len(staged)]
    assert session.conf.get(CORES) == "4", "only the replay is planned as before"


def test_a_replay_that_differs_stops_the_job(
    session: SparkSession, tmp_path: Path, crash_at: CrashAt, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where only a replay could tell and it gives other rows, nothing is guessed and nothing doubled."""
    settings({PROVIDER: BACKENDS["rocksdb"]})
    monkeypatch.setattr(Commit, "parse", lambda data: None)
    twin = Twin(session, tmp_path, users_by_chance, mode="update")
    crash_at("epoch.decided", CRASH + 1)
    failing(twin.job(), InjectedFault)
    crash_at.no_more()

    error = failing(twin.job(RestartStrategy.fixed_delay(5, "10ms")), ReplayDiffers)
    assert f"Epoch {CRASH}" in str(error)
    assert "not deterministic" in str(error)
    visible = twin.files()
    failing(twin.job(), ReplayDiffers)
    assert twin.files() == visible
    assert twin.checkpoint.epochs == list(range(CRASH))


def test_a_location_with_odd_characters(session: SparkSession, tmp_path: Path, crash_at: CrashAt) -> None:
    """Ledger and checkpoint must be found under one name, whichever way it is written: Spark unquotes nothing."""
    folder = tmp_path / "50% of %20 #1?"
    for storage in (str(folder / "plain"), f"file://{folder}/slashes", f"file:{folder}/bare"):
        twin = Twin(session, folder / storage.rpartition("/")[2], stateless, storage=storage)
        assert_went_on(crash_and_finish(twin, crash_at))
        assert twin.files() == Counter(str(number) for number in range(ROWS))


def test_a_watermark_that_no_state_uses(session: SparkSession, tmp_path: Path) -> None:
    """Spark plans such a query otherwise, and still writes the watermark."""
    twin = Twin(session, tmp_path, lambda job: stateless(job, "20 seconds"))
    twin.run()
    assert_tracked(twin)


def test_the_job_restarts_by_itself(session: SparkSession, kafka: Kafka, tmp_path: Path, crash_at: CrashAt) -> None:
    topic = kafka.topic()
    twin = Twin(session, tmp_path, windows, sink=KafkaSink(topic, servers=kafka.servers))
    crash_at("epoch.decided", CRASH + 1)
    events = run_all(twin.job(RestartStrategy.fixed_delay(1, "10ms")))

    names = [event["event"] for event in events]
    assert names.count("restarting") == 1
    assert [e["action"] for e in events if e["event"] == "recovered"] == ["none", "finished"]
    assert_tracked(twin)
    decided = sum(rows for writers in twin.checkpoint.outputs.values() for *_, rows, _ in writers)
    assert sum(kafka.values(topic).values()) == decided


def test_a_second_death_in_recovery(session: SparkSession, kafka: Kafka, tmp_path: Path, crash_at: CrashAt) -> None:
    """Recovery itself may die at any of its steps; the next one takes over."""
    topic = kafka.topic()
    twin = Twin(session, tmp_path, stateless, sink=KafkaSink(topic, servers=kafka.servers))
    crash_at("epoch.decided", CRASH + 1)
    failing(twin.job(), InjectedFault)
    crash_at.no_more()
    for step in ("registered", "looked", "claimed", "committed"):
        with hooked(f"recover.{step}", _die):
            failing(twin.job(), KeyError)
        assert twin.checkpoint.epochs == list(range(CRASH))
    for step in ("finished", "swept"):
        with hooked(f"recover.{step}", _die):
            failing(twin.job(), KeyError)
        assert twin.checkpoint.epochs == list(range(CRASH + 1))
    twin.run()
    assert kafka.values(topic) == Counter(str(number) for number in range(ROWS))


def _die() -> Any:
    raise KeyError("the process died here")


# What Spark never synced is gone, or torn: after a power cut, or with a folder from an older copy


def spark_files(twin: Twin, newest: int | None = None) -> list[Path]:
    """The files of Spark's log and the checksums beside them; of each kind the newest, where so many are wanted."""
    found: list[Path] = []
    for kind in ("offsets", "commits"):
        folder = twin.checkpoint.folder / "spark" / kind
        numbers = sorted(int(file.name) for file in folder.iterdir() if file.name.isdigit())
        wanted = numbers if newest is None else numbers[-newest:]
        found += [file for number in wanted for file in (folder / str(number), folder / f".{number}.crc")]
    return [file for file in found if file.exists()]


@pytest.mark.parametrize("newest", [None, 2], ids=["all of it", "the newest two"])
def test_a_log_that_is_gone_is_no_reason_to_write_anything_twice(
    session: SparkSession, tmp_path: Path, newest: int | None
) -> None:
    twin = Twin(session, tmp_path, stateless)
    twin.run()
    assert twin.files() == Counter(str(number) for number in range(ROWS))
    for file in spark_files(twin, newest):
        file.unlink()
    events = twin.run()
    assert only(events, "recovered")["action"] == "finished"
    assert only(events, "log_restored")
    assert not [event for event in events if event["event"] == "opened"], "it was at its end"
    assert twin.files() == Counter(str(number) for number in range(ROWS))


def test_positions_that_another_driver_has_written_are_neither_run_nor_gone_on_from(
    session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It renames its cut over that of the newer run: between Spark's own rename and the epoch, and after the end."""
    twin, read, overwritten = Twin(session, tmp_path, stateless), SparkLog.barrier, []

    def overwrite(epoch: int) -> None:
        file = twin.checkpoint.folder / "spark" / "offsets" / str(epoch)
        text = file.read_text()
        file.write_text(text.replace(f'"offset":{100 * (epoch + 1)}', f'"offset":{100 * epoch + 50}'))
        assert file.read_text() != text
        overwritten.append(epoch)

    def read_late(log: SparkLog, epoch: int) -> Any:
        if epoch == CRASH and not overwritten:
            overwrite(epoch)
        return read(log, epoch)

    monkeypatch.setattr(SparkLog, "barrier", read_late)
    events = run_all(twin.job(RestartStrategy.fixed_delay(1, "10ms")))
    failed = [event["error"] for event in events if event["event"] == "failed"]
    assert "BarrierOverwritten" in failed[0]
    assert twin.files() == Counter(str(number) for number in range(ROWS))
    assert twin.checkpoint.barrier(CRASH)[0].startswith('{"offset":250,')

    newest = max(twin.checkpoint.epochs)
    file = twin.checkpoint.folder / "spark" / "offsets" / str(newest)
    decided = file.read_text()
    file.write_text((file.parent / str(CRASH)).read_text())
    assert only(twin.run(), "log_restored")
    assert file.read_text() == decided
    assert twin.files() == Counter(str(number) for number in range(ROWS))


def test_a_torn_log_and_state_go_on_as_if_nothing_had_been(
    session: SparkSession, tmp_path: Path, crash_at: CrashAt
) -> None:
    whole, broken = (Twin(session, tmp_path / name, windows) for name in ("whole", "broken"))
    whole.run()
    crash_at("epoch.decided", CRASH + 1)
    failing(broken.job(), InjectedFault)
    crash_at.no_more()
    for file in spark_files(broken, 1):
        file.write_bytes(b"")
    events = broken.run()
    assert_went_on(events)
    assert_alike(whole, broken)
    assert whole.files() == broken.files()


@pytest.mark.parametrize(
    ("backend", "changelog"),
    [
        ("rocksdb", "true"),
        pytest.param("rocksdb", "false", marks=pytest.mark.long),
        pytest.param("hashmap", "false", marks=pytest.mark.long),
    ],
)
def test_state_that_a_superseded_run_wrote_over_before_the_power_failed_is_put_back(
    session: SparkSession, tmp_path: Path, crash_at: CrashAt, settings: Settings, backend: str, changelog: str
) -> None:
    """It gives each file's name to one of its own by a rename, data and checksum, and the power takes the bytes."""
    settings({PROVIDER: BACKENDS[backend], CHANGELOG: changelog})
    whole, broken = (Twin(session, tmp_path / name, windows) for name in ("whole", "broken"))
    whole.run()
    for passing in (CRASH + 1, 2):  # so that epoch CRASH is the first of the second run
        crash_at("epoch.sealed", passing)
        failing(broken.job(), InjectedFault)
    crash_at.no_more()
    assert max(broken.checkpoint.epochs) == CRASH
    state = broken.checkpoint.folder / "spark" / "state"
    files = [file for file in state.rglob("*") if re.match(rf"\.?{CRASH + 1}\.", file.name)]
    assert any(file.suffix in (".delta", ".zip", ".changelog") for file in files)
    for file in files:
        file.unlink()
        file.touch()
    broken.run()
    assert_alike(whole, broken)
    assert whole.files() == broken.files()


def test_a_checkpoint_from_an_older_copy_is_refused_where_its_state_is_older_too(
    session: SparkSession, tmp_path: Path
) -> None:
    twin = Twin(session, tmp_path, windows)
    twin.run()
    before = twin.files()
    newest = max(twin.checkpoint.epochs)
    for file in spark_files(twin, 2):
        file.unlink()
    for state in (twin.checkpoint.folder / "spark" / "state").glob(f"*/*/{newest + 1}.*"):
        state.unlink()
    failing(twin.job(), CheckpointBehind)
    assert twin.files() == before
