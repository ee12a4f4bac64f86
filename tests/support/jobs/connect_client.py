"""A thin client of a Connect server: starts one query with `format("penstock")` into files, waits for rows, leaves.

python connect_client.py URL FOLDER EPOCHS [OPTION=VALUE ...]
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from pyspark.sql import SparkSession

import penstock


def main(url: str, folder: Path, epochs: int, more: dict[str, str]) -> None:
    spark = SparkSession.builder.remote(url).getOrCreate()
    spark.dataSource.register(penstock.StreamSink)
    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load().select("value")
    options = {"sink": "files", "path": str(folder / "out"), "uid": "out", **more}
    query = (
        rows.writeStream.format("penstock")
        .options(**options)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .start()
    )
    commits = folder / "checkpoint" / "commits"
    while query.isActive and not (commits / str(epochs - 1)).exists():
        time.sleep(0.2)
    if (error := query.exception()) is not None:
        sys.stderr.write(f"QUERY FAILED: {error}\n")
        sys.exit(1)
    query.stop()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), dict(pair.split("=", 1) for pair in sys.argv[4:]))
