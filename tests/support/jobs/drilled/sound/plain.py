"""Sound: a projection into Parquet."""

from tests.support.jobs.drilled.place import files, make_job, numbers

job = make_job("plain")
job.write(job.read(numbers(), uid="numbers").selectExpr("id", "account", "amount * 2 AS double"), files(), uid="out")
