"""Sound: a Python function reads a file, keeps what it has computed, and works in a temporary file."""

import functools
import tempfile

from pyspark.sql import functions as f

from tests.support.jobs.drilled.place import INPUT, files, make_job, numbers

job = make_job("reads_a_file")
rows = job.read(numbers(), uid="numbers")


@functools.cache
def table() -> int:
    with open(next(INPUT.iterdir())) as file, tempfile.TemporaryFile("w") as copy:
        return copy.write(file.read())


@f.udf("bigint")
def known(id: int) -> int:
    return id + table()


job.write(rows.select("id", known("id").alias("known")), files(), uid="out")
