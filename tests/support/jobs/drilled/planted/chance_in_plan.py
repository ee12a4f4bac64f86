"""Planted: rows get random ids."""

from pyspark.sql import functions as f

from tests.support.jobs.drilled.place import files, make_job, numbers

job = make_job("chance_in_plan")
job.write(job.read(numbers(), uid="numbers").withColumn("row", f.expr("uuid()")), files(), uid="out")
