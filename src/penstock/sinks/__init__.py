"""Where rows go: a folder for each kind of system, with a sink, a writer for tasks and a committer for the driver.

Each is a `penstock.contracts.sink.TwoPhaseSink`. `sql` is what databases share; tables and the write-ahead sink use
the encoders of `files`. A client library is imported where it is used. May import kafka, epoch, contracts,
checkpoint, config, storage and lower.
"""
