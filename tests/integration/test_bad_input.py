"""Whatever is wrong is said in three sentences; once it is put right the job goes on, nothing lost, nothing doubled."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock import Checkpoints, DataGenSource, FileSink, Job, KafkaSink, KafkaSource, PenstockError, RestartStrategy
from penstock.checkpoint.layout import seal
from penstock.errors import (
    AccessDenied,
    ConfigurationError,
    DuplicateUid,
    LedgerCorrupt,
    LedgerError,
    LedgerFromTheFuture,
    OutcomeUnknown,
    SchemaMismatch,
    StorageFull,
    SystemUnavailable,
    TimeoutsContradict,
    TopicMissing,
    UidChanged,
    ValueTooLarge,
)
from penstock.failpoints import InjectedFault, hooked
from tests.support.disks import SmallDisk
from tests.support.run_job import Checkpoint, CrashAt, Kafka, Numbers, Watched, failing, run_all, until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from penstock import Source, TwoPhaseSink
    from tests.support.servers.broker import Broker
    from tests.support.servers.security import SecureBroker, SecurityFiles

pytestmark = pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")

ROWS = 400
NUMBERS = Counter(str(number) for number in range(ROWS))
QUICKLY = RestartStrategy.fixed_delay(1000, "50ms")


def generated() -> Source:
    return Numbers(ROWS, {"value": "cast(id AS string)"})


Make = Callable[..., Job]


@pytest.fixture
def make(session: SparkSession, storage: str) -> Make:
    """`make(source, sink)`: a job that copies, always of the same name, in the same checkpoint."""

    def made(
        source: Source,
        sink: TwoPhaseSink,
        *,
        source_uid: str = "in",
        uid: str = "out",
        where: str = storage,
        restart: RestartStrategy | None = None,
        **limits: Any,
    ) -> Job:
        job = Job(
            "bad",
            checkpoints=Checkpoints(storage=where, **limits),
            spark=session,
            restart=restart or RestartStrategy.none(),
        )
        job.write(job.read(source, uid=source_uid), sink, uid=uid)
        return job

    return made


def says(error: BaseException, *parts: str) -> None:
    """All three sentences are there, and in them what a reader needs."""
    assert isinstance(error, PenstockError)
    assert error.happened
    assert error.safe
    assert error.to_do
    text = str(error)
    assert text.index("Safe: ") < text.index("To do: ")
    for part in parts:
        assert part in text, (part, text)


def lines_in(folder: Path) -> Counter[str]:
    """The values of all JSON files that a reader sees in `folder`."""
    lines = (line for part in folder.glob("part-*") for line in part.read_text().splitlines())
    return Counter(json.loads(line)["value"] for line in lines)


# What is not there


def test_a_missing_source_topic(make: Make, kafka: Kafka, running: type[Watched]) -> None:
    target = kafka.topic()
    name = f"{target}-source"

    def job() -> Job:
        return make(KafkaSource(name, servers=kafka.servers), KafkaSink(target, servers=kafka.servers))

    says(failing(job(), TopicMissing), name, "nothing was started", "create the topic")
    kafka.topic(name=name)
    kafka.send(name, [(None, value) for value in NUMBERS])
    with running(job()):
        kafka.read_until(target, ROWS)
    assert kafka.values(target) == NUMBERS


def test_a_missing_target_topic(make: Make, kafka: Kafka) -> None:
    name = f"{kafka.topic()}-target"
    error = failing(make(generated(), KafkaSink(name, servers=kafka.servers)), TopicMissing)
    says(error, name, "visible", "create_topic")
    run_all(make(generated(), KafkaSink(name, servers=kafka.servers, create_topic=True, partitions=3)))
    assert kafka.values(name) == NUMBERS
    assert len(kafka.partitions(name)) == 3


def test_a_job_that_writes_nothing(session: SparkSession, storage: str) -> None:
    job = Job("idle", checkpoints=Checkpoints(storage=storage), spark=session)
    job.read(generated(), uid="in")
    says(failing(job, ConfigurationError), "'idle' writes nothing", "job.write")


def test_a_sink_without_its_column(session: SparkSession, storage: str) -> None:
    """Refused when it is written, and the uid is still free for the frame that is right."""
    job = Job("shapes", checkpoints=Checkpoints(storage=storage), spark=session)
    numbers = job.read(Numbers(10, {"id": "id"}), uid="in")
    sink = KafkaSink("anything", servers="nowhere:1")
    with pytest.raises(SchemaMismatch) as refused:
        job.write(numbers, sink, uid="out")
    says(refused.value, "value", "id")
    with pytest.raises(SchemaMismatch, match="timestamp"):
        job.write(numbers.selectExpr("'a' AS value", "id AS timestamp"), sink, uid="out")
    job.write(numbers.selectExpr("cast(id AS string) AS value"), sink, uid="out")


# Who may not


def test_a_wrong_password(make: Make, sasl_broker: SecureBroker, security: SecurityFiles) -> None:
    plain = Kafka(sasl_broker.servers)
    here, there = plain.topic(), plain.topic()
    right, wrong = security.client("alice"), security.client("alice", "wrong")

    def job(reading: dict[str, str], writing: dict[str, str]) -> Job:
        servers = sasl_broker.sasl_servers
        source = KafkaSource(here, servers=servers, options=reading)
        return make(source, KafkaSink(there, servers=servers, options=writing), timeout="2s")

    for reading, writing in ((wrong, right), (right, wrong)):
        error = failing(job(reading, writing), AccessDenied)
        says(error, "password", "uthentication")
        assert "wonder" not in str(error)
        assert not error.retryable  # type: ignore[attr-defined]


def test_a_job_over_sasl_ssl(
    make: Make, sasl_broker: SecureBroker, security: SecurityFiles, running: type[Watched], storage: str
) -> None:
    """Source, sink, the driver's commits and the group's positions, all with a password over TLS."""
    plain = Kafka(sasl_broker.servers)
    here, there = plain.topic(), plain.topic()
    plain.send(here, [(None, value) for value in NUMBERS])
    options, servers = security.client("alice"), sasl_broker.sasl_servers
    job = make(KafkaSource(here, servers=servers, options=options), KafkaSink(there, servers=servers, options=options))
    with running(job):
        plain.read_until(there, ROWS)
    assert plain.values(there) == NUMBERS
    written = "".join(path.read_text() for path in Path(storage).rglob("*.json"))
    assert security.users["alice"] not in written


def test_a_folder_that_may_not_be_written(make: Make, tmp_path: Path, disk: SmallDisk) -> None:
    disk.protect()
    out, kept = FileSink(str(disk.folder / "out"), format="json"), FileSink(str(tmp_path / "out"), format="json")
    says(failing(make(generated(), out), AccessDenied), str(disk.folder), "nothing was started", "right to write")
    where = str(disk.folder / "checkpoints")
    says(failing(make(generated(), kept, where=where), LedgerError), where, "may be written")

    disk.unprotect()
    run_all(make(generated(), out))
    run_all(make(generated(), kept, where=where))
    assert lines_in(disk.folder / "out") == lines_in(tmp_path / "out") == NUMBERS


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SmallDisk]:
    made = SmallDisk(tmp_path / "disk", monkeypatch)
    yield made
    made.close()


# No space


def test_a_full_disk_under_the_ledger(make: Make, tmp_path: Path, disk: SmallDisk, running: type[Watched]) -> None:
    """The decision cannot be written: nothing of the epoch is visible, the job tries again, and goes on."""
    out = tmp_path / "out"
    sink, where = FileSink(str(out), format="json"), str(disk.folder / "checkpoints")
    with hooked("epoch.sealed", disk.fill), running(make(generated(), sink, where=where, restart=QUICKLY)) as run:
        failed = run.wait_for("failed")
        assert failed["error"].startswith("StorageFull: No space left while writing"), failed
        run.wait_for("restarting", times=2)  # registering the next run needs space as well
        assert not lines_in(out)
        disk.free()
        run.wait_for("stopped", error=None)
    assert lines_in(out) == NUMBERS


def test_a_full_disk_under_the_files(make: Make, disk: SmallDisk, running: type[Watched]) -> None:
    if not disk.real:
        _full_disk_under_one_writer(disk)
        return
    sink = FileSink(str(disk.folder / "out"), format="json")
    with hooked("epoch.opened", disk.fill), running(make(generated(), sink, restart=QUICKLY)) as run:
        failed = run.wait_for("failed")
        assert failed["error"].startswith("StorageFull: No space"), failed
        assert "Safe: nothing of this epoch is visible" in failed["error"]
        assert not lines_in(disk.folder / "out")
        disk.free()
        run.wait_for("stopped", error=None)
    assert lines_in(disk.folder / "out") == NUMBERS


def _full_disk_under_one_writer(disk: SmallDisk) -> None:
    """Without a real disk: the same refusal, in this process."""
    import pyarrow as pa

    from penstock.contracts.sink import SinkScope, WriterScope

    sink = FileSink(str(disk.folder / "out"), format="json")
    writer = sink.open_writer(WriterScope(SinkScope("bad", "out", 1), 0, 1, 0, 0))
    writer.write(pa.RecordBatch.from_pydict({"value": ["1"]}))
    disk.fill()
    with pytest.raises(StorageFull) as full:
        writer.pre_commit()
    says(full.value, "nothing of this epoch is visible")
    disk.free()
    writer.abort()


def test_a_disk_that_is_full_at_the_start(make: Make, disk: SmallDisk) -> None:
    sink = FileSink(str(disk.folder / "out"), format="json")
    disk.fill()
    where = {} if disk.real else {"where": str(disk.folder / "checkpoints")}
    says(failing(make(generated(), sink, **where), StorageFull), "No space", "free")
    disk.free()
    run_all(make(generated(), sink))
    assert lines_in(disk.folder / "out") == NUMBERS


# Brokers that are away


@pytest.fixture(scope="module")
def mortal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker that tests may kill."""
    from tests.support.servers.broker import Broker

    with Broker.start(tmp_path_factory.mktemp("mortal"), heap="256m") as broker:
        yield broker


