"""The processes of `bench_epoch.py`: the one that sends, the job, and the one that reads."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memory import family

if TYPE_CHECKING:
    from collections.abc import Mapping

PAD = "x" * 60


def send(given: Mapping[str, Any]) -> None:
    """`rate` rows a second, in small steps, until the measurement is over."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": given["servers"], "linger.ms": 1, "acks": 1})
    step = 0.005
    begin = time.time()
    sent = 0
    while (now := time.time()) < begin + given["warm_up"] + given["seconds"] + 1:
        while sent < (now - begin) * given["rate"]:
            value = f'{{"at":{time.time():.6f},"n":{sent:010d},"p":"{PAD}"}}'
            producer.produce(given["source"], value, f"{sent % 10_000:08d}")
            sent += 1
        producer.poll(0)
        time.sleep(step)
    producer.flush(10)


def read(given: Mapping[str, Any]) -> None:
    """Poll, then take what is there: a reader that waits to fill a batch adds its own waiting."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": given["servers"],
            "group.id": "bench",
            "isolation.level": "read_committed",
            "fetch.wait.max.ms": 5,
            "enable.auto.commit": False,
        }
    )
    consumer.assign([TopicPartition(given["target"], number, 0) for number in range(4)])
    begin = time.time() + given["warm_up"]
    end = begin + given["seconds"]
    late: list[float] = []
    while (now := time.time()) < end:
        message = consumer.poll(0.2)
        while message is not None:
            now = time.time()
            value = message.value()
            if value is not None and message.error() is None and now >= begin:
                late.append((now - float(value[6:23])) * 1000)
            message = consumer.poll(0)
    consumer.close()
    late.sort()
    shares = {f"p{share}": late[int(len(late) * share / 100)] for share in (50, 90, 99)}
    print(json.dumps({"begin": begin, "end": end, "rows": len(late), "latency_ms": shares}))


def job(given: Mapping[str, Any]) -> None:
    from penstock import Checkpoints, Job, KafkaSink, KafkaSource, RestartStrategy
    from penstock.spark.query import SparkStatus

    conf = {**given["conf"], **({"spark.master": given["master"]} if given["master"] else {})}
    own = Job(
        "bench",
        checkpoints=Checkpoints(storage=given["checkpoint"], interval=given["interval"]),
        restart=RestartStrategy.none(),
        conf=conf,
    )
    rows = own.read(KafkaSource(given["source"], servers=given["servers"]), uid="in").select("key", "value")
    own.write(rows, KafkaSink(given["target"], servers=given["servers"]), uid="out")
    times: dict[int, dict[str, float]] = {}
    reports: dict[int, Any] = {}

    def follow(event: Mapping[str, Any]) -> None:
        if event["event"] == "recovered":
            print("starting", flush=True)
            threading.Thread(target=watch, daemon=True).start()
        if "epoch" in event and event["event"] in ("opened", "precommitted", "decided", "committed", "completed"):
            times.setdefault(event["epoch"], {})[event["event"]] = event["time"]

    done = threading.Event()
    cpu: list[float] = []

    def watch() -> None:
        status: SparkStatus | None = None
        seen: deque[int] = deque(maxlen=2000)
        deadline = time.time() + given["warm_up"] + given["seconds"] + 1
        before = 0.0
        while time.time() < deadline:
            if not before and time.time() > deadline - given["seconds"]:
                before = used()
            time.sleep(2)
            for query in own.spark.streams.active:
                for report in query.recentProgress:
                    reports[report["batchId"]] = dict(report["durationMs"])
                status = status or SparkStatus.of(own.spark)
                for number in status.job_ids(str(query.runId)):
                    if number in seen:
                        continue
                    found = status.job(number)
                    epoch = str(found.get("description") or "").rpartition("batch = ")[2]
                    tasks = [task for stage in found["stageIds"] for task in status.tasks(stage, 0)]
                    ends = [(float(task["launchTime"]), float(task["duration"] or 0)) for task in tasks]
                    if epoch.isdigit() and ends and all(task["status"] == "SUCCESS" for task in tasks):
                        times.setdefault(int(epoch), {})["launched"] = min(at for at, _ in ends) / 1000
                        times[int(epoch)]["ran"] = max(at + took for at, took in ends) / 1000
                        seen.append(number)
        cpu.append(used() - before)
        done.set()
        own.stop()

    own.run(on_event=follow)
    done.wait(10)
    epochs = {number: {**found, "spark": reports.get(number, {})} for number, found in times.items()}
    print(json.dumps({"epochs": epochs, "cpu_seconds": cpu[0] if cpu else 0.0}))


def used() -> float:
    """CPU seconds of this process, its JVM and its workers, until now."""
    total = 0.0
    for pid in family(os.getpid()):
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended
        total += sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")  # with its children that have ended
    return total


if __name__ == "__main__":
    what, given = sys.argv[1], json.loads(sys.argv[2])
    Path(given["checkpoint"]).mkdir(parents=True, exist_ok=True)
    {"send": send, "read": read, "job": job}[what](given)
