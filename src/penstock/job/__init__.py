"""A job as its user writes it: read sources, write sinks, run.

`job.Job` is the user's class, `dropin.exactly_once` the one line for a query that exists already. Both only describe:
`engine.run` runs the queries, and `ops.attach` adds operations to the run.
"""