def test_a_broker_that_is_down_at_the_start(make: Make, mortal: Broker, running: type[Watched]) -> None:
    kafka = Kafka(mortal.servers)
    here, there = kafka.topic(), kafka.topic()
    kafka.send(here, [(None, value) for value in NUMBERS])

    def job() -> Job:
        source, sink = KafkaSource(here, servers=mortal.servers), KafkaSink(there, servers=mortal.servers)
        return make(source, sink)

    mortal.kill()
    error = failing(job(), SystemUnavailable)
    says(error, mortal.servers, "nothing was started")
    assert error.retryable  # type: ignore[attr-defined]
    mortal.restart()
    with running(job()):
        kafka.read_until(there, ROWS)
    assert kafka.values(there) == NUMBERS


def test_a_broker_that_comes_up_later(make: Make, mortal: Broker, running: type[Watched]) -> None:
    """The restart strategy is asked at the start, too."""
    mortal.running or mortal.restart()
    kafka = Kafka(mortal.servers)
    topic = kafka.topic()
    mortal.kill()
    job = make(generated(), KafkaSink(topic, servers=mortal.servers), restart=QUICKLY)
    with running(job) as run:
        assert "did not answer" in str(run.wait_for("restarting")["error"])
        mortal.restart()
        kafka.read_until(topic, ROWS)


