"""One epoch, from input positions to visible output, and every way in which it can end.

May import `contracts`, `checkpoint`, `config` and what lies below them; never a sink, a source, or what runs a job.

* `protocol`: every step and its order, as coroutines without I/O. Read this first.
* `driver.ProtocolDriver`: carries the steps out. `coordinator.Coordinator` does so for a query that Spark runs,
  `inflight.drainer.Drainer` from the in-flight log, `transactions.settlement.Settlement` for a job that is dead.
* `attempt.Attempt`, `preparation.Preparation`, `modes.Delivery`: one try at an epoch, how it is prepared, and how it
  becomes visible in the job's mode. `committers.Committers` and `stragglers.Stragglers`: the sinks, and what tasks that
  were given up leave in them.
* `outputs`, `task`, `channel`, `checksum`: the way of the rows, from a DataFrame to a writer in a Spark task.
* `explain`: how each of the protocol's ends is told to people.
"""
