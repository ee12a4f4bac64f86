"""Sound: sums by window, with a watermark."""

from pyspark.sql import functions as f

from tests.support.jobs.drilled.place import files, make_job, numbers

job = make_job("windows")
rows = job.read(numbers(), uid="numbers").withWatermark("ts", "1 second")
sums = rows.groupBy(f.window("ts", "1 second")).agg(f.sum("amount").alias("sum"), f.count("*").alias("rows"))
job.write(sums.select("window.start", "sum", "rows"), files(), uid="out")