def test_a_broker_that_dies_on_the_way(make: Make, mortal: Broker, running: type[Watched]) -> None:
    """The strategy tries until it is back; meanwhile nothing is guessed. (Every other moment: see tests/faults.)"""
    mortal.running or mortal.restart()
    kafka = Kafka(mortal.servers)
    topic = kafka.topic()
    job = make(generated(), KafkaSink(topic, servers=mortal.servers), restart=QUICKLY, commit_timeout="1s")
    with hooked("epoch.confirmed", mortal.kill), running(job) as run:
        error = str(run.wait_for("restarting")["error"])
        assert "Safe: " in error
        assert "To do: " in error
        mortal.restart()
        run.wait_for("stopped", error=None)
    assert kafka.values(topic) == NUMBERS


def test_a_stop_while_a_commit_cannot_be_proven(make: Make, mortal: Broker, running: type[Watched]) -> None:
    """Asked to end it ends, but not as if all were well: the decided epoch waits for the next start."""
    mortal.running or mortal.restart()
    kafka = Kafka(mortal.servers)
    topic = kafka.topic()
    first = running(make(generated(), KafkaSink(topic, servers=mortal.servers), restart=QUICKLY, commit_timeout="1s"))

    def die() -> None:
        mortal.kill()
        first.job.stop()

    with hooked("epoch.confirmed", die), pytest.raises(OutcomeUnknown) as unknown, first:
        first.wait_for("stopped")
    says(unknown.value, "Epoch 0", "is decided", "nothing is guessed", "answers")
    mortal.restart()
    run_all(make(generated(), KafkaSink(topic, servers=mortal.servers)))
    assert kafka.values(topic) == NUMBERS


