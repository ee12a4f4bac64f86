"""Sound: two sources in one query."""

from tests.support.jobs.drilled.place import files, make_job, numbers

job = make_job("union")
left = job.read(numbers({"id": "id", "side": "'left'"}), uid="left")
right = job.read(numbers({"id": "id", "side": "'right'"}), uid="right")
job.write(left.union(right), files(), uid="out")
