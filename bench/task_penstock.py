"""A task as a Penstock job: penstock run task_penstock.py TASK.json"""

from __future__ import annotations

import sys

from penstock import Checkpoints, Job, KafkaSink, KafkaSource
from tasks import Task, shape

task = Task.read(sys.argv[1])
job = Job(task.target, checkpoints=Checkpoints(interval=task.interval or 0, storage=f"{task.folder}/checkpoints"))
source = KafkaSource(task.source, servers=task.servers, max_offsets_per_epoch=task.epoch_rows)
frame = shape(task, job.read(source, uid="in"))
if task.one_task:
    frame = frame.coalesce(1)
mode = "update" if task.work == "keys" else "append"
job.write(frame, KafkaSink(task.target, servers=task.servers), uid="out", output_mode=mode, latency=task.latency)

if __name__ == "__main__":
    job.run()
