"""A client of a Connect server that runs the lines of docs/how-to/connect.md over a folder of text files.

python connect_page.py URL SERVERS TOPIC FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import SparkSession

from tests.support.before_and_after import pair, run


def main(url: str, servers: str, topic: str, folder: Path) -> None:
    spark = SparkSession.builder.remote(url).getOrCreate()
    for part, code in zip(("before", "after"), pair("Spark Connect", topic), strict=True):
        alerts = spark.readStream.format("text").load(str(folder / "in"))
        run(code, alerts=alerts, servers=servers, path=str(folder / part))
        [query] = spark.streams.active
        query.processAllAvailable()
        query.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], Path(sys.argv[4]))
