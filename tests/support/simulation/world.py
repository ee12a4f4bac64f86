"""One history: drivers that come, stall and die over a checkpoint and its sinks, until all rows are visible.

Spark is played as in `small_spark`: it keeps the files that Spark keeps, syncs none of them, and goes by its memory
once it runs. Everything else of a driver is the real thing: `Coordinator`, `Ledger`, `SparkLog`, `log_repair`,
`InFlight`, `Drainer`, `LeaseHolder`, the writers, and the committers of Kafka, PostgreSQL, files and S3.
"""

from __future__ import annotations

import functools
import itertools
import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import pyarrow as pa

from penstock import errors
from penstock.checkpoint.lease_log import LeaseLog, Standing
from penstock.checkpoint.ledger import Ledger
from penstock.checkpoint.spark_log import SparkLog
from penstock.config import Checkpoints
from penstock.contracts.sink import Committer, SinkScope, TwoPhaseSink, Writer, WriterScope
from penstock.engine.checksum import HASH_COLUMN
from penstock.engine.coordinator import Coordinator
from penstock.engine.inflight import InFlight
from penstock.engine.preparation import EpochOutputs
from penstock.engine.restarts import ErrorClass, classify
from penstock.engine.task import committable, write_rows
from penstock.events import Events
from penstock.ops.process.lease_holder import LeaseHolder
from penstock.sinks.files.commit import FileCommitter, FileWriter, names_of
from penstock.sinks.files.s3 import UploadCommitter, UploadWriter
from penstock.sinks.kafka.committer import KafkaCommitter
from penstock.sinks.kafka.pool import Key, Pool
from penstock.sinks.kafka.transactions import TransactionClient
from penstock.sinks.kafka.writer import KafkaWriter
from penstock.spark.executors import TaskFault
from penstock.testing.anomalies import SKIPPED, TORN, Anomaly, Row, find_anomalies
from tests.support.simulation.disk import Disk, DiskStorage, DiskTree
from tests.support.simulation.greenlets import FastScheduler
from tests.support.simulation.kafka import Cluster, SimulatedConnections, SimulatedProducer
from tests.support.simulation.objects import Bucket, SimulatedFolder
from tests.support.simulation.patches import world_of
from tests.support.simulation.postgres import Server, SimulatedPostgresSink
from tests.support.simulation.schedule import DEATHS, LOSSES, Fault, Killed, Process, Stuck
from tests.support.small_spark import _Frame, _Plan, barrier_text

KEYS, WRITERS = 3, 2
FAULTY = 4  # processes that faults may hit; later ones are left in peace
LEASE_SECONDS = 6.0
_FORGOTTEN = {"forget", "oblivion"}
_STILL = {"pause", "stall"}

SINKS = ("kafka", "postgres", "staged", "files", "s3")
LOGGED = ("unaligned", "timeout", "concurrent")  # the modes with an in-flight log
PROFILES = (
    *["mixed"] * 4, "takeovers", "takeovers", "losses", "powers", "queues", "twins", "answers", "standstills",
    "expiries",
)  # fmt: skip
OFTEN = ("aligned", "aligned", "aligned", *LOGGED)


class OneByOne(Pool):
    """Opens none ahead: a history has one thread, or its seed would not repeat it."""

    def _open_ahead(self, key: Key) -> None:
        pass


@dataclass(frozen=True, slots=True)
class Setup:
    """What the job is, before anything happens to it."""

    sinks: tuple[str, ...] = ("kafka",)
    mode: str = "aligned"
    stateful: bool = False
    lease: bool = False
    permuted: bool = False
    tolerant: bool = False
    rows: int = 12
    quantum: int = 0

    def __str__(self) -> str:
        flags = [name for name in ("stateful", "lease", "permuted", "tolerant") if getattr(self, name)]
        return f"{'+'.join(self.sinks)}, {', '.join([self.mode, *flags])}, quantum {self.quantum}"

    @property
    def checkpoints(self) -> Checkpoints:
        return _checkpoints(self.mode, 2 if self.tolerant else 0)


@functools.cache
def _checkpoints(mode: str, tolerable: int) -> Checkpoints:
    modes: dict[str, dict[str, Any]] = {
        "aligned": {},
        "unaligned": {"unaligned": True},
        "timeout": {"unaligned": True, "aligned_timeout": 0.5},
        "concurrent": {"max_concurrent": 3},
    }
    return Checkpoints(commit_timeout=10, abort_timeout=10, tolerable_failures=tolerable, **modes[mode])


@dataclass
class Verdict:
    """What a history came to. `reported`: it ended with an error that tells an operator what is lost or unproven."""

    anomalies: list[str]
    story: list[str]
    steps: int
    applied: list[Fault]
    starts: int
    reported: str = ""


# The systems, and the sinks over them


class _Sink(TwoPhaseSink):
    """`visible` and `open` look at the system itself, past every client."""

    ordered = True

    def visible(self) -> list[int]:
        raise NotImplementedError

    def left(self) -> list[str]:
        raise NotImplementedError