# Times that cannot work


def test_a_transaction_shorter_than_an_epoch(make: Make, kafka: Kafka) -> None:
    topic = kafka.topic()
    sink = KafkaSink(topic, servers=kafka.servers, transaction_timeout="30s")
    error = failing(make(generated(), sink, interval="5s", timeout="1min"), TimeoutsContradict)
    says(error, "30 s", "65 s", "5 s", "60 s", "nothing was started", "raise transaction_timeout")
    run_all(make(generated(), sink, timeout="20s"))
    assert kafka.values(topic) == NUMBERS


def test_a_transaction_longer_than_the_broker_allows(make: Make, kafka: Kafka) -> None:
    topic = kafka.topic()
    sink = KafkaSink(topic, servers=kafka.servers, transaction_timeout="1h")
    error = failing(make(generated(), sink), TimeoutsContradict)
    says(error, "3600 s", "900 s", "transaction.max.timeout.ms=900000", "transaction_timeout='900s'")


# Names


def test_two_of_one_name(session: SparkSession, storage: str, tmp_path: Path) -> None:
    job = Job("names", checkpoints=Checkpoints(storage=storage), spark=session)
    numbers = job.read(generated(), uid="in")
    with pytest.raises(DuplicateUid) as refused:
        job.read(generated(), uid="in")
    says(refused.value, "Two sources", "'in'")
    sink = FileSink(str(tmp_path / "out"))
    job.write(numbers, sink, uid="out")
    with pytest.raises(DuplicateUid) as refused:
        job.write(numbers, sink, uid="out")
    says(refused.value, "Two sinks", "'out'")


@pytest.mark.parametrize("name", ["", "a b", "a/b", "../a", ".a", "ü", "a" * 101, "a:b", "a\n", None])
def test_names_with_bad_characters(session: SparkSession, storage: str, tmp_path: Path, name: Any) -> None:
    with pytest.raises(ConfigurationError) as refused:
        Job(name)
    says(refused.value, repr(name), "letters, digits")
    job = Job("names", checkpoints=Checkpoints(storage=storage), spark=session)
    with pytest.raises(ConfigurationError):
        job.read(generated(), uid=name)
    with pytest.raises(ConfigurationError):
        job.write(job.read(generated(), uid="in"), FileSink(str(tmp_path / "out")), uid=name)


def test_a_changed_query_or_source_uid(make: Make, tmp_path: Path, crash_at: CrashAt) -> None:
    sink = FileSink(str(tmp_path / "out"), format="json")
    crash_at("epoch.opened", 3)
    failing(make(generated(), sink), InjectedFault)
    crash_at.no_more()

    query = failing(make(generated(), sink, uid="renamed"), UidChanged)
    says(query, "['out']", "['renamed']", "allow_non_restored_state")
    source = failing(make(generated(), sink, source_uid="other"), UidChanged)
    says(source, "['in']", "['other']", "former uids")

    run_all(make(generated(), sink))
    assert lines_in(tmp_path / "out") == NUMBERS


def test_a_query_left_behind_on_purpose(session: SparkSession, storage: str, tmp_path: Path) -> None:
    def job(uid: str, **more: Any) -> Job:
        job = Job("left", checkpoints=Checkpoints(storage=storage), spark=session, **more)
        job.write(job.read(generated(), uid="in"), FileSink(str(tmp_path / uid), format="json"), uid=uid)
        return job

    run_all(job("old"))
    failing(job("new"), UidChanged)
    run_all(job("new", allow_non_restored_state=True))
    run_all(job("new"))  # once is enough
    assert lines_in(tmp_path / "new") == NUMBERS


