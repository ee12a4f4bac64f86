"""The job that `tests/faults/test_aside.py` kills: rows from a Kafka topic into a PostgreSQL table, refused ones into a
topic aside.

python aside.py CONFIG.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from penstock import Checkpoints, Job, Json, KafkaSink, KafkaSource, PostgresSink, RestartStrategy, parse

ROW = "id bigint, name string, amount decimal(12,2), code string"


def build(config: dict[str, str]) -> Job:
    job = Job(
        config["name"],
        checkpoints=Checkpoints(storage=config["storage"], interval=0.1),
        restart=RestartStrategy.none(),
        conf={"spark.master": "local[2]", "spark.driver.memory": "512m"},
    )
    source = KafkaSource(config["source"], servers=config["servers"], max_offsets_per_epoch=int(config["rows"]))
    rows = parse(job.read(source, uid="rows"), Json(ROW)).select("value.*")
    table = PostgresSink(config["dsn"], table=config["table"], mode="two_phase", create=False)
    aside = KafkaSink(config["aside"], servers=config["servers"])
    job.write(rows, table, uid="table", aside=aside, aside_limit="50%")
    return job


if __name__ == "__main__":
    build(json.loads(Path(sys.argv[1]).read_text())).run()
