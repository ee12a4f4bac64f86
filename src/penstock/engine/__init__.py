"""One epoch, from input positions to visible output, and every way in which it can end; and the queries that run it.

May import `savepoints`, `spark`, `contracts`, `checkpoint`, `config` and what lies below them; never operations, the
command line or what serves development.

* `protocol`: every step and its order, as coroutines without I/O. Read this first. `modes`: the weaker modes.
* `driver.LedgerRun`: one run of a ledger and its sinks. `coordinator.Coordinator` drives the protocol with it for a
  query that Spark runs, `drainer.Drainer` from the in-flight log, `settlement.Settlement` for a dead job.
* `attempt`, `preparation`, `output_jobs`, `task`, `checksum`: one attempt at an epoch, from a DataFrame to a writer in
  a Spark task. `committers`: the sinks, and what given-up tasks leave in them. `inflight`: the log of a late sink.
* `run`, `query`, `streaming`, `observer`: the queries of a job, started in Spark, restarted, recorded. `control`: the
  interfaces for operations; `steering` carries out their commands.
"""
