"""The audit over real systems and real ledgers: nothing to find after a job that crashed, and one row lost, doubled or
changed by hand is named with its epoch and writer, wherever the place can prove it."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pymysql
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from penstock import Checkpoints, DeltaSink, FileSink, IcebergSink, Job, KafkaSink, MySqlSink, PostgresSink
from penstock.audit.compare import CHANGED, NO_LONGER, NOT_PROVABLE
from penstock.audit.report import Audit, Report
from penstock.audit.stores import rows_of
from penstock.checkpoint.layout import seal, unseal
from penstock.cli.audit import columns_of
from penstock.contracts.sink import TwoPhaseSink
from penstock.engine.settlement import JobLedgers
from penstock.ops.process.registry import Entry, State
from penstock.ops.server.history import read_audit
from penstock.testing.anomalies import ABORTED, DUPLICATE, LOST
from tests.support.command import run_command
from tests.support.own_home import use_own_home
from tests.support.run_job import CrashAt, Kafka, Numbers, run_all, until
from tests.support.servers.mariadb import MariaDb

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.support.servers.postgres import Postgres

ROWS = 300
TYPED = {
    "id": "id", "tiny": "cast(id % 100 AS tinyint)", "price": "cast(id AS decimal(12,2)) / 4",
    "wide": "cast(id AS decimal(30,2)) * -1", "name": "if(id % 3 = 0, null, concat('Zażółć ', id))",
    "raw": "encode(cast(id AS string), 'UTF-8')", "day": "date_add(date'2026-01-01', cast(id AS int))",
    "moment": "timestamp_micros(id * 1000001)", "local": "cast(timestamp_micros(id * 1000001) AS timestamp_ntz)",
    "flag": "id % 2 = 0", "share": "id / 7",
}  # fmt: skip
MESSAGE = {"key": "cast(id AS string)", "value": "if(id = 7, null, repeat(concat('row ', id), cast(id % 30 AS int)))"}

Facts = list[tuple[str, int | None, int | None, int]]


class Case:
    """A job of three epochs into one sink, and its audit."""

    def __init__(
        self, session: SparkSession, storage: str, sink: TwoPhaseSink, columns: dict[str, str], **options: Any
    ) -> None:
        self.folder = Path(storage) / "audited"
        self.job = Job("audited", checkpoints=Checkpoints(interval=0, storage=storage, **options), spark=session)
        self.job.write(self.job.read(Numbers(ROWS, columns), uid="numbers"), sink, uid="out")
        self._session = session

    def run(self) -> None:
        run_all(self.job)

    def rows(self) -> int:
        """As the drill reads them: every one, of any writer."""
        table = rows_of(self.job._sinks["out"])
        assert table is not None
        return int(table.num_rows)

    def audit(self) -> Audit:
        return Audit(JobLedgers.at(str(self.folder), self._session), self.job._sinks, columns_of(self.job))

    def report(self) -> Report:
        return self.audit().run()

    def facts(self, audit: Audit | None = None) -> Facts:
        findings = (audit or self.audit()).run().findings
        return [(each.kind, each.epoch, each.writer, each.rows) for each in findings]

    def manifest(self, epoch: int) -> tuple[Path, dict[str, Any]]:
        path = max((self.folder / "out/ledger/epochs").glob(f"{epoch:010d}.*"))
        return path, unseal("manifest", path.read_bytes(), str(path))

    def writers(self, epoch: int) -> dict[int, dict[str, Any]]:
        return {item[1]: item[5] for item in self.manifest(epoch)[1]["committables"] if item[2]}

    def decide_otherwise(self, epoch: int, writer: int, *, rows: int, checksum: int) -> None:
        """As if the writer had sent so many more rows, with so much more of a checksum, than the sink shows."""
        path, body = self.manifest(epoch)
        for item in body["committables"]:
            if item[1] == writer:
                item[2], item[3] = item[2] + rows, item[3] + checksum
        path.write_bytes(seal("manifest", body))


Build = Callable[..., Case]


@pytest.fixture
def build(session: SparkSession, storage: str, crash_at: CrashAt) -> Build:
    """A job that has died after its second decision and gone on, so that a recovery is part of what is audited."""

    def run(sink: TwoPhaseSink, columns: dict[str, str] = TYPED, **options: Any) -> Case:
        case = Case(session, storage, sink, columns, **options)
        crash_at("epoch.decided", 2)
        case.run()
        crash_at.no_more()
        return case

    return run


def test_kafka(build: Build, kafka: Kafka) -> None:
    topic = kafka.topic(3)
    case = build(KafkaSink(topic, servers=kafka.servers, options={"compression.type": "lz4"}), MESSAGE)
    following = case.audit()
    report = following.run()
    assert (report.status, report.findings) == (0, []), report.findings
    [entry] = report.sinks
    assert (entry["rows"], entry["first_epoch"], entry["last_epoch"]) == (ROWS, 0, 2)
    assert case.rows() == ROWS

    # Spark has not completed the last epoch yet: its rows are visible, and nothing is claimed of them.
    log = case.folder / "out/spark"
    hidden = [path for path in log.glob("commits/[0-9]*") if int(path.name) >= 2]
    hidden += [path for path in log.glob("offsets/[0-9]*") if int(path.name) >= 3]  # begun before the job was stopped
    for path in hidden:
        path.rename(log / f"{path.parent.name}-{path.name}")
    report = case.report()
    assert (report.status, report.sinks[0]["rows"], report.sinks[0]["not_yet"]) == (0, 200, 1)
    for path in hidden:
        (log / f"{path.parent.name}-{path.name}").rename(path)

    # One row doubled by another producer, and one that was never sent: found beside the writer of the first.
    writer = next(iter(case.writers(1)))
    doubled = next(row for row in kafka.read(topic) if row[0] == b"150")
    kafka.send(topic, [doubled])
    [(kind, epoch, by, rows)] = case.facts()
    assert (kind, epoch, rows) == (DUPLICATE, 1, 1)
    assert by in case.writers(1)
    assert case.facts(following) == case.facts(), "also by one that reads on from where it was"
    kafka.send(topic, [(b"150", b"never sent")])
    assert sorted(fact[0] for fact in case.facts()) == [ABORTED, DUPLICATE]

    # Kafka changes no row; a writer that decided one more, or another one, than is visible is the same to the reader.
    case.decide_otherwise(1, writer, rows=1, checksum=12345)
    case.decide_otherwise(2, writer, rows=0, checksum=1)
    facts = case.facts()
    assert (LOST, 1, writer, 1) in facts
    assert (CHANGED, 2, writer, 1) in facts


def test_kafka_told_apart_aborted_transactions_and_retention(build: Build, kafka: Kafka) -> None:
    topic = kafka.topic(1)
    case = build(KafkaSink(topic, servers=kafka.servers), {"value": "cast(id AS string)"})
    from confluent_kafka import Producer

    stranger = Producer({"bootstrap.servers": kafka.servers, "transactional.id": f"x-{uuid.uuid4()}"})
    stranger.init_transactions(30)
    stranger.begin_transaction()
    stranger.produce(topic, b"aborted")
    stranger.flush(30)
    assert case.facts() == [], "an open transaction is not visible"
    stranger.abort_transaction(30)
    assert case.facts() == []
    admin, before = AdminClient({"bootstrap.servers": kafka.servers}), TopicPartition(topic, 0, 40)
    for future in admin.delete_records([before]).values():
        future.result(30)
    facts = case.facts()
    assert {kind for kind, *_ in facts} == {NO_LONGER}
    assert {epoch for _, epoch, *_ in facts} == {0}
    assert case.report().status == 3
    for future in admin.delete_topics([topic]).values():
        future.result(30)
    until(lambda: topic not in admin.list_topics(timeout=10).topics, f"{topic} to be gone")
    assert {kind for kind, *_ in case.facts()} == {NO_LONGER}


@pytest.mark.parametrize("seconds", [0, 60])
def test_what_went_through_the_in_flight_log(build: Build, kafka: Kafka, seconds: int) -> None:
    """Delivered by the drainer: rewritten from the log, or as the sink had prepared it beside the log."""
    sink = KafkaSink(kafka.topic(2), servers=kafka.servers)
    case = build(sink, MESSAGE, unaligned=True, aligned_timeout=seconds)
    report = case.report()
    assert (report.findings, report.sinks[0]["rows"]) == ([], ROWS)


@pytest.mark.parametrize("form", ["parquet", "json", "csv"])
def test_files(build: Build, tmp_path: Path, form: Any) -> None:
    folder = tmp_path / "out"
    columns = {name: text for name, text in TYPED.items() if form != "csv" or name != "raw"}
    case = build(FileSink(str(folder), format=form), columns)
    assert case.facts() == []
    assert case.rows() == ROWS
    writer, payload = next(iter(case.writers(2).items()))
    path = folder / payload["final"]
    original = path.read_bytes()

    def rewrite(change: Callable[[list[Any]], list[Any]]) -> None:
        if form == "parquet":
            table = pq.read_table(pa.BufferReader(original))
            pq.write_table(pa.Table.from_pylist(change(table.to_pylist()), table.schema), path)
        else:
            path.write_bytes(b"".join(change(original.splitlines(keepends=True))))

    rewrite(lambda rows: rows[1:])
    assert case.facts() == [(LOST, 2, writer, 1)]
    rewrite(lambda rows: [*rows, rows[0]])
    assert case.facts() == [(DUPLICATE, 2, writer, 1)]
    if form == "parquet":
        rewrite(lambda rows: [{**rows[0], "price": rows[1]["price"]}, *rows[1:]])
    else:
        path.write_bytes(original.replace(b"true", b"tuer", 1))
    assert case.facts() == [(CHANGED, 2, writer, 1)]

    path.write_bytes(original)
    (folder / f"copy.{form}").write_bytes(original)
    assert case.facts() == [(DUPLICATE, 2, writer, len(_rows(case, writer)))]
    path.unlink()
    assert case.facts() == [], "the file has another name now, and every row"
    (folder / f"copy.{form}").unlink()
    assert case.facts() == [(NO_LONGER, 2, writer, len(_rows(case, writer)))]


def _rows(case: Case, writer: int) -> range:
    return range(next(item[2] for item in case.manifest(2)[1]["committables"] if item[1] == writer))


@pytest.mark.parametrize("mode", ["two_phase", "staged", "upsert"])
def test_postgres(build: Build, postgres: Postgres, mode: Any) -> None:
    table = f"audit_{uuid.uuid4().hex[:8]}"
    case = build(PostgresSink(postgres.dsn, table=table, mode=mode, key=["id"] if mode == "upsert" else ()))
    if mode == "upsert":
        assert [fact[0] for fact in case.facts()] == [NOT_PROVABLE]
        return
    assert case.facts() == []
    assert case.rows() == ROWS
    with psycopg.connect(postgres.dsn, autocommit=True) as connection:
        connection.execute(f"INSERT INTO {table} SELECT * FROM {table} WHERE id = 250")
        [(kind, epoch, writer, rows)] = case.facts()
        assert (kind, epoch, rows, writer is None) == (DUPLICATE, 2, 1, mode == "staged")
        connection.execute(f"DELETE FROM {table} WHERE id = 250")
        assert case.facts() == [(LOST, 2, writer, 1)]
        connection.execute(f"UPDATE {table} SET price = price + 1 WHERE id = 50")
        facts = case.facts()
        assert {(kind, epoch) for kind, epoch, *_ in facts} == {(LOST, 0), (LOST, 2), (ABORTED, None)}


@pytest.fixture(scope="module")
def mariadb() -> Iterator[MariaDb]:
    with MariaDb.start() as started:
        yield started


def test_mysql_is_compared_by_the_table(build: Build, mariadb: MariaDb) -> None:
    table = f"audit_{uuid.uuid4().hex[:8]}"
    case = build(MySqlSink(**mariadb.login, database="test", table=table))
    assert case.facts() == []
    assert case.rows() == ROWS
    with (
        pymysql.connect(**mariadb.login, database="test", autocommit=True) as connection,
        connection.cursor() as cursor,
    ):
        cursor.execute(f"UPDATE {table} SET price = price + 1 WHERE id = 50")
        assert case.facts() == [(CHANGED, None, None, 1)]
        cursor.execute(f"DELETE FROM {table} WHERE id = 250")
        assert case.facts() == [(LOST, None, None, 1)]


def _delta(folder: Path) -> tuple[TwoPhaseSink, Callable[[str], object], Callable[[], object]]:
    from deltalake import DeltaTable

    path = str(folder / "delta")
    return DeltaSink(path), lambda where: DeltaTable(path).delete(where), lambda: DeltaTable(path).optimize.compact()


def _iceberg(folder: Path) -> tuple[TwoPhaseSink, Callable[[str], object], None]:
    from pyiceberg.catalog import load_catalog

    folder.mkdir(exist_ok=True)
    properties = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}"}
    sink = IcebergSink("shop.orders", catalog="audit", properties=properties)
    return sink, lambda where: load_catalog("audit", **properties).load_table("shop.orders").delete(where), None


@pytest.mark.parametrize("table", [_delta, _iceberg])
def test_tables(build: Build, tmp_path: Path, table: Any) -> None:
    sink, delete, compact = table(tmp_path / "tables")
    case = build(sink)
    assert case.facts() == []
    assert case.rows() == ROWS
    if compact is not None:
        compact()
        assert case.facts() == [], "every row is in the table still, in another file"
    delete("id = 250")
    [(kind, epoch, writer, rows)] = case.facts()
    assert (kind, epoch, rows) == (LOST, 2, 1)
    assert writer in case.writers(2)


SCRIPT = """
from pyspark.sql import SparkSession

