"""A deterministic simulation: the real coordinator, ledger, recovery, drainer, lease and committers, in simulated time,
over a disk, a Kafka cluster, a PostgreSQL server and an object store that are played in memory.

`world` is one history; `run` runs many (`make simulate`); `planted` has the bugs that it must find.
"""
