"""The processes of a job: one that supervises, one that drives, perhaps one that stands by, and a registry of them.

`supervisor.Supervisor` starts a driver again when it has crashed, or lets a `standby` take over; `driver` is one driver
as it sees it, `lifeline` the line between the two, `sweep` ends what dead ones leave behind. `restart.Restarts` and
`error_class.classify` say whether and when to try again. `registry.Registry` holds the jobs of this machine,
`registration` keeps one entry up to date. Where several supervisors have one job, `lease_rules` say who may run it,
`lease` is a driver's hold on that right, and `lease_wait` how a supervisor waits for it alone. Imports no PySpark. May
import checkpoint, config, storage and lower.
"""
