"""Planted: an epoch's function counts its rows in a file beside the sinks."""

from tests.support.jobs.drilled.place import FOLDER, files, make_job, numbers

job, sink = make_job("append_in_epoch"), files()


@job.epoch(job.read(numbers(), uid="numbers"), uid="count", sinks={"out": sink})
def count(batch, epoch):  # type: ignore[no-untyped-def]
    epoch.write(batch, sink)
    with open(FOLDER / "counts.txt", "a") as file:
        file.write(f"{batch.count()}\n")
