"""What a job keeps of itself so that it can go on after anything: its layout on disk, and every durable record.

`layout` owns all names and the seal of all files. `ledger` (with the values in `decision`) holds what was decided,
`spark_log` and `spark_files` read what Spark keeps of the same query, `open` leads to both and checks that they belong
together, and `log_repair` restores Spark's log from the ledger. `record` and `history` are a job's checkpoints and
restores, `inflight` the rows that wait for a sink, and `lease_log` says which of several supervisors runs the job.

May import: `storage` and `config`, and what is below them.
"""
