"""Planted: the plan asks the clock."""

from pyspark.sql import functions as f

from tests.support.jobs.drilled.place import files, make_job, numbers

job = make_job("clock_in_plan")
job.write(job.read(numbers(), uid="numbers").withColumn("at", f.current_timestamp()), files(), uid="out")
