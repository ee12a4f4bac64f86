"""What the SQL sinks share: one committer, one move of staged rows, one mapper of errors, over a `Dialect`.

    dialect     the verbs (prepare, commit, rollback, recover, move, fence, prune), and what markers prove
    committer   `SqlCommitter`: hints, seal, commit, abort, sweep, leftovers, pruning; the move of staging tables
    faults      `ErrorMapper`: a driver's errors become Penstock's by a table of `Rule`s
    tables      modes, names of transactions and staging tables, columns and keys, nested columns as JSON

It may import what all sinks may (`contracts`, `checkpoint`, `errors`, `deadline`, …), no client library, and no
database's own folder. Nothing here writes SQL: statements are a dialect's.

A third database is one file, beside the types of its columns: a `Dialect` whose docstring states what its answers prove
(what a missing prepared transaction means, how an open one differs from one that is gone, when a staging table goes), a
tuple of `Rule`s for its error codes, and a `TwoPhaseSink` whose `open_committer` returns `SqlCommitter(dialect)` and
whose writers end with the statements of `Dialect.prepare` and the payload of `payload_of`. It keeps the two tables of
`dialect` and the names of `tables`; `tests/support/mysql_model.py` shows the model of a server for its unit tests."""
