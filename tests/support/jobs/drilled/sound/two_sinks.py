"""Sound: one epoch into two sinks, the second from a collected number."""

from pyspark.sql import functions as f

from tests.support.jobs.drilled.place import files, make_job, numbers

job, all_rows, large = make_job("two_sinks"), files("all"), files("large", "json")


@job.epoch(job.read(numbers(), uid="numbers"), uid="split", sinks={"all": all_rows, "large": large})
def split(batch, epoch):  # type: ignore[no-untyped-def]
    epoch.write(batch, all_rows)
    if batch.count():
        epoch.write(batch.where(f.col("amount") > 9000).select("id"), large)
