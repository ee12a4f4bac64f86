"""Run by test_s3.py: checkpoints, ledger, savepoints and output on a real S3 server through `s3a`. Tells it as JSON.

`story` is a job that dies and recovers; `large` is savepoints; `racer` is one of two drivers that register generations
in one ledger at the same time.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from penstock import Checkpoints, FileSink, Job, RestartStrategy
from penstock.checkpoint.open import ledger_at
from penstock.errors import StorageNotAtomic
from penstock.failpoints import InjectedFault, hooked
from penstock.spark.session import session
from penstock.storage.local import storage_at, tree_at
from penstock.storage.s3 import S3Folder
from penstock.supply.jars import jar_set
from tests.support.hdfs_story import outcome_of, savepoints
from tests.support.run_job import Numbers
from tests.support.waiting import until

ROWS = 1_500
RACERS, REGISTRATIONS = 2, 10
LAKE = "s3a://lake"


def connect() -> Any:
    classes = os.pathsep.join(map(str, jar_set("spark-s3")))
    hadoop = json.loads(os.environ["PENSTOCK_TEST_HADOOP"])
    conf = {"spark.master": "local[2]", "spark.driver.extraClassPath": classes, "penstock.log.level": "OFF", **hadoop}
    return session("s3", conf=conf, jars=(), local_storage=False)


def racer() -> dict[str, Any]:
    """The racers meet before each registration: one alone could be through before the other has begun."""
    spark = connect()
    ledger, meeting = ledger_at(f"{LAKE}/raced", spark, retained=10), storage_at(f"{LAKE}/meeting", spark)
    generations = []
    for turn in range(REGISTRATIONS):
        meeting.create(f"turn-{turn}/{os.getpid()}", b"here")
        until(lambda: len(meeting.list(f"turn-{turn}")) == RACERS, "all racers to be here")  # noqa: B023
        generations.append(ledger.register({"sources": []}))
    return {"generations": generations}


def unconditional() -> dict[str, Any]:
    """The ledger on a store that does not heed the condition of a put."""
    try:
        ledger_at(f"{LAKE}/unconditional", connect(), retained=10)
    except StorageNotAtomic as error:
        return {"refused": str(error)}
    return {"refused": None}


def story() -> dict[str, Any]:
    spark, told = connect(), dict[str, Any](rows=ROWS)
    storage = storage_at(f"{LAKE}/names", spark)
    storage.create("a/one.json", b"1")
    told["second_create"] = outcome_of(lambda: storage.create("a/one.json", b"2"))
    with ThreadPoolExecutor(4) as pool:
        outcomes = list(pool.map(lambda _: outcome_of(lambda: storage.create("a/race.json", b"x")), range(4)))
    told["winners_of_a_race"] = outcomes.count("created")
    told["listed"] = storage.list("a")
    storage.delete("a/one.json")
    told["left"] = storage.list("a")

    def die() -> None:
        raise InjectedFault("dies after the decision")

    with hooked("epoch.decided", die):
        told["first_run"] = outcome_of(lambda: run(spark, []))
    events: list[Any] = []
    run(spark, events)
    told["recovered"] = next(event["action"] for event in events if event["event"] == "recovered")
    told["ids"], told["uploads"] = sorted(ids()), len(S3Folder("s3://lake/out").uploads("part-"))
    told["secrets_found"] = secrets_in(tree_at(f"{LAKE}/ck", spark))
    return told


def large() -> dict[str, Any]:
    """Savepoints from S3 to S3 and to a disk, and back."""
    spark = connect()
    tree = tree_at(f"{LAKE}/large", spark)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "one.bin").write_bytes(os.urandom(1 << 20) * 40)  # several parts of an upload
        local = tree_at(folder, spark)
        tree.take(local, {"one.bin": "one.bin"})
        same = tree.digest("one.bin") == local.digest("one.bin")
        return {"large_file_is_the_same": same, **savepoints(spark, LAKE, Path(folder))}


def run(spark: Any, events: list[Any]) -> None:
    job = Job("s3", checkpoints=Checkpoints(storage=f"{LAKE}/ck"), spark=spark, restart=RestartStrategy.none())
    rows = job.read(Numbers(ROWS, {"id": "id"}, per_epoch=500), uid="numbers")
    job.write(rows, FileSink(f"{LAKE}/out"), uid="files")
    job.run(on_event=events.append)


def ids() -> list[int]:
    from io import BytesIO

    import pyarrow.parquet as pq

    out = S3Folder("s3://lake/out")
    bodies = [out.read(name) or b"" for name in out.names("part-")]
    return [number for body in bodies for number in pq.read_table(BytesIO(body))["id"].to_pylist()]


def secrets_in(tree: Any) -> list[str]:
    """The files of a checkpoint that hold a key of the server."""
    keys = [os.environ[name].encode() for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")]
    return [name for name in tree.files() if any(key in (tree.storage.read(name) or b"") for key in keys)]


if __name__ == "__main__":
    sys.stdout.write(
        json.dumps({"story": story, "racer": racer, "large": large, "unconditional": unconditional}[sys.argv[1]]())
        + "\n"
    )
