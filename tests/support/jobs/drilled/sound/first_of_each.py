"""Sound: duplicates are dropped within a watermark."""

from tests.support.jobs.drilled.place import files, make_job, numbers

job = make_job("first_of_each")
rows = job.read(numbers({"id": "id % 2000", "ts": "timestamp_millis(id)"}), uid="numbers")
job.write(rows.withWatermark("ts", "1 hour").dropDuplicatesWithinWatermark(["id"]).select("id"), files(), uid="out")