class _KafkaSink(_Sink):
    def __init__(self, world: World) -> None:
        self._world, self.cluster = world, Cluster(world.schedule)

    def open_writer(self, scope: WriterScope) -> Writer:
        schedule, cluster = self._world.schedule, self.cluster
        pool: Pool = schedule.process.memory.setdefault(
            "pool",
            OneByOne(lambda _, name: SimulatedProducer(cluster, schedule, name)),  # type: ignore[arg-type,return-value]
        )
        return KafkaWriter(scope, Key(scope.sink.prefix, scope.sink.generation, ()), "t", pool)

    def open_committer(self, scope: SinkScope) -> Committer:
        connections: Any = SimulatedConnections(self.cluster, self._world.schedule)
        return KafkaCommitter(TransactionClient(connections, transaction_timeout=900), scope.prefix, scope.generation)

    def visible(self) -> list[int]:
        return [int(value) for value in self.cluster.visible()]

    def left(self) -> list[str]:
        return self.cluster.open()


class _PostgresSink(SimulatedPostgresSink):
    ordered = False

    def __init__(self, world: World, mode: str) -> None:
        super().__init__(Server(world.schedule), mode)

    def visible(self) -> list[int]:
        return [int(row[0]) for row in self.database.now.rows]

    def left(self) -> list[str]:
        now = self.database.now
        return [*now.prepared, *now.staged, *(f"session {session.name}" for session in self.database.sessions)]


