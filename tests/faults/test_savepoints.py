"""Savepoints of a stateful job on Kafka: taken, moved, restored, rescaled, switched, forked, drained. In the end, over
the whole history, nothing is lost and nothing doubled."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock import Checkpoints, Job, KafkaSink, KafkaSource, RestartStrategy
from penstock.config.levels import OPTIONS_VARIABLE
from penstock.config.state import PARTITIONS
from penstock.errors import ConfigurationError, JobDrained, NotRestorable, SavepointCorrupt, SavepointIncomplete
from penstock.failpoints import InjectedFault, hooked
from penstock.savepoints import savepoint as savepoints
from penstock.spark.settings import remember_defaults
from penstock.storage.local import LocalTree
from penstock.supply.versions import installed_version
from tests.support.failpoint_actions import mostly_long
from tests.support.fault_case import Case, Running, running
from tests.support.kafka import Tail, assert_nothing_open, create_topic, read_committed
from tests.support.waiting import until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.support.servers.broker import Broker

Make = Callable[..., Case]


@pytest.fixture(scope="module")
def session() -> Iterator[SparkSession]:
    """A session of its own, whose parallelism and backend are left to the jobs."""
    from pyspark.sql import SparkSession

    from penstock.spark import session as spark

    before = SparkSession.getActiveSession()
    if before is not None:
        before.stop()
    conf = {"spark.master": "local[2]", "spark.sql.streaming.minBatchesToRetain": "100"}
    made = spark.session("savepoints", conf=conf, jars=("spark-kafka",), local_storage=True)
    # A JVM remembers what the first session in it was told; here it counts as a default, not as somebody's wish.
    made.conf.set(PARTITIONS, "2")
    remember_defaults(made, {PARTITIONS: "2"})
    yield made
    made.stop()


class Story:
    """One job through several lives, each with options of its own, over one input and one pair of outputs."""

    def __init__(self, world: Case, session: SparkSession, patch: pytest.MonkeyPatch, folder: Path) -> None:
        self.world, self._session, self._patch = world, session, patch
        self.savepoints = folder / "savepoints"

    def start(self, build: Callable[..., Job] | None = None, /, **options: Any) -> Running:
        """A life with these options; `_` stands for `.`, `__` for `-`."""
        named = {key.replace("__", "-").replace("_", "."): str(value) for key, value in options.items()}
        self._patch.setenv(OPTIONS_VARIABLE, json.dumps(named))
        job = (build or self.world.build)(self._session)
        self._patch.delenv(OPTIONS_VARIABLE)
        return Running(job)

    def more(self, run: Running, rows: int = 100) -> None:
        self.world.source.feed(rows)
        self.world.wait_visible(run)

    def stop(self, run: Running, **how: Any) -> Path:
        """End with a savepoint; where it is."""
        path = Path(run.job.stop_with_savepoint(str(self.savepoints), **how))
        run.join()
        return path


@pytest.fixture
def story(case: Make, session: SparkSession, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Story]:
    return lambda **config: Story(case(count=True, partitions=None, **config), session, monkeypatch, tmp_path)


def state_kinds(world: Case) -> set[str]:
    """The endings of the state files of the newest history."""
    folder = Path(world.config.storage) / world.config.name / "count"
    newest = max(folder.glob("spark*"), key=lambda path: path.stat().st_mtime)
    return {path.suffix for path in newest.glob("state/0/*/*") if path.suffix not in (".crc", "")}


def partitions(world: Case) -> int:
    folder = Path(world.config.storage) / world.config.name / "count"
    newest = max(folder.glob("spark*"), key=lambda path: path.stat().st_mtime)
    return len([path for path in (newest / "state" / "0").iterdir() if path.name.isdigit()])


RESTORE = "execution_state__recovery_path"


@pytest.mark.core("savepoint")
def test_a_stopped_job_goes_on_elsewhere_from_a_moved_savepoint(story: Callable[..., Story], tmp_path: Path) -> None:
    """Pause and resume, on a copy in another folder, with nothing of the first place left."""
    told = story()
    run = told.start()
    told.more(run, 200)
    made = told.stop(run)
    saved = savepoints.read(LocalTree(made))
    assert set(saved.queries) == {"copy", "count"}
    assert saved.queries["count"].backend == "hashmap"
    assert str(tmp_path) not in (made / "_metadata").read_text()
    moved = tmp_path / "elsewhere" / "renamed"
    shutil.copytree(made, moved)
    shutil.rmtree(made)
    shutil.rmtree(told.world.config.storage)
    run = told.start(**{RESTORE: moved})
    told.more(run)
    run.stop()
    told.world.assert_exact()
    assert (moved / "_metadata").exists()  # not claimed


@pytest.mark.parametrize("kind", mostly_long(["native", "canonical"], "native"))
def test_a_running_job_gives_a_savepoint_and_goes_on(story: Callable[..., Story], kind: str, tmp_path: Path) -> None:
    """Taken while rows come. A fork of it, with output of its own, makes what the job makes after it."""
    told = story()
    run = told.start()
    told.more(run, 200)
    made = Path(run.job.savepoint(str(told.savepoints), kind=kind))
    epoch = savepoints.read(LocalTree(made)).queries["copy"].epoch
    told.more(run)
    fork = told.start(
        **{RESTORE: made, "penstock_fork_name": f"{told.world.config.name}-fork", "penstock_fork_suffix": "-v2"}
    )
    told.more(run)
    assert fork.job.name.endswith("-fork")
    config = told.world.config
    made_own = {"copy", "count"}  # the fork makes its topics when it starts
    until(
        lambda: living(fork) and made_own <= {one["query"] for one in fork.events if one["event"] == "completed"}, "it"
    )
    with Tail(config.servers, f"{config.copy_to}-v2") as tail, Tail(config.servers, f"{config.count_to}-v2") as counts:
        until(
            lambda: living(fork) and len(tail.read()) >= 200 and _last(counts.read()) == _last(told.world.count.read()),  # type: ignore[union-attr]
            lambda: f"the fork's rows: {len(tail.values)}",
        )
    fork.stop()
    run.stop()
    told.world.assert_exact()
    assert_nothing_open(config.servers, fork.job.name)
    rows = [json.loads(one.value()) for one in read_committed(config.servers, f"{config.copy_to}-v2")]
    assert sorted(row["id"] for row in rows) == [row.id for row in told.world.source.rows[200:]]
    restored = next(event for event in fork.events if event["event"] == "restored")
    assert restored["epochs"]["copy"] == epoch
    assert restored["beyond"] == {}  # nothing of the fork's own is visible


def living(run: Running) -> bool:
    """True; raises what made it end."""
    if not run.alive:
        run.join()
    return run.alive


def _last(rows: list[dict[str, Any]]) -> dict[str, tuple[int, int]]:
    return {row["key"]: (row["n"], row["total"]) for row in rows}


@pytest.mark.core("rescale")
@pytest.mark.parametrize("backend", mostly_long(["hashmap", "rocksdb"], "rocksdb"))
def test_rescale_up_and_down(story: Callable[..., Story], backend: str) -> None:
    if backend == "rocksdb" and not installed_version().rewrites_rocksdb:
        pytest.skip("this Spark cannot write rows into RocksDB's files: docs/reference/versions.md")
    told = story()
    path: dict[str, Any] = {}
    for wanted in (2, 7, 3):
        run = told.start(**path, parallelism_default=wanted, state_backend_type=backend)
        told.more(run)
        assert partitions(told.world) == wanted
        path = {RESTORE: told.stop(run)}
    told.world.assert_exact()


def test_switch_the_backend_both_ways(story: Callable[..., Story]) -> None:
    told = story()
    path: dict[str, Any] = {}
    for backend, kinds in (("hashmap", {".delta"}), ("rocksdb", {".zip"}), ("hashmap", {".delta", ".snapshot"})):
        run = told.start(**path, state_backend_type=backend, parallelism_default=2)
        told.more(run)
        assert state_kinds(told.world) <= kinds | {".zip"} if backend == "rocksdb" else state_kinds(told.world) <= kinds
        path = {RESTORE: told.stop(run)}
    told.world.assert_exact()


def test_from_a_retained_checkpoint(story: Callable[..., Story]) -> None:
    """The newest global checkpoint of a stopped job: nothing beyond it, nothing doubled. An older epoch of one query:
    what is visible beyond it is named."""
    told = story(checkpoints={"num_retained": 9})
    run = told.start()
    told.more(run, 200)
    told.more(run)
    run.stop()
    folder = Path(told.world.config.storage) / told.world.config.name
    newest = max(int(file.stem) for file in (folder / "global").glob("*.json"))
    run = told.start(**{RESTORE: f"{folder}/chk-{newest}"})
    told.more(run)
    run.stop()
    told.world.assert_exact()
    restored = next(event for event in run.events if event["event"] == "restored")
    assert restored["beyond"] == {}
    # Back to it once more: what came since is visible, which is said with the epochs.
    run = told.start(**{RESTORE: f"{folder}/chk-{newest}", "penstock_restore_id": "fedcba9876543210" * 2})
    until(lambda: living(run) and any(event["event"] == "restored" for event in run.events), "the restore")
    beyond = next(event for event in run.events if event["event"] == "restored")["beyond"]
    run.stop()
    assert set(beyond) == {"copy", "count"}
    assert all(first <= last for first, last in beyond.values())


def test_an_unaligned_job_delivers_its_log_before_the_savepoint(story: Callable[..., Story]) -> None:
    told = story(checkpoints={"unaligned": True, "aligned_timeout": 0})
    run = told.start()
    told.world.source.feed(300)
    until(lambda: living(run) and len(told.world.copy.read()) >= 100, "the first rows")
    made = told.stop(run)
    folder = Path(told.world.config.storage) / told.world.config.name
    assert not list(folder.glob("*/inflight/*/*/backlog/*.json"))
    run = told.start(**{RESTORE: made})
    told.more(run)
    run.stop()
    told.world.assert_exact()


def test_a_restore_happens_once_however_often_the_driver_starts(story: Callable[..., Story]) -> None:
    told = story()
    run = told.start()
    told.more(run, 200)
    made = told.stop(run)
    for _ in range(2):
        run = told.start(**{RESTORE: made, "penstock_restore_id": "0123456789abcdef" * 2})
        told.more(run)
        run.stop()
    told.world.assert_exact()


def test_a_claimed_savepoint_goes_when_the_job_has_its_own_checkpoint(story: Callable[..., Story]) -> None:
    told = story()
    run = told.start()
    told.more(run, 200)
    made = told.stop(run)
    run = told.start(**{RESTORE: made, "execution_state__recovery_claim__mode": "CLAIM"})
    told.more(run)
    until(lambda: not made.exists(), "the claimed savepoint to be deleted")
    run.stop()
    run = told.start()
    told.more(run)
    run.stop()
    told.world.assert_exact()


def test_parallelism_is_not_changed_silently(story: Callable[..., Story]) -> None:
    told = story()
    run = told.start(parallelism_default=2)
    told.more(run)
    run.stop()
    with pytest.raises(ConfigurationError, match="has 2 partitions"):
        told.start(parallelism_default=5).join()
    run = told.start(parallelism_default=2)
    told.more(run)
    run.stop()
    told.world.assert_exact()


class TestProgramsThatChange:
    """What can be kept is kept; what cannot is an error that names it, and nothing is touched."""

    def test_kept(self, story: Callable[..., Story]) -> None:
        """A stateless change, a new query and a renamed sink keep the state."""
        told = story()
        run = told.start()
        told.more(run, 200)
        made = told.stop(run)
        config = told.world.config

        def changed(spark: SparkSession) -> Job:
            job = told.world.build(spark)
            rows = job.read(KafkaSource(config.source, servers=config.servers), uid="again")
            extra = create_topic(config.servers, 1, prefix="extra")
            job.write(
                rows.select("key", "value").where("key is not null"),
                KafkaSink(extra, servers=config.servers),
                uid="extra",
            )
            return job

        run = told.start(changed, **{RESTORE: made})
        told.more(run)
        run.stop()
        told.world.assert_exact()
        report = next(event for event in run.events if event["event"] == "restored")["report"]
        assert ["extra", "query", "new", "starts from the beginning"] in report
        assert any(line[:3] == ["count", "operator 0 (stateStoreSave)", "kept"] for line in report), report

    def test_other_columns_cannot_be_kept(self, story: Callable[..., Story]) -> None:
        from pyspark.sql import functions as f

        told = story()
        run = told.start()
        told.more(run, 200)
        made = told.stop(run)
        config = told.world.config

        def changed(spark: SparkSession) -> Job:
            job = Job(config.name, checkpoints=Checkpoints(storage=config.storage), spark=spark)
            rows = job.read(KafkaSource(config.source, servers=config.servers), uid="rows")
            assert config.copy_to is not None
            assert config.count_to is not None
            job.write(rows.select("key", "value"), KafkaSink(config.copy_to, servers=config.servers), uid="copy")
            counts = rows.groupBy(f.length("key").alias("long")).count().selectExpr("to_json(struct(*)) AS value")
            sink = KafkaSink(config.count_to, servers=config.servers)
            job.write(counts, sink, uid="count", output_mode="update")
            return job

        with pytest.raises(NotRestorable) as refused:
            told.start(changed, **{RESTORE: made}).join()
        assert "operator 0 (stateStoreSave) was kept under other columns" in str(refused.value)
        run = told.start(**{RESTORE: made})
        told.more(run)
        run.stop()
        told.world.assert_exact()

    def test_a_query_left_behind_needs_permission(self, story: Callable[..., Story]) -> None:
        told = story()
        run = told.start()
        told.more(run, 200)
        made = told.stop(run)
        config = told.world.config

        def changed(spark: SparkSession) -> Job:
            job = Job(config.name, checkpoints=Checkpoints(storage=config.storage), spark=spark)
            rows = job.read(KafkaSource(config.source, servers=config.servers), uid="rows")
            assert config.copy_to is not None
            job.write(rows.select("key", "value"), KafkaSink(config.copy_to, servers=config.servers), uid="copy")
            return job

        with pytest.raises(NotRestorable, match="query is in the savepoint and not in the program"):
            told.start(changed, **{RESTORE: made}).join()
        run = told.start(changed, **{RESTORE: made, "execution_state__recovery_ignore__unclaimed__state": True})
        told.world.source.feed(100)
        until(lambda: len(told.world.copy.read()) == 300, "the rows of the query that is left")
        run.stop()
        rows = [json.loads(one.value())["id"] for one in read_committed(config.servers, str(config.copy_to))]
        assert sorted(rows) == list(range(300))


def test_damaged_and_half_savepoints_are_refused(story: Callable[..., Story], tmp_path: Path) -> None:
    told = story()
    run = told.start()
    told.more(run)
    made = told.stop(run)
    half = tmp_path / "half"
    shutil.copytree(made, half)
    (half / "_metadata").unlink()
    with pytest.raises(SavepointIncomplete):
        told.start(**{RESTORE: half}).join()
    damaged = tmp_path / "damaged"
    shutil.copytree(made, damaged)
    state = next(damaged.glob("queries/count/spark/state/0/*/*.delta"))
    state.write_bytes(state.read_bytes()[:-1] + b"?")
    with pytest.raises(SavepointCorrupt, match="does not match its checksum"):
        told.start(**{RESTORE: damaged}).join()
    run = told.start(**{RESTORE: made})
    told.more(run)
    run.stop()
    told.world.assert_exact()


def test_drain_emits_what_windows_hold(
    broker: Broker, session: SparkSession, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Windows that are open when the job is stopped for good come out complete, each once. A drain that failed before
    has changed nothing; after one that did not, the job goes on only if that is asked for."""
    from confluent_kafka import Producer
    from pyspark.sql import functions as f

    source, target = create_topic(broker.servers, 2, prefix="in"), create_topic(broker.servers, 1, prefix="out")
    storage = tmp_path / "checkpoints"

    def make(**options: str) -> Job:
        monkeypatch.setenv(OPTIONS_VARIABLE, json.dumps(options))
        checkpoints = Checkpoints(storage=str(storage))
        job = Job("windows", checkpoints=checkpoints, restart=RestartStrategy.none(), spark=session)
        rows = job.read(KafkaSource(source, servers=broker.servers), uid="in")
        timed = rows.select(f.timestamp_seconds(f.col("value").cast("string").cast("long")).alias("at"))
        counts = timed.withWatermark("at", "10 seconds").groupBy(f.window("at", "10 seconds")).count()
        row = f.struct(f.unix_seconds("window.start").alias("start"), "count")
        job.write(counts.select(f.to_json(row).alias("value")), KafkaSink(target, servers=broker.servers), uid="out")
        return job

    def feed(first: int, last: int) -> None:
        producer = Producer({"bootstrap.servers": broker.servers})
        for second in range(first, last):
            producer.produce(source, value=str(1_000_000 + second), partition=second % 2)
        producer.flush()

    def away() -> None:
        raise InjectedFault("The sink is away.", safe="-", to_do="-")

    feed(0, 50)
    job = make()
    with running(job) as run, Tail(broker.servers, target) as tail:
        until(lambda: len(tail.read()) >= 3, lambda: f"windows that the watermark closes: {tail.values} {run.error}")
        with hooked("epoch.opened", away), pytest.raises(InjectedFault):
            job.stop_with_savepoint(str(tmp_path / "savepoints"), drain=True)
        run.join()
    feed(50, 100)
    job = make()
    with running(job) as run, Tail(broker.servers, target) as tail:
        until(lambda: len(tail.read()) >= 8, lambda: f"windows that the watermark closes: {tail.values} {run.error}")
        made = Path(job.stop_with_savepoint(str(tmp_path / "savepoints"), drain=True))
        run.join()
    found = {}
    for message in read_committed(broker.servers, target):
        row = json.loads(message.value())
        assert row["start"] not in found
        found[row["start"]] = row["count"]
    assert found == {1_000_000 + start: 10 for start in range(0, 100, 10)}
    assert savepoints.read(LocalTree(made)).drained
    assert_nothing_open(broker.servers, "windows")
    with pytest.raises(JobDrained):
        make().run()
    feed(100, 110)
    with running(make(**{"execution.state-recovery.path": str(storage / "windows")})) as run:
        until(lambda: living(run) and any(event["event"] == "completed" for event in run.events), "a late epoch")
        run.stop()
    restored = next(event for event in run.events if event["event"] == "restored")
    assert restored["drained"]
    assert restored["beyond"] == {}