from penstock import Checkpoints, FileSink, Job
from tests.support.run_job import Numbers

job = Job("audited", checkpoints=Checkpoints(interval=0, storage={storage!r}), spark=SparkSession.getActiveSession())
job.write(job.read(Numbers(300, {{"id": "id"}}), uid="numbers"), FileSink({out!r}), uid="out")
"""


def test_the_command_and_its_reports(
    build: Build,
    storage: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    folder = tmp_path / "out"
    case = build(FileSink(str(folder)), {"id": "id"})
    script = tmp_path / "job.py"
    script.write_text(SCRIPT.format(storage=storage, out=str(folder)))
    files = {name: tmp_path / f"report.{name}" for name in ("json", "html", "metrics")}
    options = [part for name, path in files.items() for part in (f"--{name}", str(path))]

    status, out, _ = run_command(monkeypatch, capfd, "audit", str(script), *options)
    assert (status, "Every row is accounted for." in out) == (0, True)
    writer, payload = next(iter(case.writers(1).items()))
    path = folder / payload["final"]
    pq.write_table(pq.read_table(path).slice(1), path)
    status, out, _ = run_command(monkeypatch, capfd, "audit", str(script), *options)
    assert (status, LOST in out) == (1, True)
    report = json.loads(files["json"].read_text())
    assert (report["status"], report["unaccounted_rows"]) == (1, 1)
    [finding] = report["findings"]
    assert (finding["kind"], finding["epoch"], finding["writer"], finding["sink"]) == (LOST, 1, writer, "out")
    whole = pq.read_table(path).num_rows + 1
    assert "1 rows are not accounted for" in files["html"].read_text()
    assert 'penstock_audit_unaccounted_rows{job="audited",query="out",sink="out"} 1' in files["metrics"].read_text()
    path.unlink()
    status, *_ = run_command(monkeypatch, capfd, "audit", str(script))
    assert status == 3

    def meanwhile(seconds: float) -> None:
        """Between two looks of one that follows: a file is shortened; and then the user has seen enough."""
        if shortened:
            raise KeyboardInterrupt
        shortened.append(next(iter(case.writers(2).values()))["final"])
        pq.write_table(pq.read_table(folder / shortened[0]).slice(1), folder / shortened[0])

    shortened: list[str] = []
    monkeypatch.setattr("penstock.cli.audit.sleep", meanwhile)
    status, out, _ = run_command(monkeypatch, capfd, "audit", str(script), "--follow")
    assert (status, out.count(NO_LONGER), out.count(LOST)) == (130, 1, 1), out

    # By the run, whose storage may have been set with -D; its report is kept for the page.
    run = uuid.uuid4().hex
    registry = use_own_home(tmp_path, monkeypatch)
    registry.put(Entry(run, "audited", State.FINISHED, start=1, end=2, script=str(script), storage=storage))
    script.write_text(SCRIPT.format(storage=str(tmp_path / "elsewhere"), out=str(folder)))
    status, *_ = run_command(monkeypatch, capfd, "audit", "audited")
    kept = read_audit(run)
    assert kept is not None
    assert (status, kept["status"], kept["sinks"][0]["rows"]) == (1, 1, ROWS)
    missing = [(each["epoch"], each["decided"] - each["visible"], each["unaccounted"]) for each in kept["epochs"]]
    assert missing == [(0, 0, 0), (1, whole, 0), (2, 1, 1)]