class _Plain:
    """An encoder: numbers, one a line."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, batch: pa.RecordBatch) -> None:
        self._stream.write("".join(f"{n}\n" for n in batch.column("value").to_pylist()).encode())

    def close(self) -> None:
        pass


class _FileSink(_Sink):
    ordered = False

    def __init__(self, world: World) -> None:
        self._world = world

    @property
    def _tree(self) -> DiskTree:
        return DiskTree(self._world.disk, self._world.schedule, "out")

    def open_writer(self, scope: WriterScope) -> Writer:
        staged, final = names_of(scope, ".txt")
        file = self._tree.stage(staged)
        return FileWriter(staged, final, file, _Plain(file.stream))  # type: ignore[arg-type]

    def open_committer(self, scope: SinkScope) -> Committer:
        return FileCommitter(self._tree, scope)

    def visible(self) -> list[int]:
        disk = self._world.disk
        parts = [name for name in sorted(disk.names) if name.startswith(("out/part-", "taken/part-"))]
        return [int(line) for name in parts for line in (disk.read(name) or b"").split()]

    def left(self) -> list[str]:
        return [name for name in self._world.disk.names if name.startswith("out/") and "/staged/" in name]


class _ObjectSink(_Sink):
    ordered = False

    def __init__(self, world: World) -> None:
        self._world, self.bucket = world, Bucket()

    @property
    def _folder(self) -> Any:
        return SimulatedFolder(self.bucket, self._world.schedule)

    def open_writer(self, scope: WriterScope) -> Writer:
        return UploadWriter(self._folder, scope, ".txt", _Plain)  # type: ignore[arg-type]

    def open_committer(self, scope: SinkScope) -> Committer:
        return UploadCommitter(self._folder, scope)

    def visible(self) -> list[int]:
        return [int(line) for data in self.bucket.visible() for line in data.split()]

    def left(self) -> list[str]:
        return [name for name, _, _ in self.bucket.uploads.values()]


def _has_forgotten(sink: _Sink) -> bool:
    if isinstance(sink, _KafkaSink):
        return bool(sink.cluster.wiped)
    return isinstance(sink, _PostgresSink) and sink.database.begun_anew


class World:
    """Run it once."""

    def __init__(self, setup: Setup, faults: Sequence[Fault], seed: int) -> None:
        self.setup, self.random = setup, Random(seed)
        self.schedule = FastScheduler(
            faults, quantum=setup.quantum, most=5_000, interfere=self._interfere, lost=self._lost
        )
        self.schedule.more = self._more
        self.disk = Disk()
        kinds: dict[str, Callable[[], Any]] = {
            "kafka": lambda: _KafkaSink(self),
            "postgres": lambda: _PostgresSink(self, "two_phase"),
            "staged": lambda: _PostgresSink(self, "staged"),
            "files": lambda: _FileSink(self),
            "s3": lambda: _ObjectSink(self),
        }
        self.sinks: dict[str, Any] = {kind: kinds[kind]() for kind in setup.sinks}
        self.complete = -1  # the rows up to here are acknowledged
        self.ends: dict[int, int] = {}  # where each epoch that was completed ends
        self.violations: list[str] = []
        self.reported = ""
        self.starts = self.calm = 0
        self.done = False
        self.holders: set[int] = set()  # processes that believe to hold the lease
        self._cuts = itertools.count()
        self._serial = itertools.count()
        self._words = itertools.count(1)
        self._jobs: dict[int, str] = {}  # process: which supervisor's it is

    def run(self) -> Verdict:
        with world_of(self):
            names = ("A", "B") if self.setup.lease else ("A",)
            for name in names:
                self._start(name)
            try:
                self.schedule.run()
            except Stuck as stuck:
                if self.setup.mode != "aligned" and self._beyond_proof():
                    # The drainer asks for ever, and an operator must tell: see `penstock transactions resolve`.
                    self.reported = "OutcomeUnknown: an epoch in the in-flight log waits for an operator"
                else:
                    self.violations.append(f"stuck: {stuck}")
            anomalies = self.violations + ([] if self.violations or self.reported else self._final())
        schedule = self.schedule
        return Verdict(anomalies, schedule.story, schedule.steps, schedule.applied, self.starts, self.reported)

    def token(self, length: int) -> str:
        return f"{next(self._words):0{2 * length}x}"

    # Drivers

    def _start(self, job: str) -> None:
        self.starts += 1
        process = self.schedule.start(f"driver {self.starts}", self._drive)
        self._jobs[process.number] = job
        self.schedule.story.append(f"{self.schedule.now - 1_000:8.3f}  driver {self.starts} starts")

    def _lost(self, process: Process) -> None:
        """Killed: its supervisor starts another. Standing still: it is taken for dead, and another is started."""
        job = self._jobs[process.number]
        if process.dead:
            self.holders.discard(process.number)
            self._hang_up(process)
        if self.starts < FAULTY and (process.dead or not self.setup.lease):
            self._start(job)

    def _hang_up(self, process: Process) -> None:
        """Its connections go with a process."""
        for sink in self.sinks.values():
            if isinstance(sink, _PostgresSink):
                sink.database.left(process)

    def _more(self) -> bool:
        """Nobody is left. In peace the job must come to its end by itself, and a last start must find nothing to do."""
        if self.violations or self.reported or (self.calm and self.done):
            return False
        self.calm += 1
        self.done = False
        self.schedule.forget_faults()
        self.schedule.now += 200.0  # whatever was away has come back
        if self.calm > 4:
            self.violations.append(f"stuck: the job does not come up again: {self.schedule.story[-1].strip()}")
            return False
        self.starts = max(self.starts, FAULTY)
        self._start("C")
        return True

    def _drive(self) -> None:
        schedule = self.schedule
        holder = self._holder() if self.setup.lease else None
        if holder is not None:
            if not holder.wait():
                return
            self._take(schedule.process)
        previous, token = 0, self._token(schedule.process)
        for attempt in range(6):
            spark = Spark(self, schedule.process)
            coordinator = spark.coordinator(previous, token)
            try:
                spark.run(coordinator)
            except Exception as error:
                schedule.tell(f"ends with {type(error).__name__}: {str(error)[:150].partition(chr(10))[0]}")
                if classify(error) is ErrorClass.FATAL:
                    self._failed(error)
                    break
                self._unknown(error, attempt)
            else:
                self.done = True
                schedule.tell("is done")
                break
            finally:
                if not schedule.process.dead:
                    previous = coordinator.generation
                    coordinator.close()
            schedule.sleep(1.0)
        self._hang_up(schedule.process)
        if holder is not None:
            self.holders.discard(schedule.process.number)
            holder.close(Standing.ENDED if self.done else Standing.RELEASED, "done" if self.done else "handed over")

    def _unknown(self, error: Exception, attempt: int) -> None:
        """A sink that cannot prove an outcome is asked again; in peace that helps only if it can come to know."""
        if self.calm and attempt > 2 and isinstance(error, errors.OutcomeUnknown | errors.PreCommitFailed):
            self._excuse(error)

    def _failed(self, error: Exception) -> None:
        if isinstance(error, errors.Superseded):
            self._superseded()
            return
        if not self._excuse(error) and self.calm:
            self.violations.append(f"stuck: {type(error).__name__}: {str(error).splitlines()[0][:300]}")

    def _superseded(self) -> None:
        """Only another process may supersede one: a registration of its own is no newer run."""
        newest = max(name for name in self.disk.entries("ledger/generations"))
        facts = json.loads(self.disk.read(f"ledger/generations/{newest}") or b"{}").get("body", {})
        if facts.get("run") == self._token(self.schedule.process):
            self.violations.append(f"stuck: superseded by a registration of its own, {newest}")

    @staticmethod
    def _token(process: Process) -> str:
        return f"run-{process.number}"

    def _excuse(self, error: Exception) -> bool:
        """Whether the other system has lost or forgotten what it had confirmed, and the job says so."""
        lost = any(isinstance(sink, _PostgresSink) and sink.database.lost for sink in self.sinks.values())
        gone = isinstance(error, errors.CommittedRowsLost | errors.PreCommitFailed) and lost
        unknown = isinstance(error, errors.OutcomeUnknown) and self._beyond_proof()
        if gone or unknown or (lost and isinstance(error, errors.OutcomeUnknown)):
            self.reported = f"{type(error).__name__}: {str(error).splitlines()[0]}"
        return bool(self.reported)

    def _beyond_proof(self) -> bool:
        """Whether the other system has forgotten how something ended: only an operator can tell then."""
        happened = {fault.kind for fault in self.schedule.applied}
        # On S3 an upload that ends, or an object that is moved, within a commit is beyond proof.
        moved = "s3" in self.sinks and happened & {"expire", "lapse", "oblivion", "reader", "taken"}
        return bool(happened & _FORGOTTEN or moved) or any(map(_has_forgotten, self.sinks.values()))

    # The lease

    def _holder(self) -> LeaseHolder:
        schedule, process = self.schedule, self.schedule.process
        storage = DiskStorage(self.disk, schedule, "lease")

        def over(error: Exception) -> None:
            schedule.tell(f"ends itself: {type(error).__name__}")
            schedule.kill(process)

        clock = lambda: schedule.now  # noqa: E731
        me = self._jobs[process.number]
        return LeaseHolder(LeaseLog(storage, now=clock), me, me, LEASE_SECONDS, lost=over, clock=clock)

    def _take(self, process: Process) -> None:
        self.schedule.tell("has the lease")
        for other in self.holders - {fault.process for fault in self.schedule.applied if fault.kind in _STILL}:
            self.violations.append(f"two drivers hold the lease: process {other} lives")
        self.holders.add(process.number)

    # Faults of the systems

    def _interfere(self, fault: Fault) -> None:
        tell = self.schedule.tell
        match fault.kind:
            case "power":
                self._cut_power()
            case "stray":
                self.schedule.process.memory["stray"] = True
            case "double":
                tell("✗ is taken for dead, though nothing is wrong with it")
                self._lost(self.schedule.process)
            case "reader" | "taken":
                tell("✗ a reader takes the finished files away")
                for sink in self.sinks.values():
                    if isinstance(sink, _ObjectSink):
                        sink.bucket.take_away()
                        sink.bucket.completed.clear()  # by then it has forgotten how uploads ended
                for name in [name for name in self.disk.names if name.startswith("out/part-")]:
                    self.disk.names[f"taken/{name[4:]}"] = self.disk.names.pop(name)
                    self.disk.sync_folder("out")
                    self.disk.sync_folder("taken")
            case _:
                for sink in self.sinks.values():
                    self._trouble(sink, fault)

    def _trouble(self, sink: Any, fault: Fault) -> None:
        tell = self.schedule.tell
        spared = lambda: self.random.random() < 0.3  # noqa: E731 - some began later
        if isinstance(sink, _KafkaSink):
            cluster = sink.cluster
            if fault.kind in ("expire", "lapse"):
                cluster.expire(spared)
            elif fault.kind == "oblivion":
                cluster.expire()
                self.schedule.now += 1.0
                cluster.forget()
            elif fault.kind in ("restart", "outage"):
                cluster.restart(fault.size)
            elif fault.kind == "forget":
                cluster.forget()
            else:
                cluster.fail_over(fault.size * 0.02)
            tell(f"✗ Kafka: {fault.kind}")
        elif isinstance(sink, _PostgresSink) and fault.kind in ("restart", "outage"):
            tell("✗ PostgreSQL restarts")
            sink.database.restart(fault.size)
        elif isinstance(sink, _PostgresSink) and fault.kind in ("expire", "lapse", "oblivion"):
            tell("✗ an administrator rolls back prepared transactions")
            sink.database.roll_back(spared)
        elif isinstance(sink, _PostgresSink) and fault.kind == "failover":
            ends = sink.database.fail_over(fault.size)
            tell(f"✗ PostgreSQL fails over to a replica that lacks {fault.size} changes, {ends} of them commits")
        elif isinstance(sink, _ObjectSink) and fault.kind in ("expire", "lapse", "oblivion"):
            tell("✗ a rule of the bucket ends open uploads")
            sink.bucket.completed.clear()
            sink.bucket.abort_all(spared)
        elif isinstance(sink, _ObjectSink) and fault.kind in ("restart", "outage"):
            sink.bucket.away_until = self.schedule.now + fault.size

    def _cut_power(self) -> None:
        self.schedule.tell("✗ the power fails")
        own = self.schedule.process
        processes = {id(actor.process): actor.process for actor in self.schedule.actors if not actor.done}
        for process in processes.values():
            process.dead = True
            self.holders.discard(process.number)
            self._hang_up(process)
        told = self.disk.cut(self.random)
        self.schedule.tell(f"✗ of what was not synced: {', '.join(told) or 'nothing is lost'}")
        jobs = sorted({self._jobs[process.number] for process in processes.values()})
        for job in jobs:
            if self.starts < FAULTY:
                self._start(job)
        assert own.dead
        raise Killed

    # What readers see

    def completed(self, epoch: int, end: int) -> None:
        """Spark has written the commit of an epoch. Aligned, all of it must be visible by now."""
        self.ends[epoch], self.complete = end, max(self.complete, end)
        if self.setup.mode != "aligned":
            return
        for name, sink in self.sinks.items():
            if isinstance(sink, _PostgresSink) and sink.database.lost:
                continue
            visible = Counter(sink.visible())
            missing = [number for number in range(end) if not visible[number]]
            doubled = [number for number in visible if visible[number] > 1]
            if missing or doubled:
                found = f"{f'not visible: {missing}' if missing else ''} {f'doubled: {doubled}' if doubled else ''}"
                self.violations.append(f"{name}: epoch {epoch} is complete, {found.strip()}")

    def _final(self) -> list[str]:
        found: list[str] = []
        starts = [0, *(self.ends[epoch] for epoch in sorted(self.ends))]
        epoch_of = {
            n: epoch
            for epoch in sorted(self.ends)
            for n in range(starts[min(epoch, len(starts) - 1)], self.ends[epoch])
        }
        sent = [Row(number % KEYS, number, epoch_of.get(number)) for number in range(self.setup.rows)]
        for name, sink in self.sinks.items():
            visible = [Row(number % KEYS, number) for number in sink.visible()]
            # No sink looks for what it lost of epochs that went through the in-flight log: docs/concepts/guarantees.md.
            complete = self.setup.mode == "aligned" or not (isinstance(sink, _PostgresSink) and sink.database.lost)
            anomalies: list[Anomaly] = find_anomalies(sent, visible, ordered=sink.ordered, complete=complete)
            anomalies = [each for each in anomalies if complete or each.kind not in (SKIPPED, TORN)]
            found += [f"{name}: {anomaly}" for anomaly in anomalies]
            if left := sink.left():
                found.append(f"{name}: left open: {', '.join(left[:3])}")
        return found


class _Silent(Events):
    """Nothing listens; to mask secrets in what is emitted takes longer than to commit it."""

    def emit(self, event: str, **fields: Any) -> None:
        pass


@dataclass(eq=False)
class Spark:
    """Spark's part of one start of the query, as in `small_spark.SmallSpark`."""

    world: World
    process: Process
    epoch: int = 0
    memory: dict[int, int] = field(default_factory=dict)
    texts: dict[int, str] = field(default_factory=dict)

    @property
    def _disk(self) -> Disk:
        return self.world.disk

    def storage(self, root: str) -> DiskStorage:
        return DiskStorage(self._disk, self.world.schedule, root)

    def coordinator(self, previous: int, token: str) -> Coordinator:
        world, checkpoints = self.world, self.world.setup.checkpoints
        clock = lambda: world.schedule.now  # noqa: E731
        ledger = Ledger(self.storage("ledger"), now=clock)
        events, inflight = _Silent(), None
        if checkpoints.logged:
            inflight = InFlight(
                job="job",
                query="q",
                sinks=world.sinks,
                location="inflight",
                storage=self.storage("inflight"),
                ledger=ledger,
                ledger_of=lambda where: Ledger(self.storage(where), now=clock),
                events=events,
                checkpoints=checkpoints,
            )
        return Coordinator(
            job="job",
            query="q",
            sinks=world.sinks,
            sources=(),
            ledger=ledger,
            log=SparkLog(self.storage("spark"), positions=1),
            events=events,
            body=self._body,  # type: ignore[arg-type]
            executed_plan=_Plan,
            running=self,
            checkpoints=checkpoints,
            inflight=inflight,
            previous=previous,
            run=token,
        )

    # What Spark holds in memory

    def starts_at(self) -> str:
        return self.texts.get(self.epoch - 1) or barrier_text(None)

    def ends_at(self) -> str:
        return self.texts[self.epoch]

    # One start

    def run(self, coordinator: Coordinator) -> None:
        resume = coordinator.recover()
        self.world.schedule.tell(
            f"recovers as generation {resume.generation}: {resume.action}, epoch {resume.epoch} next"
        )
        coordinator.refuse_superseded()
        self._query(coordinator)
        coordinator.drain(lambda: coordinator.failure is not None)
        if coordinator.failure is not None:
            raise coordinator.failure

    def _query(self, coordinator: Coordinator) -> None:
        until = self.world.setup.rows
        if self._read("metadata") is None:
            self._write("metadata", json.dumps({"id": self.world.token(4)}))
        json.loads(self._read("metadata") or b"")
        epoch = self._newest("offsets")
        if epoch < 0:
            for folder in ("offsets", "commits", "state"):
                if self._disk.below(f"spark/{folder}"):
                    raise AssertionError(f"Spark refuses: {folder} is not empty on batch 0")
            epoch = 0
        elif self._newest("commits") == epoch:
            self._remember(epoch)
            epoch += 1
        elif epoch > 0:
            self._remember(epoch - 1)
        while True:
            start = self.memory[epoch - 1] if epoch else 0
            if self._read(f"offsets/{epoch}") is None:
                if start >= until:
                    return
                # Never at the same place twice.
                self.memory[epoch] = end = min(until, start + 3 + next(self.world._cuts) % 3)
                self.texts[epoch] = barrier_text(end)
                self._write(f"offsets/{epoch}", self.texts[epoch])
            elif epoch not in self.memory:
                self._remember(epoch)
            self.epoch = epoch
            if self.world.setup.lease:
                self.world.schedule.sleep(1.5)  # or it would be over before the lease is renewed for the first time
            coordinator(_Frame(), epoch)  # type: ignore[arg-type]
            self._write(f"commits/{epoch}", 'v1\n{"nextBatchWatermarkMs":0}')
            self.world.completed(epoch, self.memory[epoch])
            epoch += 1

    def _remember(self, epoch: int) -> None:
        data = self._read(f"offsets/{epoch}")
        if not data:
            raise AssertionError(f"Spark finds no offsets/{epoch}")
        self.texts[epoch] = data.decode()
        self.memory[epoch] = int(json.loads(self.texts[epoch].splitlines()[2])["t"]["0"])

    def _body(self, _: Any, outputs: EpochOutputs) -> None:
        epoch, setup, schedule = outputs.epoch, self.world.setup, self.world.schedule
        start, end = self.memory[epoch - 1] if epoch else 0, self.memory[epoch]
        if setup.stateful and epoch:
            before = self._read(f"state/0/0/{epoch}.delta")
            if before is None or int(before or b"-1") != sum(range(start)):
                raise AssertionError(f"the state before epoch {epoch} is {before!r}, not {sum(range(start))}")
        for uid, sink in self.world.sinks.items():
            assignment = outputs.assignments.of(uid)
            for part in range(WRITERS):
                numbers = [number for number in range(start, end) if number % KEYS % WRITERS == part]
                writer = WRITERS - 1 - part if setup.permuted and assignment.scope.generation % 2 else part
                report, tried = self._task(sink, assignment, epoch, writer, numbers)
                outputs.committables.append(committable(uid, report))
                outputs.strays = outputs.strays or tried
            outputs._written.add(uid)
        if setup.stateful:
            self._write(f"state/0/0/{epoch + 1}.delta", str(sum(range(end))))
        schedule.tell(f"has prepared epoch {epoch}, rows {start} to {end - 1}")

    def _task(self, sink: Any, assignment: Any, epoch: int, writer: int, numbers: list[int]) -> tuple[Any, bool]:
        """As Spark runs a task: once more after a failure that may pass; twice, where it speculates."""
        tried = False
        while True:
            rows = [_batch(tuple(numbers))] if numbers else []
            scope = WriterScope(
                assignment.scope, epoch, assignment.attempt, writer, next(self.world._serial), assignment.hints
            )
            try:
                report = write_rows(sink, scope, iter(rows), assignment.writing)
            except TaskFault:
                if tried:
                    raise
            else:
                if not self.process.memory.pop("stray", False):
                    return report, tried
                self.world.schedule.tell(f"✗ a second attempt of task {writer} is the one that counts")
            tried = True

    def _read(self, name: str) -> bytes | None:
        return self._disk.read(f"spark/{name}")

    def _write(self, name: str, text: str) -> None:
        """By a rename that overwrites; never synced."""
        path = f"spark/{name}"
        kind = f"spark-{name.partition('/')[0]}"
        self.world.schedule.call(f"{kind} {path}", lambda: self._disk.write(path, text.encode()))

    def _newest(self, folder: str) -> int:
        return max((int(name) for name in self._disk.entries(f"spark/{folder}") if name.isdigit()), default=-1)


