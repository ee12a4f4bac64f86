"""A running job's ear: HTTP on this machine, with the paths and answers of Flink's REST interface.

`serving.serving` is open while a job runs, `app.application` has the paths, `requests` reads what comes in,
`operations` does long work, `lifecycle` follows the job's state and says in `Steerable` what is asked of a job.
`metrics` and `traces` make numbers and spans of the job's events, of the times that `phases` puts together.
`client.Client` is the other side, for the command line, and imports no Starlette. May import process, savepoints,
config and lower.
"""