def test_a_sink_renamed_while_a_decision_waits(
    session: SparkSession, kafka: Kafka, storage: str, crash_at: CrashAt
) -> None:
    topic = kafka.topic()

    def job(uid: str) -> Job:
        job = Job("renamed", checkpoints=Checkpoints(storage=storage), spark=session, restart=RestartStrategy.none())
        sink = KafkaSink(topic, servers=kafka.servers)

        @job.epoch(job.read(generated(), uid="in"), uid="query", sinks={uid: sink})
        def copy(batch: DataFrame, epoch: Any) -> None:
            epoch.write(batch, sink)

        return job

    crash_at("epoch.decided", 2)
    failing(job("before"), InjectedFault)
    crash_at.no_more()
    says(failing(job("after"), UidChanged), "before", "after", "epoch 1", "former uid")
    run_all(job("before"))
    assert kafka.values(topic) == NUMBERS


# A ledger that cannot be trusted


@pytest.fixture
def decided(make: Make, kafka: Kafka, storage: str, crash_at: CrashAt) -> tuple[Callable[[], Job], str, Path]:
    """A job that died between its decision for epoch 1 and the commit; its topic, and its ledger's folder."""
    topic = kafka.topic()

    def job() -> Job:
        return make(generated(), KafkaSink(topic, servers=kafka.servers))

    crash_at("epoch.decided", 2)
    failing(job(), InjectedFault)
    crash_at.no_more()
    return job, topic, Checkpoint(storage, "bad", "out").folder / "ledger"


def test_a_damaged_manifest(decided: tuple[Callable[[], Job], str, Path], kafka: Kafka) -> None:
    job, topic, ledger = decided
    [manifest] = (ledger / "epochs").glob("0000000001.*")
    good = manifest.read_bytes()
    middle = len(good) // 2
    for bad in (good[:middle], b"", good[:middle] + bytes([good[middle] ^ 1]) + good[middle + 1 :]):
        manifest.write_bytes(bad)
        says(failing(job(), LedgerCorrupt), manifest.name, "nothing was committed", "restore the file")
        assert sum(kafka.values(topic).values()) == 100
    manifest.write_bytes(good)
    events = run_all(job())
    assert [event["action"] for event in events if event["event"] == "recovered"] == ["finished"]
    assert kafka.values(topic) == NUMBERS


def test_a_ledger_of_a_newer_version(decided: tuple[Callable[[], Job], str, Path], kafka: Kafka) -> None:
    job, topic, ledger = decided
    for path in [*(ledger / "generations").iterdir(), *(ledger / "epochs").glob("0000000001.*")]:
        good = path.read_bytes()
        path.write_bytes(good.replace(b'"version":1}', b'"version":2}'))
        assert path.read_bytes() != good
        says(failing(job(), LedgerFromTheFuture), path.name, "version 2", "reads up to 1", "nothing was read further")
        path.write_bytes(good)
    run_all(job())
    assert kafka.values(topic) == NUMBERS


def test_positions_changed_under_a_decision(decided: tuple[Callable[[], Job], str, Path], kafka: Kafka) -> None:
    job, topic, ledger = decided
    barrier = ledger.parent / "spark" / "offsets" / "1"
    good = barrier.read_bytes()
    barrier.write_bytes(good.replace(b'"offset":200', b'"offset":300'))
    assert barrier.read_bytes() != good
    events = run_all(job())
    assert [event["epoch"] for event in events if event["event"] == "log_restored"] == [1]
    assert barrier.read_bytes() == good, "the decision holds the right ones"
    assert kafka.values(topic) == NUMBERS


def test_sealed_files_are_written_as_they_are_read() -> None:
    """The tampering above relies on it."""
    assert seal("probe", {}).endswith(b'"version":1}\n')


# Rows


