"""Planted: the program says that its source can give rows again, and it gives others."""

import random

from pyspark.sql.datasource import DataSource, SimpleDataSourceStreamReader

from tests.support.jobs.drilled.place import files, make_job


class Sensor(DataSource):
    @classmethod
    def name(cls) -> str:
        return "sensor"

    def schema(self) -> str:
        return "id bigint, degrees double"

    def simpleStreamReader(self, schema):  # type: ignore[no-untyped-def]  # noqa: N802
        return Reader()


class Reader(SimpleDataSourceStreamReader):
    def initialOffset(self):  # type: ignore[no-untyped-def]  # noqa: N802
        return {"at": 0}

    def read(self, start):  # type: ignore[no-untyped-def]
        return self.readBetweenOffsets(start, end := {"at": start["at"] + 100}), end

    def readBetweenOffsets(self, start, end):  # type: ignore[no-untyped-def]  # noqa: N802
        return iter([(at, random.random()) for at in range(start["at"], end["at"])])


job = make_job("source_without_memory")
job.spark.dataSource.register(Sensor)
rows = job.read(job.spark.readStream.format("sensor"), uid="sensor", replayable=True)
job.write(rows, files(), uid="out")
