"""The classic word count over a socket, which survives `kill -9` with the right counts.

    nc -lk 9999                          # in another terminal: type lines
    PORT=9999 python examples/word_count.py

Every line is durable in the journal before it is counted. Kill the job whenever you like and start it again: no line
that it had received is lost, and none is counted twice. Each epoch writes a file with the new counts of its words.
"""

import os

from pyspark.sql import functions as f

from penstock import Checkpoints, FileSink, Job, SocketSource

CHECKPOINTS = os.environ.get("CHECKPOINTS", os.path.expanduser("~/penstock-examples"))
COUNTS = os.environ.get("COUNTS", os.path.expanduser("~/penstock-examples/word-counts"))
HOST, PORT = os.environ.get("HOST", "localhost"), int(os.environ.get("PORT", 9999))

job = Job("words", checkpoints=Checkpoints(interval="500ms", storage=CHECKPOINTS))

lines = job.read(SocketSource(HOST, PORT, journal=f"{CHECKPOINTS}/words-journal"), uid="lines")
words = lines.select(f.explode(f.split(f.lower("value"), r"\W+")).alias("word")).where("word != ''")
counts = words.groupBy("word").count()

job.write(counts, FileSink(COUNTS, format="json"), uid="counts", output_mode="update")

if __name__ == "__main__":
    print(job.explain())
    job.run()  # until SIGTERM or Ctrl-C
