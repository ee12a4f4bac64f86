"""What a job keeps of itself so that it can go on after anything: its layout on disk, and every durable record.

`layout` owns all names and the seal of all files. `ledger` (with the values in `decision`) holds what was decided,
`spark_log` and `spark_files` read what Spark keeps of the same query, `belonging` says whether the two are each
other's, and `open` leads to both. `record` and `history` are a job's checkpoints and restores, `backlog` and
`inflight_log` the rows that wait for a sink, and `lease` says which of several supervisors runs the job.

May import: `storage` and `config`, and what is below them.
"""
