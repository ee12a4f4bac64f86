"""A client of a Connect server, as users write one: it starts a query with `format("penstock")` into files, waits for
epochs, and leaves. It imports nothing of Penstock: the server finds the format by itself.

python connect_client.py URL FOLDER EPOCHS
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from pyspark.sql import SparkSession


def main(url: str, folder: Path, epochs: int) -> None:
    spark = SparkSession.builder.remote(url).getOrCreate()
    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load().select("value")
    query = (
        rows.writeStream.format("penstock")
        .options(sink="files", path=str(folder / "out"), uid="out")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .start()
    )
    while query.isActive and not (folder / "checkpoint" / "commits" / str(epochs - 1)).exists():
        time.sleep(0.2)
    if (error := query.exception()) is not None:
        sys.stderr.write(f"QUERY FAILED: {error}\n")
        sys.exit(1)
    query.stop()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
