"""How long nothing comes out after `kill -9`, and what the time goes into: cold, and with a standby.

    python bench/bench_restart.py [--standby] [--kills 3] [--interval 200ms]

A job copies one topic to another under `penstock run`; a `read_committed` reader notes when each row arrives. Its
driver is killed; the silence is the longest pause of the reader afterwards. The job's own marks say what the start went
into.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from confluent_kafka import Consumer, Producer

from kafka_load import create_topics
from penstock.processes import session_members
from servers import Broker

PARTITIONS = 4
ROWS_PER_SECOND = 500

#: The job, with marks of its own; each is told once.
JOB = """
import time
began = time.time()
import json, os, sys
def mark(step):
    with open(os.environ["MARKS"], "a") as file:
        file.write(json.dumps({"pid": os.getpid(), "step": step, "time": time.time()}) + "\\n")
def timed(module, name, step):
    original = getattr(module, name)
    def call(*given, **named):
        mark(step + " begins")
        try:
            return original(*given, **named)
        finally:
            mark(step + " ends")
    setattr(module, name, call)
mark("program")
from penstock import Checkpoints, Job, KafkaSink, KafkaSource
from penstock.spark import session as spark_session
timed(spark_session, "_existing_settings", "java")
mark("imported")
servers, source, target, storage, interval = sys.argv[1:]
job = Job("restart", checkpoints=Checkpoints(storage=storage, interval=interval))
frame = job.read(KafkaSource(source, servers=servers), uid="in")
mark("read")
job.write(frame.select("key", "value"), KafkaSink(target, servers=servers), uid="out")
mark("planned")
def told(event):
    if event["event"] in ("recovered", "committed", "epoch", "opened"):
        mark(event["event"])
from penstock.engine import streaming
timed(streaming, "start", "query start")
from penstock.ops import attach
original = attach.take_turn
def turn(*given):
    mark("before turn")
    original(*given)
    mark("turn")
attach.take_turn = turn
job.run(on_event=told)
"""


class Reader(threading.Thread):
    """Notes when rows arrive. Polls without waiting to fill anything."""

    def __init__(self, servers: str, topic: str) -> None:
        super().__init__(daemon=True)
        self._consumer = Consumer(
            {
                "bootstrap.servers": servers,
                "group.id": "reader",
                "isolation.level": "read_committed",
                "auto.offset.reset": "earliest",
                "fetch.wait.max.ms": 10,
            }
        )
        self._consumer.subscribe([topic])
        self.arrivals: list[float] = []
        self.ended = False

    def run(self) -> None:
        while not self.ended:
            message = self._consumer.poll(0.2)
            if message is not None and message.error() is None:
                self.arrivals.append(time.time())
        self._consumer.close()

    def pause_after(self, moment: float) -> tuple[float, float]:
        """When rows came again after the longest pause since `moment`, and how long that was."""
        times = [moment, *(one for one in list(self.arrivals) if one > moment)]
        pauses = [(after, after - before) for before, after in pairwise(times)]
        return max(pauses, key=lambda one: one[1], default=(moment, 0.0))


class Feeder(threading.Thread):
    def __init__(self, servers: str, topic: str) -> None:
        super().__init__(daemon=True)
        self._producer, self._topic = Producer({"bootstrap.servers": servers, "linger.ms": 5}), topic
        self.ended = False

    def run(self) -> None:
        sent, began = 0, time.monotonic()
        while not self.ended:
            due = int((time.monotonic() - began) * ROWS_PER_SECOND)
            for number in range(sent, due):
                self._producer.produce(self._topic, key=f"{number % 1000:08d}", value=f"{number:0100d}")
            sent = max(sent, due)
            self._producer.poll(0)
            time.sleep(0.005)


@contextmanager
def running(command: list[str], folder: Path, environment: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, env={**os.environ, **environment}, stdout=log, stderr=log, cwd=folder)
    try:
        yield process
    except TimeoutError:
        print((folder / "log").read_text(errors="replace")[-4000:])
        raise
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def wait(condition: Any, seconds: float = 300.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError
        time.sleep(0.02)


def measure(folder: Path, servers: str, arguments: argparse.Namespace) -> list[float]:
    create_topics(servers, {"in": PARTITIONS, "out": PARTITIONS})
    script, marks, events = folder / "job.py", folder / "marks", folder / "events"
    script.write_text(JOB)
    reader, feeder = Reader(servers, "out"), Feeder(servers, "in")
    reader.start()
    feeder.start()
    environment = {"MARKS": str(marks), "PENSTOCK_EVENTS": str(events), "PENSTOCK_HOME": str(folder / "home")}
    own = [servers, "in", "out", str(folder / "checkpoints"), arguments.interval]
    options = ["--standby"] if arguments.standby else []
    main = "from penstock.cli.main import main; main()"
    silences: list[float] = []
    began = time.time()
    with running([sys.executable, "-c", main, "run", *options, str(script), *own], folder, environment):
        wait(lambda: reader.arrivals)
        show_marks("first start", began, marks, lines(events)[0]["pid"] if lines(events) else None)
        for _ in range(arguments.kills):
            told = lines(events)
            driver = [event["pid"] for event in told if event.get("action") == "started"][-1]
            if arguments.standby:
                wait(lambda: ready(lines(events)))
            time.sleep(arguments.run)
            print(f"memory of the driver's processes: {memory(driver)} MiB")
            killed = time.time()
            os.kill(driver, signal.SIGKILL)
            wait(lambda: reader.arrivals[-1] > killed + 0.7)  # noqa: B023
            time.sleep(2)
            wait(lambda: reader.arrivals[-1] > time.time() - 1)
            again, silence = reader.pause_after(killed - 0.5)
            silences.append(silence)
            after = [event for event in lines(events) if event.get("action") == "started"][-1]
            show_marks(f"killed; silence {silence * 1000:.0f} ms", killed, marks, after["pid"], after["time"], again)
    reader.ended = feeder.ended = True
    return silences


def ready(events: list[dict[str, Any]]) -> bool:
    actions = [event["action"] for event in events if event["event"] == "supervisor"]
    return "standby_ready" in actions[len(actions) - actions[::-1].index("started") :]


def memory(leader: int) -> dict[str, int]:
    """Resident MiB of each process of a driver's session; pages that several share count in each."""
    found: dict[str, int] = {}
    for pid in session_members(leader):
        name = Path(f"/proc/{pid}/comm").read_text().strip()
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmRSS"):
                found[f"{name} {pid}"] = int(line.split()[1]) >> 10
    return found


def show_marks(
    title: str, zero: float, marks: Path, pid: int | None, started: float | None = None, again: float | None = None
) -> None:
    seen: dict[str, float] = {} if started is None else {"supervisor started it": started}
    for mark in lines(marks):
        if mark["pid"] == pid and mark["time"] >= zero:
            seen.setdefault(mark["step"], mark["time"])
    if again is not None:
        seen["rows at the reader"] = again
    print(title)
    before = zero
    for step, moment in sorted(seen.items(), key=lambda one: one[1]):
        print(f"  {(moment - zero) * 1000:7.0f} ms  +{(moment - before) * 1000:5.0f}  {step}")
        before = moment


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--standby", action="store_true")
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--interval", default="200ms")
    parser.add_argument("--run", type=float, default=12.0, help="seconds of running before each kill")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-restart-") as folder, Broker.start(Path(folder) / "kafka") as broker:
        silences = measure(Path(folder), broker.servers, arguments)
    print(f"silence, median of {len(silences)}: {median(silences) * 1000:.0f} ms; {[round(s, 2) for s in silences]}")


if __name__ == "__main__":
    main()
