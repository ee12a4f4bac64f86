"""Sound: pandas, batch by batch."""

from tests.support.jobs.drilled.place import files, make_job, numbers

job = make_job("by_batch")


def double(batches):  # type: ignore[no-untyped-def]
    for batch in batches:
        yield batch.assign(id=batch["id"] * 2)


rows = job.read(numbers(), uid="numbers").select("id")
job.write(rows.mapInPandas(double, "id bigint"), files(), uid="out")
