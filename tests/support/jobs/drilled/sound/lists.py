"""Sound: sorted lists by window; Spark calls collect_list itself not deterministic."""

from pyspark.sql import functions as f

from tests.support.jobs.drilled.place import files, make_job, numbers

job = make_job("lists")
rows = job.read(numbers(), uid="numbers").withWatermark("ts", "1 second").groupBy(f.window("ts", "500 milliseconds"))
job.write(rows.agg(f.array_sort(f.collect_list("id")).alias("ids")).select("ids"), files(), uid="out")
