"""Sound: a join with a frame that does not stream."""

from tests.support.jobs.drilled.place import files, make_job, numbers

job = make_job("joined")
names = job.spark.range(10).selectExpr("id AS digit", "concat('digit ', id) AS name")
rows = job.read(numbers(), uid="numbers").selectExpr("id", "id % 10 AS digit")
job.write(rows.join(names, "digit"), files(), uid="out")
