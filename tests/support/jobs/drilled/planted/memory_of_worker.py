"""Planted: a Python function numbers rows by what its process has seen."""

from pyspark.sql import functions as f

from tests.support.jobs.drilled import place
from tests.support.jobs.drilled.place import files, make_job, numbers

job = make_job("memory_of_worker")
rows = job.read(numbers(), uid="numbers")
number = f.udf(lambda number: next(place.SEEN), "bigint")
job.write(rows.select("id", number("id").alias("number")), files(), uid="out")
