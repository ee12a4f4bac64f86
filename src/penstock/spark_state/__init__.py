"""Spark's own state stores: read, written, spread over other partitions, moved to another backend.

`metadata` is Spark's description of what a checkpoint or a program keeps, `store_rows` reads and writes
rows, `rewrite.rewrite` puts them elsewhere; all work in a Spark session of their own (`work_session`).
"""
