"""Sinks: a folder for each kind of system, with a sink, a writer for tasks and a committer for the driver.

Each is a `penstock.contracts.sink.TwoPhaseSink`. `sql` is what databases share; tables, the write-ahead sink, Redis and
the SQL sinks use the names and encoders of `files`. Client libraries are imported when they are used. May import kafka,
contracts, checkpoint, config, storage and lower.
"""
