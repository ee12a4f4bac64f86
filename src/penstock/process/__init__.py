"""The processes of a job: one that supervises, one that drives, and a registry of both.

`supervisor.Supervisor` starts a driver again when it has crashed, `lifeline` is the line between the two,
`restart.Restarts` and `error_class.classify` say whether and when to try again. `registry.Registry` holds the jobs of
this machine, `registration` keeps one entry up to date. Imports no PySpark. May import config, storage and lower.
"""
