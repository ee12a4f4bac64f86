"""A first job that needs no server at all: generated payments into a folder of Parquet files, exactly once.

    python examples/generator_to_files.py

Start it again after a crash and it goes on; start it again when it is done and there is nothing left to do.
"""

import os

from penstock import Checkpoints, DataGenSource, FileSink, Job

CHECKPOINTS = os.environ.get("CHECKPOINTS", os.path.expanduser("~/penstock-examples"))
FOLDER = os.environ.get("ARCHIVE", os.path.expanduser("~/penstock-examples/payments"))
ROWS = int(os.environ.get("ROWS", 1_000_000))

job = Job("generated", checkpoints=Checkpoints(storage=CHECKPOINTS))
payments = job.read(DataGenSource(ROWS, max_rows_per_epoch=max(1, ROWS // 5)), uid="payments")
job.write(payments.where("amount >= 100"), FileSink(FOLDER), uid="large")

if __name__ == "__main__":
    job.run()
    print(f"files in {FOLDER}")
