"""What users get wrong over Connect, in one client; what each of it raises is printed, as JSON by its name.

python connect_mistakes.py URL FOLDER
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import penstock


class Mistakes:
    def __init__(self, url: str, folder: Path) -> None:
        self._spark = SparkSession.builder.remote(url).getOrCreate()
        self._spark.dataSource.register(penstock.StreamSink)
        self._folder = folder

    def run(self, options: Mapping[str, str], epochs: int, column: str = "value AS n") -> str:
        """Until there are so many epochs; the error, if it fails before."""
        rows = self._spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load()
        query = rows.selectExpr(column).writeStream.format("penstock").options(**options).start()
        commits = Path(options["checkpointLocation"]) / "commits"
        while query.isActive and not (commits / str(epochs - 1)).exists():
            time.sleep(0.1)
        error = query.exception()
        query.stop()
        return str(error)

    def options(self, name: str, **more: str) -> dict[str, str]:
        place = self._folder / name
        files = {"sink": "files", "path": str(place / "out"), "uid": "out"}
        return {**files, "checkpointLocation": str(place / "checkpoint"), **more}

    def unknown_option(self) -> str:
        return self.run(self.options("unknown", pth="elsewhere"), 1)

    def option_missing(self) -> str:
        options = self.options("missing")
        del options["uid"]
        return self.run(options, 1)

    def ledger_missing(self) -> str:
        return self.run(self.options("ledger", ledger="/proc/not-there"), 1)

    def ledger_of_another_kind(self) -> str:
        return self.run(self.options("hdfs", ledger="hdfs://there/ledgers"), 1)

    def one_uid_twice(self) -> str:
        ledgers = str(self._folder / "ledgers")
        assert self.run(self.options("one", ledger=ledgers), 1) == "None"
        return self.run(self.options("two", ledger=ledgers), 1)

    def schema_changed(self) -> str:
        options = self.options("schema", sink="delta")
        assert self.run(options, 1) == "None"
        return self.run(options, 3, "cast(value AS string) AS other")

    def job(self) -> str:
        try:
            penstock.Job("shop", spark=self._spark).read(penstock.DataGenSource(1), uid="in")
        except penstock.PenstockError as error:
            return f"{type(error).__name__}: {error}"
        return "None"

    def drop_in(self) -> str:
        try:
            penstock.exactly_once(penstock.FileSink(str(self._folder)), uid="out", spark=self._spark)
        except penstock.PenstockError as error:
            return f"{type(error).__name__}: {error}"
        return "None"


def main(url: str, folder: Path) -> None:
    made = Mistakes(url, folder)
    each: list[Callable[[], Any]] = [
        made.unknown_option, made.option_missing, made.ledger_missing, made.ledger_of_another_kind, made.one_uid_twice,
        made.schema_changed, made.job, made.drop_in,
    ]  # fmt: skip
    sys.stdout.write(json.dumps({mistake.__name__: mistake() for mistake in each}))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
