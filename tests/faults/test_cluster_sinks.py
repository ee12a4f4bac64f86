"""A join on a cluster, whose rows go into every kind of sink under one decision, while executors and the driver die."""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pyarrow.parquet as pq
import pymysql
import pytest

from tests.support.cluster_chaos import CONF, EXECUTOR_MEMORY
from tests.support.jobs import wide
from tests.support.jobs.wide import Wide
from tests.support.kafka import Input, assert_nothing_open, create_topic, read_committed
from tests.support.processes import JobProcess
from tests.support.servers.broker import Broker
from tests.support.servers.mariadb import MariaDb
from tests.support.servers.postgres import Postgres
from tests.support.servers.redis import RedisServer
from tests.support.servers.spark import SparkCluster
from tests.support.verdicts import assert_none, number_anomalies
from tests.support.waiting import until

pytestmark = pytest.mark.long

PATIENCE = 240.0


def found(config: Wide) -> dict[str, Counter[int]]:
    """The ids that a reader of each target sees."""
    import redis
    from deltalake import DeltaTable
    from pyiceberg.catalog import load_catalog

    with psycopg.connect(config.postgres) as database:
        postgres = [row[0] for row in database.execute(f'SELECT id FROM "{config.table}"')]
    with pymysql.connect(**config.mysql, database="test") as connection, connection.cursor() as cursor:
        cursor.execute(f"SELECT id FROM `{config.table}`")
        mysql = [int(row[0]) for row in cursor.fetchall()]
    client: Any = redis.Redis.from_url(config.redis)
    keys = list(client.scan_iter(f"{config.name}:*"))
    counts = {int(key.decode().rpartition(":")[2]): int(client.get(key)) for key in keys}
    catalog = load_catalog("default", **config.catalog)  # the name that a sink uses unless told otherwise
    return {
        "topic": Counter(int(row.value()) for row in read_committed(config.servers, config.topic)),
        "files": Counter(pq.read_table(f"{config.folder}/files").column("id").to_pylist()),
        "postgres": Counter(postgres),
        "mysql": Counter(mysql),
        "redis": Counter(counts),
        "delta": Counter(DeltaTable(f"{config.folder}/delta").to_pyarrow_table().column("id").to_pylist()),
        "iceberg": Counter(catalog.load_table("shop.rows").scan().to_arrow().column("id").to_pylist()),
    }


def test_every_sink_has_every_row_once(broker: Broker, postgres: Postgres, tmp_path: Path) -> None:
    source = Input(broker.servers, create_topic(broker.servers, 2, prefix="in"))
    with (
        MariaDb.start() as mariadb,
        RedisServer.start(tmp_path / "redis") as redis,
        SparkCluster.start(tmp_path / "spark", workers=2, memory=EXECUTOR_MEMORY) as cluster,
    ):
        config = Wide(
            name=f"wide-{uuid4().hex[:8]}",
            servers=broker.servers,
            source=source.topic,
            storage=str(tmp_path / "checkpoints"),
            topic=create_topic(broker.servers, 2, prefix="out"),
            postgres=postgres.dsn,
            mysql=mariadb.login,
            redis=redis.url,
            folder=str(tmp_path),
            table=f"wide_{uuid4().hex[:8]}",
            conf={**CONF, "spark.master": cluster.url, "spark.sql.shuffle.partitions": "2"},
        )
        arguments = [str(config.write(tmp_path / "config.json"))]

        def start() -> JobProcess:
            return JobProcess(Path(wide.__file__), arguments, tmp_path)

        def wait(run: JobProcess) -> None:
            def visible() -> bool:
                assert run.status is None, run.tail()
                return len(read_committed(broker.servers, config.topic)) >= len(source.rows)

            until(visible, run.tail, PATIENCE)

        source.feed(100)
        with start() as run:
            wait(run)
            os.kill(cluster.executors()[0], signal.SIGKILL)
            source.feed(100)
            wait(run)
            source.feed(100)
            run.kill()
        with start() as run:
            wait(run)
            run.terminate()
            assert run.wait(PATIENCE) == 0, run.tail()
        for name, rows in found(config).items():
            assert_none(number_anomalies((row.id for row in source.rows), rows.elements()), name)
        assert_nothing_open(broker.servers, config.name)
