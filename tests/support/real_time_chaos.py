"""Real-time jobs while drivers, JVMs, executors, brokers and the network fail: is each row visible once, in order?

    python -m tests.support.real_time_chaos --faults 200 [--seed N] [--brokers 3] [--cluster] [--minutes N]
        [--record FILE]

The seed draws everything: a job of two plans lives through a round of faults while rows arrive all the time, is stopped
cleanly and judged; then comes the next job. A fault waits until rows flow again after the one before; one of four does
not, and strikes while the job recovers. The judge reads source and sinks anew as any other `read_committed` reader,
and holds the writers' traces against the model of the protocol. Exits with 1 where anything is wrong, and keeps the
files.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import math
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import confluent_kafka as ck
from confluent_kafka import ElectionType
from confluent_kafka.admin import AdminClient, NewPartitions

from penstock.testing.anomalies import ABORTED, DUPLICATE, LOST, ORDER, SKIPPED, Row, find_anomalies
from tests.support import kafka, quick_jvm
from tests.support.brokers import Roles
from tests.support.cluster_chaos import CONF, EXECUTOR_MEMORY
from tests.support.jobs import real_time
from tests.support.jobs.real_time import PLANS, SPREAD, Config
from tests.support.lane_traces import follow
from tests.support.own_time import OwnTime
from tests.support.processes import JobProcess, command
from tests.support.proof import recorded
from tests.support.servers.kafka_cluster import CabledNode, Cluster
from tests.support.servers.spark import SparkCluster
from tests.support.waiting import until

ROWS_PER_SECOND = 600
ROUND = 25  # faults that one job lives through
FIRST, MOST = 2, 4  # source partitions of a job
PATIENCE = 150.0  # seconds that servers and drivers had, for rows to flow again or a driver to end
HASTY = 0.25  # of the faults strike before rows flow again
_JVM = "org.apache.spark.deploy.SparkSubmit"
_TRANSACTIONS = "__transaction_state"

#: What happens to a job, and how often compared with the rest.
ANYWHERE = {
    "driver killed": 5,
    "JVM killed": 4,
    "driver paused, replaced, woken": 3,
    "network cut": 2,
    "network stalled": 2,
    "answers lost": 2,
    "lane fenced by a stranger": 2,
    "partition added": 1,
}
REPLACED = {"driver killed", "JVM killed", "driver paused, replaced, woken"}  # after these another driver takes over
ONE_BROKER = {"broker killed": 4}
BROKERS = {"broker killed": 1, "coordinator killed": 3, "coordinator moved": 2}
CLUSTER = {"executor killed": 5}


@dataclass(frozen=True)
class Fault:
    """`hasty`: seconds after the fault before, whether or not rows flow; None: once they do. `choice`, from 0 to 1,
    picks the victim among those that there are then. `seconds`: how long it lasts, where it lasts."""

    kind: str
    hasty: float | None = None
    choice: float = 0.0
    seconds: float = 1.0


@dataclass(frozen=True)
class Round:
    """What one job is, and the faults that it lives through."""

    plans: Sequence[str]
    batch: str
    faults: Sequence[Fault]


def draw(chance: random.Random, count: int, weights: Mapping[str, int]) -> Iterator[Round]:
    """Rounds with so many faults in all. Two plans run in each, and over two rounds all of them."""
    plans: list[str] = []
    for begin in range(0, count, ROUND):
        if not plans:
            plans = chance.sample(sorted(PLANS), len(PLANS))
        faults: list[Fault] = []
        for _ in range(min(ROUND, count - begin)):
            kind = chance.choices(list(weights), list(weights.values()))[0]
            added = sum(fault.kind == "partition added" for fault in faults)
            if kind == "partition added" and added == MOST - FIRST:
                kind = "driver killed"
            hasty = chance.uniform(0, 3) if chance.random() < HASTY else None
            faults.append(Fault(kind, hasty, chance.random(), chance.uniform(0.2, 4)))
        yield Round((plans.pop(), plans.pop()), chance.choice(("15 seconds", "10 minutes")), faults)


@dataclass
class Report:
    """What was done, and what came of it."""

    faults: Counter[str] = field(default_factory=Counter)
    silences: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))  # seconds without rows
    drivers: int = 0
    rows: Counter[str] = field(default_factory=Counter)  # that had to become visible, by plan
    lost: int = 0
    doubled: int = 0
    disordered: int = 0
    unknown: int = 0
    open: int = 0
    wrong: list[str] = field(default_factory=list)  # whatever else must not be, and examples of the above

    @property
    def ok(self) -> bool:
        anomalies = self.lost + self.doubled + self.disordered + self.unknown + self.open
        return not anomalies and not self.wrong and self.rows.total() > 0

    @property
    def numbers(self) -> dict[str, Any]:
        """As `make proof` keeps them."""
        return {
            "ok": self.ok,
            "faults": dict(sorted(self.faults.items())),
            "silence": {kind: round(median(seconds), 1) for kind, seconds in sorted(self.silences.items())},
            "drivers": self.drivers,
            "rows": dict(sorted(self.rows.items())),
            "lost": self.lost,
            "doubled": self.doubled,
            "disordered": self.disordered,
            "never_sent": self.unknown,
            "open": self.open,
            "wrong": len(self.wrong),
        }

    def lines(self) -> list[str]:
        table = [f"{'fault':34} {'times':>5}   seconds until rows flow again, median"]
        for kind, times in sorted(self.faults.items()):
            after = f"{median(self.silences[kind]):.1f}" if self.silences[kind] else "-"
            table.append(f"{kind:34} {times:5}   {after}")
        table.append(f"{'all':34} {self.faults.total():5}")
        rows = ", ".join(f"{plan} {count}" for plan, count in sorted(self.rows.items()))
        verdict = {
            "lost": self.lost,
            "doubled": self.doubled,
            "out of order per source partition": self.disordered,
            "never sent": self.unknown,
            "transactions open": self.open,
        }
        return [
            *table,
            f"drivers started {self.drivers}; rows {self.rows.total()} ({rows})",
            ", ".join(f"{name} {count}" for name, count in verdict.items()),
            *self.wrong,
        ]


class Feeder(threading.Thread):
    """Rows for a topic all the time, into each partition in turn: `PARTITION:NUMBER`, numbered from 0. As many a second
    as the job can take on a calm machine; fewer where all of this has to share the cores with others."""

    def __init__(self, servers: str, topic: str) -> None:
        super().__init__(daemon=True)
        self._servers, self._topic = servers, topic
        self._numbers = [0] * FIRST
        self._grow, self._ended = threading.Event(), threading.Event()
        self.acknowledged = Counter[int]()  # rows by partition
        self.failures: list[str] = []

    def add_partition(self) -> None:
        self._grow.set()

    def end(self) -> None:
        """Returns once the brokers have all rows."""
        self._ended.set()
        until(lambda: not self.is_alive(), "the brokers to take the rows", PATIENCE)
        assert not self.failures, self.failures[:3]

    def run(self) -> None:
        producer, own, sent = self._producer(), OwnTime(), 0
        while not self._ended.wait(0.01):
            if self._grow.is_set():
                producer.flush()
                producer = self._producer()  # which knows the new partition
                self._numbers.append(0)
                self._grow.clear()
            for _ in range(int(own() * ROWS_PER_SECOND) - sent):
                partition = sent % len(self._numbers)
                value = f"{partition}:{self._numbers[partition]}"
                producer.produce(self._topic, value, partition=partition, on_delivery=self._delivered)
                self._numbers[partition] += 1
                sent += 1
            producer.poll(0)
        producer.flush()

    def _producer(self) -> Any:
        return ck.Producer(
            {
                "bootstrap.servers": self._servers,
                "enable.idempotence": True,
                "linger.ms": 2,
                "message.timeout.ms": 600_000,
                "reconnect.backoff.max.ms": 200,
                "log_level": 2,
            }
        )

    def _delivered(self, error: Any, message: Any) -> None:
        if error is not None:
            self.failures.append(str(error))
        else:
            self.acknowledged[message.partition()] += 1


class Watch:
    """Follows the sinks with `read_committed`, to know when rows flow. The verdict reads anew."""

    def __init__(self, servers: str, sinks: Mapping[str, str]) -> None:
        self.count = Counter[str]()
        self.newest: defaultdict[tuple[str, int], int] = defaultdict(lambda: -1)  # by plan and source partition
        self._plans = {topic: plan for plan, topic in sinks.items()}
        self._reader = kafka._consumer(servers, log_level=2)
        places = [ck.TopicPartition(topic, number, 0) for topic in self._plans for number in range(SPREAD)]
        self._reader.assign(places)

    def read(self) -> None:
        while messages := self._reader.consume(5000, 0.02):
            for message in messages:
                if message.error() is None:
                    partition, number, _ = fields(message.value())
                    plan = self._plans[message.topic()]
                    self.count[plan] += 1
                    self.newest[plan, partition] = max(self.newest[plan, partition], number)

    def close(self) -> None:
        self._reader.close()


def fields(value: bytes) -> tuple[int, int, int]:
    """Of a visible row: partition and number of its source row, and which row of that one it is."""
    partition, number, k, *_ = value.split(b":")
    return int(partition), int(number), int(k)


class Drivers:
    """The driver that runs the job, one that is ready to take over, and those that woke too late."""

    def __init__(self, config: Config, folder: Path, *, spare: bool) -> None:
        self._config, self._folder, self._keeps_spare = config.write(folder / "config.json"), folder, spare
        self._started: list[tuple[JobProcess, Path]] = []
        self._spare: tuple[JobProcess, Path] | None = None
        self.woken: list[JobProcess] = []
        self.current: JobProcess | None = None
        self._go = folder
        self._queries, self._recorded = len(config.sinks), set[str]()
        self.count = 0

    @property
    def is_built(self) -> bool:
        """Whether the driver that runs the job has its session."""
        return real_time.built(self._go).exists()

    def recorded(self) -> set[str]:
        """The queries of which the driver has recorded an epoch: the first comes when it has opened all lanes."""
        assert self.current is not None
        if len(self._recorded) < self._queries:
            self._recorded = {event["query"] for event in self.current.events("completed")}
        return self._recorded

    def next(self) -> None:
        """Another driver takes over."""
        self._recorded = set()
        self.current, self._go = self._spare or self._start()
        self._spare = None
        self._go.touch()
        self.count += 1

    def prepare_spare(self) -> None:
        if self._keeps_spare and self._spare is None:
            self._spare = self._start()

    def close(self) -> None:
        for process, _ in self._started:
            process.kill()

    def _start(self) -> tuple[JobProcess, Path]:
        go = self._folder / f"go-{len(self._started):02d}"
        environment = {quick_jvm.VARIABLE: quick_jvm.PLAIN, "PENSTOCK_HOME": str(self._folder / "home")}
        script, arguments = Path(real_time.__file__), [str(self._config), str(go)]
        process = JobProcess(script, arguments, self._folder, environment=environment)
        self._started.append((process, go))
        return process, go


@dataclass
class World:
    """Brokers, and workers where Spark has a cluster. `until`: by the monotonic clock, after which nothing strikes."""

    folder: Path
    brokers: Cluster
    spark: SparkCluster | None = None
    until: float = math.inf

    @property
    def over(self) -> bool:
        return time.monotonic() > self.until

    @property
    def nodes(self) -> list[CabledNode]:
        return [node for node in self.brokers.brokers if isinstance(node, CabledNode)]

    @property
    def weights(self) -> dict[str, int]:
        brokers = BROKERS if len(self.nodes) > 1 else ONE_BROKER
        return {**ANYWHERE, **brokers, **(CLUSTER if self.spark is not None else {})}


@contextlib.contextmanager
def world(folder: Path, *, brokers: int = 1, cluster: bool = False) -> Iterator[World]:
    """Servers of its own, all of which are gone at the end."""
    quick = {"group.initial.rebalance.delay.ms": "0"}
    with contextlib.ExitStack() as opened:
        kafka_ = Cluster.start(folder / "kafka", brokers=brokers, properties=quick, kind=CabledNode)
        opened.enter_context(kafka_)
        spark = None
        if cluster:  # a paused driver keeps its executors beside those of the next one
            spark = SparkCluster.start(folder / "spark", workers=2, cores=3 * 2 * MOST, memory="4g")
            opened.enter_context(spark)
        yield World(folder, kafka_, spark)


class Life:
    """One job, from its first start through a round of faults to the verdict."""

    def __init__(self, around: World, folder: Path, given: Round, report: Report, say: Callable[[str], None]) -> None:
        folder.mkdir(parents=True)
        self._world, self._folder, self._round, self._report, self._say = around, folder, given, report, say
        self._servers = around.brokers.servers
        self._admin = AdminClient({"bootstrap.servers": self._servers, "log_level": 2})
        source = kafka.create_topic(self._servers, FIRST, prefix="in")
        trace, slots = f"-Dpenstock.lane.trace={folder}/trace", MOST * len(given.plans) + 2
        conf = {"spark.driver.extraJavaOptions": trace}
        if around.spark is not None:
            java = f"{CONF['spark.executor.extraJavaOptions']} {trace}"
            conf |= {**CONF, "spark.executor.memory": EXECUTOR_MEMORY, "spark.executor.extraJavaOptions": java}
            conf["spark.cores.max"] = str(slots)
        self._config = Config(
            name=f"job-{uuid.uuid4().hex[:8]}",
            servers=",".join(node.cabled_servers for node in around.nodes),
            source=source,
            sinks={plan: kafka.create_topic(self._servers, SPREAD, prefix=plan) for plan in given.plans},
            storage=str(folder / "checkpoints"),
            master=f"local[{slots}]" if around.spark is None else around.spark.url,
            batch=given.batch,
            conf=conf,
        )
        self._feeder, self._watch = Feeder(self._servers, source), Watch(self._servers, self._config.sinks)
        self._drivers = Drivers(self._config, folder, spare=around.spark is None)
        self._partitions = self._read = FIRST  # that there are, and that the driver read when it started
        self._replaced = sum(fault.kind in REPLACED for fault in given.faults)  # drivers that are still to be
        self._dies = False  # the driver has been hit, and ends

    def run(self) -> None:
        self._feeder.start()
        self._next()
        try:
            self._wait_flow()
            for fault in itertools.takewhile(lambda _: not self._world.over, self._round.faults):
                self._strike(fault)
            self._wait_flow()
            self._finish()
        except AssertionError as error:
            tail = self._drivers.current.tail() if self._drivers.current is not None else ""
            self._report.wrong.append(f"{error}\n{tail}")
        finally:
            self._report.drivers += self._drivers.count

    def close(self) -> None:
        self._drivers.close()
        self._watch.close()

    def clean(self) -> None:
        """Delete files and topics: the broker reads them at each start."""
        marks = [f"penstock.{self._config.name}.{plan}.marks.{self._config.source}" for plan in self._config.sinks]
        for future in self._admin.delete_topics([self._config.source, *self._config.sinks.values(), *marks]).values():
            future.result(60)
        shutil.rmtree(self._folder, ignore_errors=True)

    # Faults

    def _strike(self, fault: Fault) -> None:
        if fault.hasty is None:
            self._wait_flow()
        else:
            time.sleep(fault.hasty)
            self._mend()
        began = time.monotonic()
        self._replaced -= fault.kind in REPLACED
        self._inflict(fault)
        self._report.faults[fault.kind] += 1
        self._mend()
        if fault.hasty is None:
            self._wait_flow()
            self._report.silences[fault.kind].append(time.monotonic() - began)
        self._say(f"{fault.kind:34} {time.monotonic() - began:5.1f} s{'' if fault.hasty is None else ', hasty'}")

    def _inflict(self, fault: Fault) -> None:
        nodes, current = self._world.nodes, self._drivers.current
        assert current is not None
        match fault.kind:
            case "driver killed":  # its JVM lives on for a moment, as an orphan
                self._dies = True
                _signal(current.pid, signal.SIGKILL)
                until(lambda: current.status is not None, "the driver to be gone")
            case "JVM killed":
                self._kill_jvm(current)
            case "driver paused, replaced, woken":
                self._pause(current, fault)
            case "broker killed":
                node = nodes[int(fault.choice * len(nodes))]
                node.kill()
                time.sleep(fault.seconds / 4)
                node.restart()
            case "coordinator killed":
                broker = Roles(self._world.brokers).coordinator(self._config.name)
                broker.kill()
                time.sleep(fault.seconds)
                broker.restart()
            case "coordinator moved":
                self._move_coordinators()
            case "network cut" | "network stalled" | "answers lost":
                self._harm_network(fault)
            case "lane fenced by a stranger":
                lanes = [lane for lane in kafka.transactions(self._servers, self._config.name) if ":lane:" in lane]
                lane = sorted(lanes)[int(fault.choice * len(lanes))]
                stranger = ck.Producer({"bootstrap.servers": self._servers, "transactional.id": lane})
                stranger.init_transactions(60)
            case "partition added":
                self._partitions += 1
                grown = self._admin.create_partitions([NewPartitions(self._config.source, self._partitions)])
                grown[self._config.source].result(60)
                self._feeder.add_partition()
            case "executor killed":
                assert self._world.spark is not None
                executors = until(self._world.spark.executors, "an executor", PATIENCE)
                _signal(executors[int(fault.choice * len(executors))], signal.SIGKILL)
            case _:
                raise ValueError(fault.kind)

    def _kill_jvm(self, current: JobProcess) -> None:
        """Once the session is there: Penstock would take a JVM that dies before for one that its archive of classes
        does not suit."""
        until(lambda: self._drivers.is_built or current.status is not None, "a session", PATIENCE)
        self._dies = True
        for pid in current.members():
            if pid != current.pid and _JVM in command(pid):
                _signal(pid, signal.SIGKILL)
        until(lambda: current.status is not None, lambda: f"the driver to end\n{current.tail()}", PATIENCE)

    def _pause(self, current: JobProcess, fault: Fault) -> None:
        """It wakes when the next one has rows, or while that one starts. Paused before it has registered, it would be
        the newest when it wakes, and rightly go on for ever."""

        def registered() -> bool:
            return current.status is not None or len(current.events("started")) == len(self._config.sinks)

        until(registered, lambda: f"the driver to register\n{current.tail()}", PATIENCE)
        current.stop_all()
        self._next()
        if fault.choice < 0.5:
            self._wait_flow()
        else:
            time.sleep(fault.seconds)
        self._drivers.woken.append(current)
        current.continue_all()

    def _harm_network(self, fault: Fault) -> None:
        cables = [node.cable for node in self._world.nodes]
        for cable in cables:
            {"network cut": cable.cut, "network stalled": cable.stall, "answers lost": cable.deafen}[fault.kind]()
        time.sleep(fault.seconds)
        for cable in cables:
            cable.mend()

    def _move_coordinators(self) -> None:
        """The partitions of the transactions' log go to the brokers that are first in their lists, if another has them
        since its own was killed."""
        found = self._admin.list_topics(_TRANSACTIONS, timeout=60).topics[_TRANSACTIONS].partitions
        places = [ck.TopicPartition(_TRANSACTIONS, number) for number in found]
        # Without `request_timeout`: confluent-kafka 2.16 fails over any keyword here.
        answered = self._admin.elect_leaders(ElectionType.PREFERRED, places).result(60)
        if not any(error is None for error in answered.values()):
            broker = Roles(self._world.brokers).coordinator(self._config.name)
            broker.restart()  # in good order: it hands its partitions over before it goes

    # Drivers

    def _next(self) -> None:
        self._drivers.next()
        self._dies, self._read = False, self._partitions

    def _mend(self) -> None:
        """What a supervisor does."""
        current = self._drivers.current
        assert current is not None
        if current.status is None:
            return
        if not self._dies:
            self._report.wrong.append(f"a driver ended by itself with status {current.status}:\n{current.tail(12)}")
        self._next()

    def _wait_flow(self) -> None:
        """Until the driver has fenced the one before, whose JVM may outlive it, and rows are visible that were sent
        since, of each plan and source partition that it reads. A partition that was added later comes with Spark's
        next batch."""

        def recorded() -> bool:
            self._mend()
            return self._drivers.recorded() >= set(self._config.sinks)

        until(recorded, "the driver to have its lanes", PATIENCE)
        since = dict(self._feeder.acknowledged)

        def flow() -> bool:
            self._mend()
            self._watch.read()
            return not self._behind(since, self._read)

        until(flow, lambda: f"rows to flow; behind: {self._behind(since, self._read)} of {since}", PATIENCE)
        if self._replaced:
            self._drivers.prepare_spare()

    def _behind(self, since: Mapping[int, int], partitions: int) -> dict[tuple[str, int], int]:
        newest = self._watch.newest
        pairs = itertools.product(self._config.sinks, range(partitions))
        return {pair: newest[pair] for pair in pairs if newest[pair] < since.get(pair[1], 0)}

    # The end

    def _finish(self) -> None:
        self._feeder.end()
        if self._read < self._partitions:  # Spark may find the others in minutes only
            self._stop()
            self._next()
        numbers = self._fed()
        wanted = {
            plan: [
                Row((partition, number % SPREAD), 4 * number + k)
                for partition, count in numbers.items()
                for number in range(count)
                for k in range(PLANS[plan].count(number))
            ]
            for plan in self._config.sinks
        }

        def complete() -> bool:
            self._mend()
            self._watch.read()
            return all(self._watch.count[plan] >= len(rows) for plan, rows in wanted.items())

        with contextlib.suppress(AssertionError):  # the verdict names the rows that are missing
            until(complete, "all rows", PATIENCE)
        self._stop()
        for process in self._drivers.woken:
            until(lambda: process.status is not None, f"a driver that woke to end\n{process.tail()}", PATIENCE)  # noqa: B023
        for plan, rows in wanted.items():
            self._judge(plan, rows)
        self._judge_transactions()
        self._judge_traces()

    def _stop(self) -> None:
        current = self._drivers.current
        assert current is not None
        current.terminate()
        status = current.wait(PATIENCE)
        if status != 0:
            self._report.wrong.append(f"a clean stop ended with status {status}:\n{current.tail()}")

    def _fed(self) -> dict[int, int]:
        """How many rows each source partition has. They must be those that were fed."""
        found: defaultdict[int, list[int]] = defaultdict(list)
        for row in kafka.read_committed(self._servers, self._config.source):
            found[row.partition()].append(int(row.value().split(b":")[1]))
        for partition, numbers in found.items():
            assert numbers == list(range(len(numbers))), f"the source partition {partition} is not what was fed"
            assert len(numbers) == self._feeder.acknowledged[partition]
        return {partition: len(numbers) for partition, numbers in found.items()}

    def _judge(self, plan: str, rows: Sequence[Row]) -> None:
        visible = []
        for message in kafka.read_committed(self._servers, self._config.sinks[plan]):
            partition, number, k = fields(message.value())
            visible.append(Row((partition, message.partition()), 4 * number + k))
        found = find_anomalies(rows, visible)
        counts = Counter({anomaly.kind: anomaly.count for anomaly in found})
        report = self._report
        report.rows[plan] += len(rows)
        report.lost += counts[LOST]
        report.doubled += counts[DUPLICATE]
        report.disordered += counts[ORDER]
        report.unknown += counts[ABORTED]
        report.wrong += [f"{self._config.name}, {plan}: {one}" for one in found if one.kind != SKIPPED]

    def _judge_transactions(self) -> None:
        with contextlib.suppress(AssertionError):
            kafka.assert_nothing_open(self._servers, self._config.name)
        left = kafka.open_transactions(self._servers, self._config.name)
        self._report.open += len(left)
        self._report.wrong += [f"open: {name}" for name in left]

    def _judge_traces(self) -> None:
        traces = sorted(self._folder.glob("trace.*"))
        assert traces, "the writers left no trace"
        for path in traces:
            *lines, _ = path.read_text().split("\n")  # a process may have died in its last line
            if (complaint := follow(lines)) is not None:
                self._report.wrong.append(f"{path.name} is no path of the model: {complaint}")


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def torment(around: World, rounds: Iterator[Round], say: Callable[[str], None] = lambda line: None) -> Report:
    """One job after the other. Ends with the first in which something is wrong; its files stay."""
    report = Report()
    for number, given in enumerate(itertools.takewhile(lambda _: not around.over, rounds)):
        say(f"job {number + 1}: {' and '.join(given.plans)}, batches of {given.batch}, {len(given.faults)} faults")
        life = Life(around, around.folder / f"job-{number:02d}", given, report, say)
        try:
            life.run()
        finally:
            life.close()
        if not report.ok:
            break
        life.clean()
    return report


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--brokers", type=int, choices=(1, 3), default=1)
    parser.add_argument("--cluster", action="store_true", help="on a standalone cluster of two workers")
    parser.add_argument("--minutes", type=float, help="no fault after so many; what has begun is judged as ever")
    parser.add_argument("--record", type=Path, help="keep the result in this file, for make proof")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # servers and drivers end with it
    folder, began = Path(tempfile.mkdtemp(prefix="penstock-chaos-")), time.monotonic()

    def say(line: str) -> None:
        sys.stdout.write(f"{time.monotonic() - began:7.1f}  {line}\n")
        sys.stdout.flush()

    where = f"{given.brokers} broker{'s' if given.brokers > 1 else ''}, {'two workers' if given.cluster else 'local'}"
    parts = [f"--brokers {given.brokers}"] * (given.brokers > 1) + ["--cluster"] * given.cluster
    options = " ".join(parts + ([] if given.minutes is None else [f"--minutes {given.minutes:g}"]))
    again = f"make chaos-real-time FAULTS={given.faults} SEED={given.seed}" + (f' ON="{options}"' if options else "")
    with (
        recorded(given.record, where, again, given.seed) as numbers,
        world(folder, brokers=given.brokers, cluster=given.cluster) as around,
    ):
        if given.minutes is not None:
            around.until = began + given.minutes * 60
        rounds = draw(random.Random(given.seed), given.faults, around.weights)
        report = torment(around, rounds, say)
        numbers |= report.numbers
    lines = [*report.lines(), f"seed {given.seed}, {where}, {(time.monotonic() - began) / 60:.1f} minutes"]
    if report.ok:
        shutil.rmtree(folder, ignore_errors=True)
    else:
        lines.append(f"the files are in {folder}")
    sys.stdout.write("\n".join(lines) + "\n")
    return 0 if report.ok else 1


if __name__ == "__main__":
    sys.exit(main())
