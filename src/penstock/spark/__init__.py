"""What a query asks of Spark. It knows nothing of sinks, savepoints or jobs.

`session` makes or finds the Spark session of a job, `settings` applies the job's settings to it, `masters` says where
tasks run. `executors` asks those of a cluster what they have, `warm_up` does the work of a start ahead. `query` is
Spark's side of one query, and whether Spark still calls; `status` is what Spark knows of it. `parse` reads JSON.
`python_daemon` runs inside Spark's workers and imports nothing of ours.
"""
