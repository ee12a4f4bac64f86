"""What a query asks of Spark. It knows nothing of sinks, savepoints or jobs.

`python_daemon` runs inside Spark's workers and imports nothing of ours.
"""
