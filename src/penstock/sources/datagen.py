"""A source that makes up its rows: for examples, drills and benchmarks, and for a first job without any broker.

Spark only remembers how many rows it has taken, and every column is a SQL expression over a row's number. So the source
replays exactly, on any number of partitions, after any crash.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from penstock.contracts.source import Source
from penstock.errors import ConfigurationError
from penstock.sources.streams import register, stream_reader

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: Rows of an epoch when neither a rate nor `max_rows_per_epoch` says how many: about a second of work on two cores.
ROWS_PER_EPOCH = 200_000

#: Payments of a thousand accounts, one every millisecond of event time.
PAYMENTS: Mapping[str, str] = {
    "id": "id",
    "account": "concat('acc-', lpad(cast(pmod(xxhash64(id, seed), 1000) AS string), 4, '0'))",
    "amount": "cast(pmod(xxhash64(id, seed, 'amount'), 1000000) * 0.01 AS decimal(12, 2))",
    "ts": "timestamp_millis(1767225600000 + id)",
}


class DataGenSource(Source):
    """Rows numbered from 0, with columns computed from the number.

    `rows` ends the input after so many; without it the source never ends. `rate` is in rows a second; without it an
    epoch takes `max_rows_per_epoch` rows as fast as the job can. `columns` maps names to SQL expressions over `id`
    (bigint) and `seed` (bigint); only these are in the output. Without it the rows are payments: `id bigint,
    account string, amount decimal(12,2), ts timestamp`.

    An expression that is not a pure function (`rand()`, `uuid()`) is refused, because a replay would give other rows.
    """

    paced_by_position: ClassVar[bool] = True

    def __init__(
        self,
        rows: int | None = None,
        *,
        rate: float | None = None,
        partitions: int = 2,
        columns: Mapping[str, str] | None = None,
        seed: int = 0,
        max_rows_per_epoch: int | None = None,
    ) -> None:
        for name, value, least in (
            ("rows", rows, 0),
            ("rate", rate, 0.001),
            ("partitions", partitions, 1),
            ("max_rows_per_epoch", max_rows_per_epoch, 1),
            ("the number of columns", None if columns is None else len(columns), 1),
        ):
            if value is not None and value < least:
                happened = f"DataGenSource cannot work with {name} = {value}."
                raise ConfigurationError(happened, to_do=f"give {least} or more, or leave it out.")
        self.rows, self.rate, self.partitions = rows, rate, partitions
        self.columns = dict(PAYMENTS if columns is None else columns)
        self.seed, self.max_rows_per_epoch = seed, max_rows_per_epoch

    def load(self, spark: SparkSession, uid: str) -> DataFrame:
        from pyspark.sql import functions as f

        from penstock.sources.readers import DataGen

        register(spark, DataGen)
        # A rate already bounds the epoch, except after a stall, where one large epoch catches up best.
        most = self.max_rows_per_epoch or max(ROWS_PER_EPOCH, int((self.rate or 0) * 10))
        wanted = {"partitions": self.partitions, "most": most, "rows": self.rows, "rate": self.rate}
        options = {name: value for name, value in wanted.items() if value is not None}
        numbers = stream_reader(spark, uid).format(DataGen.name()).options(**options).load()
        frame = numbers.withColumn("seed", f.lit(self.seed).cast("bigint")).select(
            *(f.expr(expression).alias(name) for name, expression in self.columns.items())
        )
        execution = getattr(frame, "_jdf", None)  # a Spark Connect frame has none, and no way to ask
        if execution is not None and not execution.queryExecution().analyzed().deterministic():
            raise ConfigurationError(
                "A column of DataGenSource is not a pure function of id and seed, so a replay would give other rows.",
                to_do="use xxhash64(id, seed, 'name of the column') where you would use rand() or uuid().",
            )
        return frame

    def finished(self, offset: Any) -> bool:
        if self.rows is None or offset is None:
            return False
        position = json.loads(offset) if isinstance(offset, str) else offset
        return int(position["next"]) >= self.rows

    @property
    def bounded(self) -> bool:
        return self.rows is not None

    def describe(self) -> str:
        much = "rows without end" if self.rows is None else f"{self.rows:,} rows"
        return f"generated, {much}" + (f" at {self.rate:,g} a second" if self.rate is not None else "")
