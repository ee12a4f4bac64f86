"""A job's program that writes generated rows into files, as a user would write it."""

from __future__ import annotations

SCRIPT = """
from penstock import Checkpoints, DataGenSource, FileSink, Job

job = Job("payments", checkpoints=Checkpoints(interval="200ms", storage="checkpoints", savepoint_dir="savepoints"),
          conf={"spark.master": "local[1]"})
rows = job.read(DataGenSource(rate=500, columns={"id": "id"}), uid="payments")
job.write(rows, FileSink("out"), uid="out")

if __name__ == "__main__":
    job.run()
"""
