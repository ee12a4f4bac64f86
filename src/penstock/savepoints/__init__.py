"""Savepoints: taken, checked, looked into, restored and deleted.

`savepoint` is the format and takes one, `restorable` finds what can be restored from and says what
goes where in a program, and `restore` makes it the job's checkpoint. `canonical` is state as Parquet.
"""
