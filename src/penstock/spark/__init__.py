"""What a query asks of Spark. It knows nothing of sinks, savepoints or jobs.

`session.session` makes or finds the Spark session, `settings` applies a job's settings to it, `masters` says where
tasks run. `executors` asks those of a cluster what they have, `warm_up` does the work of a start ahead. `query` is
Spark's side of one query, `status` what Spark knows of it, `liveness` whether Spark still calls. `parse` reads JSON.
`python_daemon` runs inside Spark's workers and imports nothing of ours.
"""
