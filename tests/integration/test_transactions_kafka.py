"""Transactions that a dead job left open at a real broker: listed, and ended the way the ledger says."""

from __future__ import annotations

import json
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from penstock import Checkpoints, Job, KafkaSink, RestartStrategy
from penstock.contracts.sink import SinkScope, WriterScope
from penstock.failpoints import InjectedFault
from penstock.sinks.kafka.pool import POOL
from tests.support.command import run_command
from tests.support.kafka import open_transactions, transactions
from tests.support.run_job import CrashAt, Kafka, Numbers, failing, run_all
from tests.support.waiting import until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Penstock = Callable[..., tuple[int, Any, str]]

#: The job's file, as `--job` loads it.
PROGRAM = """
from pyspark.sql import SparkSession
from tests.integration.test_transactions_kafka import build

job = build(SparkSession.active(), {servers!r}, {topic!r}, {storage!r}, {job!r})
"""


@pytest.fixture
def penstock(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Penstock:
    """`penstock transactions … --json`: exit status, what it printed, what it complained."""
    monkeypatch.setattr(sys, "path", [*sys.path])  # loading a job's file adds its folder

    def call(*arguments: str) -> tuple[int, Any, str]:
        capfd.readouterr()
        status, out, err = run_command(monkeypatch, capfd, "transactions", *arguments, "--json")
        return status, json.loads(out) if out else None, err

    return call


def stray(kafka: Kafka, topic: str, job: str, uid: str, generation: int = 1) -> str:
    """A writer of that run prepares one row and is never heard of again; the transaction's id."""
    sink = KafkaSink(topic, servers=kafka.servers, transactional_id_prefix="team")
    writer = sink.open_writer(WriterScope(SinkScope(job, uid, generation), 9, 1, 0, 0))
    writer.write(pa.RecordBatch.from_pydict({"value": [b"stray"]}))
    prepared = writer.pre_commit()
    POOL.clear()  # as if its process had died
    return str(prepared["transactional_id"])


def build(session: SparkSession, servers: str, topic: str, storage: str, job: str) -> Job:
    made = Job(job, checkpoints=Checkpoints(storage=storage), restart=RestartStrategy.none(), spark=session)
    rows = made.read(Numbers(300, {"value": "cast(id AS string)"}), uid="rows")
    sink = KafkaSink(topic, servers=servers, transactional_id_prefix="team")
    made.write(rows, sink, uid="copy")
    return made


def test_a_dead_jobs_decision_is_carried_out_and_the_rest_aborted(
    session: SparkSession,
    kafka: Kafka,
    storage: str,
    crash_at: CrashAt,
    penstock: Penstock,
    tmp_path: Path,
) -> None:
    """It dies between decision and commit of its second epoch. Afterwards the job goes on, and all is there once."""
    job, topic = f"orders-{uuid.uuid4().hex[:8]}", kafka.topic()
    crash_at("epoch.decided", 2)
    failing(build(session, kafka.servers, topic, storage, job), InjectedFault)
    crash_at.no_more()
    lost = stray(kafka, topic, job, "copy")
    visible = len(kafka.read(topic))
    program = tmp_path / "orders.py"
    program.write_text(PROGRAM.format(servers=kafka.servers, topic=topic, storage=storage, job=job))
    by_file = ("--job", str(program))

    status, told, _ = penstock("list", f"{storage}/{job}")
    assert (status, told["job"], told["running"]) == (0, job, False)
    assert {one["state"] for one in told["transactions"]} == {"not asked"}
    status, told, _ = penstock("list", *by_file)
    decided = [one["id"] for one in told["transactions"] if one["ledger"] == "decided"]
    assert [one["id"] for one in told["transactions"] if one["ledger"] == "undecided"] == [lost]
    assert len(decided) == 2
    assert all(one["state"] == "open" and one["generation"] == 1 for one in told["transactions"])
    status, [told], _ = penstock("describe", lost, *by_file)
    assert told["details"]["timeout_seconds"] == 900
    assert [place.rpartition("-")[0] for place in told["details"]["partitions"]] == [topic]
    assert abs(told["started"] - time.time()) < 300

    status, _, complaint = penstock("abort", decided[0], *by_file)
    assert (status, json.loads(complaint)["error"]) == (1, "TransactionRefused")
    assert len(open_transactions(kafka.servers, f"team-{job}")) == 3

    status, told, _ = penstock("commit", *by_file)
    assert (status, [one["outcome"] for one in told]) == (0, ["committed", "committed"])
    assert {one["complete"] for one in told} == {True}
    status, told, _ = penstock("abort", *by_file)
    assert (status, told) == (0, [{"query": "copy", "sink": "copy", "id": lost, "outcome": "aborted"}])
    until(lambda: transactions(kafka.servers, f"team-{job}")[lost] == "CompleteAbort", "the broker to abort it")
    assert len(kafka.read(topic)) == visible + 100
    assert penstock("list", *by_file)[1]["transactions"] == []

    run_all(build(session, kafka.servers, topic, storage, job))
    assert kafka.values(topic) == {str(number): 1 for number in range(300)}