@functools.cache
def _batch(numbers: tuple[int, ...]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [
            pa.array(numbers, pa.int64()),
            pa.array([number % KEYS % 2 for number in numbers], pa.int32()),
            pa.array([number * 7919 + 13 for number in numbers], pa.int64()),
        ],
        names=["value", "partition", HASH_COLUMN],
    )


# Histories by chance

_CLASSES = {
    "": (
        "create-generations", "create-claims", "create-epochs", "list-generations", "list-epochs", "list-claims",
        "spark-offsets", "spark-commits", "sync",
    ),
    "fencing": (
        "create-generations", "list-epochs", "list-claims", "create-claims", "list-generations", "create-epochs",
        "spark-commits", "spark-offsets",
    ),
    "stateful": ("spark-state",),
    "inflight": (
        "create-backlog", "create-drained", "delete-backlog", "stage", "write", "list-drained", "read-backlog",
    ),
    "lease": ("create-lease", "list-lease"),
    "kafka": ("init", "produce", "describe", "commit", "abort", "fence", "confirm", "undo", "ask"),
    "postgres": ("prepare", "commit", "rollback", "fence", "copy", "connect", "sql"),
    "staged": ("commit", "fence", "copy", "sql"),
    "files": ("stage", "write", "rename", "sync", "list", "delete"),
    "s3": ("begin", "upload", "commit", "abort", "put", "get"),
}  # fmt: skip
_ENDINGS = {
    "kafka": ("commit", "fence", "describe"), "postgres": ("commit", "rollback", "prepare"),
    "staged": ("commit", "fence"), "files": ("rename", "write", "delete"), "s3": ("commit", "abort", "put"),
}  # fmt: skip
_KINDS = (
    *["kill"] * 10, *["killed"] * 10, *["orphan"] * 4, *["pause"] * 16, *["switch"] * 6, *["lose"] * 4, *["answer"] * 6,
    *["late"] * 4, "twice", *["outage"] * 5, *["power"] * 8, *["stray"] * 2, *["expire"] * 4, *["lapse"] * 8, "forget",
    "restart", *["failover"] * 4, *["reader"] * 2, *["delay"] * 4, *["slow"] * 4, *["partition"] * 4, *["double"] * 4,
    *["oblivion"] * 2,
)  # fmt: skip


