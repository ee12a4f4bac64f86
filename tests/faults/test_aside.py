"""A driver dies by SIGKILL between its tasks and the end of the commit, at every point there is, and workers with it:
every row is in the table or aside, once, with its place in the source, and the sum of every epoch is true."""

from __future__ import annotations

import json
import random
import signal
from collections import Counter
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from confluent_kafka import Producer

from penstock import failpoints
from penstock.checkpoint.record import records
from penstock.storage.local import LocalStorage
from tests.support.jobs import aside
from tests.support.kafka import Tail, assert_nothing_open, create_topic
from tests.support.processes import JobProcess
from tests.support.servers.broker import Broker
from tests.support.servers.postgres import Postgres
from tests.support.waiting import until

POINTS = [
    *("task.written", "task.sifted", "task.prepared", "epoch.precommitted", "epoch.sealed", "epoch.decided"),
    *("epoch.confirmed", "commit.first", "epoch.committed", "recover.committed"),
]
TABLE = """CREATE TABLE {} (id bigint UNIQUE, name varchar(10) NOT NULL, amount numeric(6,2) CHECK (amount >= 0),
  code uuid)"""
CODE = "0190a5b8-2f10-7000-8000-000000000001"
KINDS: list[dict[str, Any]] = [
    {"name": None}, {"name": "x" * 11}, {"amount": "-1.00"}, {"amount": "123456.00"}, {"code": "none"}, {"id": None},
]  # fmt: skip


def fed(servers: str, topic: str, rows: int, bad: int) -> dict[int, int]:
    """Send so many rows, of which so many are bad; by number of each bad row, its kind. A row of the last kind has the
    id of the row before it, in the same partition."""
    wrong = {number: index % len(KINDS) for index, number in enumerate(range(1, rows, rows // bad))}
    producer = Producer({"bootstrap.servers": servers, "queue.buffering.max.messages": 2_000_000})
    for number in range(rows):
        body: dict[str, Any] = {"id": number, "name": f"n{number}", "amount": "1.50", "code": CODE}
        if (kind := wrong.get(number)) is not None:
            body |= KINDS[kind] if kind < 5 else {"id": number - 1}
        producer.produce(topic, json.dumps(body), key=str(number), partition=number // 2 % 2)
        producer.poll(0)
    assert producer.flush(60) == 0
    return wrong


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("rows", "bad", "kills"),
    [pytest.param(2_000, 100, 0, id="small"), pytest.param(1_000_000, 1_000, 10, id="a million")],
)
def test_every_row_is_in_one_place_wherever_a_process_is_killed(
    broker: Broker, postgres: Postgres, tmp_path: Path, rows: int, bad: int, kills: int
) -> None:
    table, name = f"orders_{uuid4().hex[:8]}", f"aside-{uuid4().hex[:8]}"
    config = {"name": name, "servers": broker.servers, "dsn": postgres.dsn, "table": table, "rows": str(rows // 20)}
    config |= {"source": create_topic(broker.servers, 2), "aside": create_topic(broker.servers, 2)}
    config |= {"storage": str(tmp_path / "checkpoints")}
    (tmp_path / "config.json").write_text(json.dumps(config))
    once = tmp_path / "once"
    once.mkdir()
    with psycopg.connect(postgres.dsn, autocommit=True) as database, Tail(broker.servers, config["aside"]) as tail:
        database.execute(TABLE.format(table).encode())
        wrong = fed(broker.servers, config["source"], rows, bad)

        def visible() -> int:
            [(there,)] = database.execute(f"SELECT count(*) FROM {table}".encode()).fetchall()
            return int(there) + len(tail.read())

        environment = {failpoints.VARIABLE: ";".join(f"{point}=crash" for point in POINTS), failpoints.ONCE: str(once)}
        deaths = 0
        while True:
            arguments = [str(tmp_path / "config.json")]
            with JobProcess(Path(aside.__file__), arguments, tmp_path, environment=environment) as run:
                goal = visible() + random.randrange(1, rows // 20) if deaths < kills + len(POINTS) else rows

                def over(run: JobProcess = run, goal: int = goal) -> bool:
                    return run.status is not None or visible() >= min(goal, rows)

                until(over, "rows, or a death", 300)
                done = run.status is None and visible() >= rows
                if run.status is None and done:
                    run.terminate()
                    assert run.wait() == 0, run.tail()
                    break
                assert run.status in (None, 1, -signal.SIGKILL), run.tail()
                deaths += 1  # leaving the block kills what is left
        assert {path.name for path in once.iterdir()} == set(POINTS)

        found = database.execute(f"SELECT id FROM {table} ORDER BY id".encode()).fetchall()
        assert [number for (number,) in found] == [number for number in range(rows) if number not in wrong]
        places = Counter((body["source"]["partition"], body["source"]["offset"]) for body in tail.read())
        assert len(places) == places.total() == bad, "each once"
        reasons = Counter(body["reason"] for body in tail.read())
        assert len(reasons) == len(KINDS), reasons
    counted = 0
    by_epoch = Counter(body["epoch"] for body in tail.values)
    for record in records(LocalStorage(tmp_path / "checkpoints" / name / "table")):
        if record.outcome == "complete" and record.sums is not None and "in" in record.sums:
            sums, counted = record.sums, counted + 1
            assert sums["in"]["rows"] == sums["out"].get("table", 0) + sums["aside"] + sums["filtered"]
            assert (sums["aside"], sums["filtered"]) == (by_epoch[record.epoch], 0)
    assert counted
    assert_nothing_open(broker.servers, name)
