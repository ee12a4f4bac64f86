"""What the SQL sinks share. Nothing here writes SQL or imports a client library: that is a dialect's.

A third database is a `Dialect` whose docstring states what its answers prove, a tuple of `Rule`s, and a `TwoPhaseSink`
whose `open_committer` returns `SqlCommitter(dialect)` and whose writers end with the statements of `Dialect.prepare`
and the payload of `payload_of`."""