def chance(
    seed: int, sinks: Sequence[str] = SINKS, modes: Sequence[str] = OFTEN, profiles: Sequence[str] = PROFILES
) -> tuple[Setup, list[Fault]]:
    """The setup and the faults of a history."""
    random = Random(seed)
    chosen = (
        random.sample(list(sinks), 2) if len(sinks) > 1 and random.random() < 0.15 else [random.choice(list(sinks))]
    )
    setup = Setup(
        sinks=tuple(chosen),
        mode=random.choice(modes),
        stateful=random.random() < 0.3,
        lease=random.random() < 0.12 and profiles is PROFILES,
        permuted=random.random() < 0.2,
        tolerant=random.random() < 0.3,
        rows=random.choice((5, 8, 12)),
        quantum=random.choice((0, 0, 0, 1, 3, 9, 30)),
    )
    classes = [*_CLASSES[""], *(name for kind in chosen for name in _CLASSES[kind])]
    classes += _CLASSES["stateful"] * setup.stateful + _CLASSES["lease"] * setup.lease * 3
    classes += _CLASSES["inflight"] * (setup.mode != "aligned")
    if setup.lease and random.random() < 0.5:
        return setup, _leases(random)
    profile = random.choice(profiles)
    if profile in ("takeovers", "twins") and not setup.lease:
        setup = replace(setup, quantum=random.choice((1, 3, 9, 30)))
        return setup, (_takeovers if profile == "takeovers" else _twins)(random, chosen)
    if profile in ("standstills", "expiries"):
        setup = replace(setup, quantum=random.choice((1, 1, 3, 5, 9)))
        return setup, (_standstills if profile == "standstills" else _expiries)(random, chosen)
    if profile == "losses":
        return setup, _losses(random, chosen)
    if profile == "answers":
        return setup, _answers(random, chosen, classes)
    if profile == "powers":
        return setup, _powers(random, chosen, classes)
    if profile == "queues" and setup.mode != "aligned":
        return setup, _queues(random, chosen)
    faults, deaths = [], 0
    for _ in range(random.choice((0, 1, 2, 2, 3, 3, 4, 5))):
        kind = random.choice(_KINDS)
        if setup.lease and kind == "pause":
            kind = "stall"
        at = random.choice(classes) if random.random() < 0.65 else ""
        nth = random.choice((1, 1, 1, 2, 2, 3, 4, 6)) if at else random.choice((3, 30, 100, 200)) + random.randrange(60)
        size = random.choice((1, 2, 3, 5, 10, 20, 40, 80, 150))
        if kind == "stall":
            size = random.choice((1, 3, 5, 7, 12, 30))
        if kind == "failover":
            size = random.choice((1, 1, 2, 3, 4))
        faults.append(Fault(random.randint(1, min(1 + deaths, FAULTY)), nth, kind, at, size))
        deaths += kind in DEATHS or kind in ("pause", "power") or (setup.lease and not deaths)
    return setup, sorted(faults)


