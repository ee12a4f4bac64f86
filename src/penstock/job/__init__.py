"""A job as its user writes it: read sources, write sinks, run.

`job.Job` is the user's class, `dropin.exactly_once` the one line for a query that exists already. `query.QueryRunner`
runs one query, `group.QueryGroup` all queries of a job as one. `restore_point` says what a start goes on from,
`lease` is its turn among several supervisors, `assembly` builds the coordinator, `global_checkpoint` records consistent
cuts, `retention` deletes, and `steering` answers what is asked from outside. May import everything below it: server,
transactions, process, savepoints, sources, sinks, spark, epoch and lower.
"""
