"""What the SQL sinks share: one committer, one move of staged rows, one mapper of errors, over a `Dialect`.

    dialect     the verbs (prepare, commit, rollback, recover, move, fence, prune), and what markers prove
    committer   `SqlCommitter`: hints, seal, commit, abort, sweep, leftovers, pruning; the move of staging tables
    faults      `ErrorMapper`: a driver's errors become Penstock's by a table of `Rule`s
    tables      modes, names of transactions and staging tables, columns and keys, nested columns as JSON

Nothing here writes SQL or imports a client library: that is a dialect's.

A third database is a `Dialect` whose docstring states what its answers prove, a tuple of `Rule`s, and a `TwoPhaseSink`
whose `open_committer` returns `SqlCommitter(dialect)` and whose writers end with the statements of `Dialect.prepare`
and the payload of `payload_of`. `tests/support/mysql_model.py` shows the model of a server for its unit tests."""