def _takeovers(random: Random, chosen: Sequence[str]) -> list[Fault]:
    """Drivers that stand still, one after the other, where they look, claim, decide and commit."""
    classes = [*_CLASSES["fencing"], *(name for kind in chosen for name in _ENDINGS[kind])]
    return [
        Fault(
            number, random.choice((1, 1, 1, 2, 2, 3, 4)), random.choice((*["pause"] * 3, "killed", "answer")),
            random.choice(classes), random.choice((5, 20, 40, 60, 80, 120, 200)),
        )
        for number in range(1, random.choice((2, 3, 4, 5)))
    ]  # fmt: skip


def _losses(random: Random, chosen: Sequence[str]) -> list[Fault]:
    """Drivers that die in the middle of a commit, one after the other, and what they had prepared expires."""
    classes = [name for kind in chosen for name in _ENDINGS[kind]] + ["create-epochs", "spark-commits"]
    return [
        Fault(
            number, random.choice((1, 1, 2, 2, 3, 4)),
            random.choice((*["lapse"] * 3, "oblivion", "taken", "taken", "killed", "outage", "expire")),
            random.choice(classes), random.choice((1, 3, 20, 40)),
        )
        for number in range(1, random.choice((2, 3, 4)))
    ]  # fmt: skip


def _standstills(random: Random, chosen: Sequence[str]) -> list[Fault]:
    """One driver that stands still at a sink, until the next one has done all that there is to do."""
    classes = [name for kind in chosen for name in _CLASSES[kind]]
    at, size = random.choice(classes), random.choice((60, 150, 300, 2000))
    return [Fault(1, random.choice((1, 1, 2, 2, 3, 4, 6)), "pause", at, size)]


