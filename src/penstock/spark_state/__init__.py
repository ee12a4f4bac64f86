"""Spark's own state stores: read, written, spread over other partitions, moved to another backend.

`operators` says what a checkpoint or a program keeps, `metadata` is Spark's description of it. `store_rows` reads
rows, `store_writing` and `hashmap_files` write them, `rewrite.rewrite` does both; all work in a Spark session of
their own (`work_session`). May import spark, checkpoint, config, storage and lower.
"""
