"""What the SQL sinks share: one committer, one move of staged rows, one mapper of errors, over a `Dialect`.

    dialect     the verbs (prepare, commit, rollback, recover, move, fence, prune, quote), and what markers prove
    committer   `SqlCommitter`: hints, seal, commit, abort, sweep, leftovers, pruning
    moves       the driver's connections, and the transaction that moves an epoch's staging tables
    faults      `ErrorMapper`: a driver's errors become Penstock's by a table of `Rule`s
    rows        columns and keys against the table, nested columns as JSON
    names       of transactions and staging tables, and how they are found again
    modes       how an epoch becomes visible

It may import what all sinks may (`contracts`, `checkpoint`, `errors`, `deadline`, …), no client library, and no
database's own folder. Nothing here writes SQL: statements are a dialect's.

A third database is one file, beside the types of its columns: a `Dialect` that says in its docstring what its answers
prove (what a prepared transaction that is missing means, how an open one is told from one that is gone, when a staging
table goes), a tuple of `Rule`s for its error codes, and a `TwoPhaseSink` whose `open_committer` returns
`SqlCommitter(dialect)` and whose writers end with the statements of `Dialect.prepare` and the payload of `payload_of`.
It keeps the two tables of `dialect` and the names of `names`; `tests/support/mysql_model.py` shows the model of a
server that its unit tests need."""