def test_null_keys_and_values_and_empty_epochs(session: SparkSession, kafka: Kafka, storage: str) -> None:
    topic = kafka.topic()
    job = Job("nulls", checkpoints=Checkpoints(storage=storage), spark=session)
    rows = job.read(Numbers(400, {"id": "id"}), uid="in")
    middle = rows.where("id >= 200 AND id < 210")  # epochs 0, 1 and 3 are empty
    key, value = (f"CASE WHEN id % {divisor} = 0 THEN cast(id AS string) END" for divisor in (2, 3))
    frame = middle.selectExpr(f"{key} AS key", f"{value} AS value")
    job.write(frame, KafkaSink(topic, servers=kafka.servers), uid="out")
    events = run_all(job)

    def text(number: int, divisor: int) -> bytes | None:
        return str(number).encode() if number % divisor == 0 else None

    assert Counter(kafka.read(topic)) == Counter((text(n, 2), text(n, 3)) for n in range(200, 210))
    assert [event["rows"] for event in events if event["event"] == "committed"][:4] == [0, 0, 10, 0]


def test_large_values(session: SparkSession, kafka: Kafka, storage: str, running: type[Watched]) -> None:
    """Five megabytes each, all the way through."""
    size = 5_000_000
    config = {"max.message.bytes": str(size + 10_000)}
    here, there = kafka.topic(1, config), kafka.topic(1, config)
    kafka.send(here, [(str(number), bytes([65 + number]) * size) for number in range(4)])
    job = Job("large", checkpoints=Checkpoints(storage=storage), spark=session)
    frame = job.read(KafkaSource(here, servers=kafka.servers), uid="in").select("key", "value")
    job.write(frame, KafkaSink(there, servers=kafka.servers), uid="out")
    with running(job) as run:
        run.committed(1)
    assert [(key, len(value or b""), (value or b"")[:1]) for key, value in kafka.read(there)] == [
        (str(number).encode(), size, bytes([65 + number])) for number in range(4)
    ]


def test_a_value_too_large_for_the_topic(make: Make, kafka: Kafka) -> None:
    """No retry can help, so none is made; once the limit is raised the same job goes on."""
    from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

    topic = kafka.topic(1, {"max.message.bytes": "100000"})
    large = "CASE WHEN id = 250 THEN repeat('x', 200000) ELSE cast(id AS string) END"
    source = Numbers(ROWS, {"value": large})
    events: list[Any] = []
    with pytest.raises(ValueTooLarge) as refused:
        make(source, KafkaSink(topic, servers=kafka.servers), restart=QUICKLY).run(on_event=events.append)
    says(refused.value, "200,0", topic, "nothing of this epoch is visible", "max.message.bytes")
    assert not [event for event in events if event["event"] == "restarting"]
    assert kafka.values(topic) == Counter(str(number) for number in range(200))

    limit = ConfigEntry("max.message.bytes", "300000", incremental_operation=AlterConfigOpType.SET)
    admin = AdminClient({"bootstrap.servers": kafka.servers})
    [changed] = admin.incremental_alter_configs(
        [ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[limit])]
    ).values()
    changed.result(30)

    def raised() -> bool:
        [asked] = admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic)]).values()
        return bool(asked.result(30)["max.message.bytes"].value == "300000")

    until(raised, "the raised limit")
    run_all(make(source, KafkaSink(topic, servers=kafka.servers)))
    result = kafka.values(topic)
    assert result.pop("x" * 200_000) == 1
    assert result == NUMBERS - Counter(["250"])


@pytest.mark.long
def test_many_partitions(session: SparkSession, storage: str, tmp_path: Path) -> None:
    """Most of them empty for the sink: they cost a task each, and nothing in the target."""
    job = Job("wide", checkpoints=Checkpoints(storage=storage), spark=session)
    source = DataGenSource(120, partitions=120, columns={"value": "cast(id AS string)"})
    some = job.read(source, uid="in").where("cast(value AS int) % 40 = 0")
    job.write(some, FileSink(str(tmp_path / "out"), format="json"), uid="out")
    run_all(job)
    assert lines_in(tmp_path / "out") == Counter(str(number) for number in range(0, 120, 40))
    [manifest] = Checkpoint(storage, "wide", "out").manifests.values()
    assert len(manifest["committables"]) == 120
