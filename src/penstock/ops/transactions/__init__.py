"""What dead jobs have left open in other systems, and its end, for people: `penstock transactions`.

May import `epoch`, `sinks`, `process` (to see whether a job lives) and what lies below them.

`ledgers.JobLedgers` reads a job's ledgers, `orphans.look` puts what is open beside what they say, `settlement` commits
what is decided and aborts what is not, by the coroutines of `epoch.protocol`; `kafka` finds Kafka's transactions where
the job's own file is not at hand.
"""
