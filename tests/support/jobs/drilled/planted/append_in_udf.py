"""Planted: a Python function writes a line for each row into a file, which a replay writes again."""

from pyspark.sql import functions as f

from tests.support.jobs.drilled.place import FOLDER, files, make_job, numbers

job = make_job("append_in_udf")
rows = job.read(numbers(), uid="numbers")


@f.udf("bigint")
def note(id: int) -> int:
    with open(FOLDER / "sent.txt", "a") as file:
        file.write(f"{id}\n")
    return id


job.write(rows.select(note("id").alias("id")), files(), uid="out")
