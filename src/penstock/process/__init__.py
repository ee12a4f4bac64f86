"""The processes of a job: one that supervises, one that drives, perhaps one that stands by, and a registry of them.

`supervisor.Supervisor` starts a driver again when it has crashed, or lets a `standby` take over; `driver` is one driver
as it sees it, `lifeline` the line between the two, `sweep` ends what dead ones leave behind. `restart.Restarts` and
`error_class.classify` say whether and when to try again. `registry.Registry` holds the jobs of this machine,
`registration` keeps one entry up to date. Imports no PySpark. May import config, storage and lower.
"""
