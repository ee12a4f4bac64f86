"""Planted: a Python function stamps each row with the time."""

import time

from pyspark.sql import functions as f

from tests.support.jobs.drilled.place import files, make_job, numbers

job = make_job("clock_in_udf")
rows = job.read(numbers(), uid="numbers")
stamp = f.udf(lambda number: time.time(), "double")
job.write(rows.select("id", stamp("id").alias("at")), files(), uid="out")
