"""Sound: a Python function that depends on its argument alone."""

from pyspark.sql import functions as f

from tests.support.jobs.drilled.place import files, make_job, numbers

job = make_job("pure_udf")
rows = job.read(numbers(), uid="numbers")
square = f.udf(lambda number: number * number, "bigint")
job.write(rows.select("id", square("id").alias("square")), files(), uid="out")
