"""The processes of a job: a supervisor, its driver, perhaps a standby, and the registry of this machine's jobs.

`supervisor` restarts a driver that has crashed, or lets its standby take over, and ends what dead drivers leave behind;
`lifeline` is the line between supervisor and driver. `registry` holds an entry and a log for each run. Where several
supervisors share one job, `lease_rules` say which may run it and `lease_holder` is a driver's hold on that right.
Imports no PySpark. May import checkpoint, config, engine, storage and lower.
"""