def _expiries(random: Random, chosen: Sequence[str]) -> list[Fault]:
    """One driver that lives, and once or twice loses what it has prepared."""
    classes = [name for kind in chosen for name in _ENDINGS[kind]] + ["create-epochs", "create-backlog"]
    count = random.choice((1, 1, 2))
    return [Fault(1, random.choice((1, 2, 3, 4, 5, 6)), "expire", random.choice(classes)) for _ in range(count)]


def _powers(random: Random, chosen: Sequence[str], classes: Sequence[str]) -> list[Fault]:
    """A driver that dies in the middle of a step, and then, once or twice, the power fails while the next one commits:
    was the step safe by the time others had built on it?"""
    steps = [
        *["create-epochs"] * 3,
        "create-generations",
        "create-claims",
        "spark-offsets",
        "spark-commits",
        *classes[:5],
    ]
    later = [*(name for kind in chosen for name in _ENDINGS[kind]), "create-epochs", "spark-commits", "sync"]
    kind = random.choice((*["killed"] * 3, "kill", "power"))
    first = Fault(1, random.choice((1, 1, 2, 3)), kind, random.choice(steps))
    cuts = range(2, 2 + random.choice((1, 1, 2)))
    return [first, *(Fault(n, random.choice((1, 1, 2, 2, 3, 4)), "power", random.choice(later)) for n in cuts)]


