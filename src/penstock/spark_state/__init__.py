"""Spark's own state stores: read, written, spread over other partitions, moved to another backend.

`metadata` is Spark's description of what a checkpoint or a program keeps, `store_rows` reads rows, `store_writing`
writes them, `rewrite.rewrite` does both; all work in a Spark session of their own (`work_session`).
"""
