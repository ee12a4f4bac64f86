"""Everything that knows how Spark works inside. It knows nothing of sinks, savepoints or jobs.

`session.session` makes or finds the Spark session, `settings` applies a job's settings to it; `java`, `jars` and
`session_jars` bring what it needs; `versions` says what differs from Spark to Spark, `masters` where tasks run.
`launch` starts its JVM, `early` before a program asks for it, from a `class_archive` and with its `compiler` told to
wait; a `rehearsal` makes the archive, of what it loads itself and of `loaded_classes`, and warms a standby up; `notes`
are what the next start can use. `executors` asks those of a cluster, `pack` and `shipping` bring them what they need.
`query` is Spark's side of one query, `observer` follows its epochs, `alignment` and `status` measure them.
`python_daemon` runs inside Spark's workers and imports nothing of ours; `slim_home` is for those that do without it.
May import epoch, contracts, checkpoint, config, storage and the small modules below them.
"""