def _answers(random: Random, chosen: Sequence[str], classes: Sequence[str]) -> list[Fault]:
    """One driver on a bad line: it lives, and its requests and answers are lost, late and repeated."""
    kinds = ["lose", "answer", "answer", "late", "late", "late", "twice", "slow", "delay", "outage"]
    kinds += ["failover", "failover", "killed"] if "kafka" in chosen else []
    ends = [name for kind in chosen for name in _ENDINGS[kind]]
    again = [Fault(1, 2, "answer", "create-generations")] * (random.random() < 0.3)
    return again + [
        Fault(
            random.choice((1, 1, 1, 2)), random.choice((1, 1, 2, 2, 3)), random.choice(kinds),
            random.choice(ends if random.random() < 0.5 else [*classes, *["create-generations"] * 4]),
            random.randint(1, random.choice((10, 40, 90))),
        )
        for _ in range(random.choice((2, 3, 4, 5)))
    ]  # fmt: skip


def _leases(random: Random) -> list[Fault]:
    """A holder that is cut off, or stands still, for about as long as its lease lasts; and a standby beside it."""
    return [
        Fault(
            random.choice((1, 1, 2, 3)), random.choice((1, 2, 2, 3, 4)),
            kind := random.choice(("partition", "partition", "stall", "kill", "killed", "answer", "late", "lose")),
            random.choice(("create-lease", "create-lease", "list-lease", "create-epochs", "spark-commits")),
            random.choice((3, 6, 8, 12) if kind == "stall" else (20, 50, 70, 100, 150)),
        )
        for _ in range(random.choice((1, 2, 3)))
    ]  # fmt: skip


def _queues(random: Random, chosen: Sequence[str]) -> list[Fault]:
    """A sink that does not answer for a while, so that epochs wait for it in the in-flight log; then a driver dies,
    or stands still, while it works that off."""
    sinks = [name for kind in chosen for name in (*_CLASSES[kind], *_ENDINGS[kind], *_ENDINGS[kind])]
    first = Fault(
        1, random.choice((1, 1, 2, 3, 4)), random.choice(("outage", "outage", "delay", "late", "partition", "lapse")),
        random.choice(sinks), random.choice((2, 5, 10, 20, 40, 80)),
    )  # fmt: skip
    ends = [
        Fault(
            number, random.choice((1, 1, 2, 3)), random.choice(("kill", "killed", *["pause"] * 3, "double", "late")),
            random.choice((*_CLASSES["inflight"], *sinks)), random.choice((5, 20, 40, 80, 150, 300)),
        )
        for number in range(1, random.choice((2, 3, 4)))
    ]  # fmt: skip
    return [first, *ends]


def _twins(random: Random, chosen: Sequence[str]) -> list[Fault]:
    """Two drivers that start within a few calls of each other, and go on side by side."""
    classes = [*_CLASSES["fencing"], *(name for kind in chosen for name in _ENDINGS[kind])]
    faults = [Fault(1, random.randint(1, random.choice((4, 20, 80))), "double")]
    for number in range(1, random.choice((1, 2, 3, 4))):
        kind = random.choice(("killed", "kill", "pause", "double", "answer", "slow", "partition"))
        size = random.choice((1, 5, 20, 60, 150))
        faults.append(Fault(number, random.choice((1, 1, 2, 2, 3)), kind, random.choice(classes), size))
    return faults


def history(
    seed: int, sinks: Sequence[str] = SINKS, modes: Sequence[str] = OFTEN, profiles: Sequence[str] = PROFILES
) -> Verdict:
    return World(*chance(seed, sinks, modes, profiles), seed).run()


def smaller(setup: Setup) -> list[Setup]:
    """Simpler jobs to try when a history is shrunk."""
    return [
        replace(setup, sinks=setup.sinks[:1]),
        replace(setup, sinks=setup.sinks[1:] or setup.sinks),
        replace(setup, stateful=False),
        replace(setup, permuted=False),
        replace(setup, tolerant=False),
        replace(setup, lease=False),
        replace(setup, quantum=0),
        replace(setup, rows=5),
        replace(setup, mode="aligned"),
    ]


__all__ = ["DEATHS", "LOSSES", "SINKS", "Setup", "Spark", "Verdict", "World", "chance", "history", "smaller"]
