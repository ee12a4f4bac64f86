"""Savepoints: taken, checked, looked into, restored and deleted.

`savepoint` is the format, and `savepoint.Taker` makes one, `restorable.open_restorable` finds what can be restored
from, `mapping.compare` says what goes where in a program, and `restore.Restorer` makes it the job's checkpoint.
`canonical` is state as Parquet; `stores` looks into state without the job. May import spark_state, spark, checkpoint,
storage and lower.
"""
