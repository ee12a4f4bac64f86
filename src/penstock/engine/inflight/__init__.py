"""The in-flight log: what an epoch holds for a sink that has not taken it yet, and its delivery later.

    tasks    rows ──▶ log file (Arrow IPC, lz4)          and, unless the sink lags already, ──▶ the sink's transaction
    driver   decision names the log files ──▶ backlog record ──▶ the epoch is complete
    drainer  backlog, oldest first ──▶ the sink, each epoch with a two-phase commit of its own ──▶ log removed

To the epoch protocol the log is just another place that commits: recording an epoch in the backlog is its commit,
idempotent and possible from any process. From the backlog to the sink runs the same protocol once more, over a ledger
of its own. So there is one recovery, used twice, and no third state to reason about.
"""
