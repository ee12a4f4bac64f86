"""A Kafka cluster in memory: transaction coordinators as `TransactionClient` sees them, and a topic.

Two brokers; the coordinator of an id is one of them, and moves when a broker fails over. A transaction that is ended
goes through Kafka's two states: `Prepare…` when the coordinator has decided, `Complete…` when its markers are written,
a moment later. A coordinator that was replaced may go on answering from what it knew (`depose`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

from penstock.errors import PreCommitFailed, SystemUnavailable
from penstock.kafka import errors
from penstock.kafka.connections import NotSent
from tests.support.simulation.schedule import Scheduler

INVALID_EPOCH, INVALID_STATE, FENCED = 47, 48, 90
_MARKERS = 0.004  # seconds until the markers of an ended transaction are written


@dataclass
class Transaction:
    """What a coordinator knows of an id."""

    pid: int
    epoch: int = 0
    state: str = "Empty"
    started: int = -1
    serial: int = 0  # of the transaction under way, in the topic's log
    done_at: float = 0.0


@dataclass
class Record:
    value: Any
    partition: int
    serial: int


class Cluster:
    def __init__(self, schedule: Scheduler, partitions: int = 2) -> None:
        self._schedule, self._partitions = schedule, partitions
        self.ids: dict[str, Transaction] = {}
        self.log: list[Record] = []
        self.committed: set[int] = set()  # serials, in the topic's log
        self.aborted: set[int] = set()
        self.moved = 0
        self.away_until = 0.0
        self.stale_until, self.knew = 0.0, dict[str, Transaction]()  # what former coordinators answer, and until when
        self.former: dict[str, int] = {}
        self.wiped: set[str] = set()  # ids that a request which came a second time initialised after their end
        self._asked = 0
        self._pid = self._serial = 0

    def visible(self) -> list[Any]:
        """As a reader with read_committed gets them, partition by partition."""
        return [
            record.value
            for partition in range(self._partitions)
            for record in self.log
            if record.partition == partition and record.serial in self.committed
        ]

    def open(self) -> list[str]:
        self._settle()
        return sorted(name for name, known in self.ids.items() if known.state == "Ongoing")

    # What may happen to it

    def restart(self, seconds: float = 1.0) -> None:
        """Nobody answers for a while; what is known is kept."""
        self.away_until = self._schedule.now + seconds

    def fail_over(self, seconds: float = 0.02) -> None:
        """Every coordinator moves to the other broker. The former one goes on answering for a while, from what it knew,
        and some brokers still name it."""
        self._settle()
        self.knew = {name: replace(transaction) for name, transaction in self.ids.items()}
        self.former = {name: self.node(name) for name in self.ids}
        self.stale_until = self._schedule.now + seconds
        self.moved += 1

    def expire(self, spared: Callable[[], bool] = lambda: False) -> None:
        """The transactions that are open have lasted too long."""
        self._settle()
        for known in self.ids.values():
            if known.state == "Ongoing" and not spared():
                known.epoch += 1
                self._end(known, commit=False)

    def forget(self) -> None:
        """`transactional.id.expiration.ms` has passed for the ids that have nothing open."""
        self._settle()
        for name in [name for name, known in self.ids.items() if known.state != "Ongoing"]:
            del self.ids[name]

    # Requests

    def node(self, name: str) -> int:
        return (sum(map(ord, name)) + self.moved) % 2

    def find(self, name: str) -> int:
        """FindCoordinator: a broker that has not heard of the move names the former one."""
        self._asked += 1
        if self.stale_until > self._schedule.now and self._asked % 2:
            return self.former.get(name, self.node(name))
        return self.node(name)

    def init(self, name: str) -> tuple[int, int, int]:
        """InitProducerId of version 4: code, producer id, epoch."""
        self._settle()
        known = self.ids.get(name)
        if known is None:
            self._pid += 1
            known = self.ids[name] = Transaction(self._pid)
            return 0, known.pid, 0
        if known.state == "Ongoing":
            known.epoch += 1
            self._end(known, commit=False)
            return errors.CONCURRENT_TRANSACTIONS, -1, -1
        if known.state.startswith("Prepare"):
            return errors.CONCURRENT_TRANSACTIONS, -1, -1
        known.epoch, known.state, known.started = known.epoch + 1, "Empty", -1
        return 0, known.pid, known.epoch

    def produce(self, name: str, pid: int, epoch: int, rows: Sequence[tuple[int, Any]]) -> int:
        """The first rows of a transaction add its partitions; the code."""
        self._settle()
        known = self.ids.get(name)
        if known is None or known.pid != pid or known.epoch != epoch:
            return FENCED
        if known.state.startswith("Prepare"):
            return errors.CONCURRENT_TRANSACTIONS
        if known.state != "Ongoing":
            self._serial += 1
            known.state, known.started, known.serial = "Ongoing", int(self._schedule.now * 1e6), self._serial
        self.log += [Record(value, partition, known.serial) for partition, value in rows]
        return 0

    def end(self, name: str, pid: int, epoch: int, commit: bool) -> int:
        """EndTxn of version 3, which leaves the epoch as it is; the code."""
        self._settle()
        known = self.ids.get(name)
        if known is None or known.pid != pid:
            return 49  # INVALID_PRODUCER_ID_MAPPING
        if known.epoch != epoch:
            return FENCED
        if known.state == "Ongoing":
            self._end(known, commit)
            return 0
        if known.state == ("CompleteCommit" if commit else "CompleteAbort"):
            return 0
        if known.state == ("PrepareCommit" if commit else "PrepareAbort"):
            return errors.CONCURRENT_TRANSACTIONS
        return INVALID_STATE

    def describe(self, name: str, node: int) -> Any:
        self._settle()
        ids = self.ids
        if self.node(name) != node:
            if self.stale_until <= self._schedule.now or self.former.get(name) != node:
                return SimpleNamespace(error_code=errors.NOT_COORDINATOR, transactional_id=name)
            ids = self.knew
        known = ids.get(name)
        if known is None:
            return SimpleNamespace(error_code=errors.TRANSACTIONAL_ID_NOT_FOUND, transactional_id=name)
        return SimpleNamespace(
            error_code=0,
            transactional_id=name,
            transaction_state=known.state,
            producer_id=known.pid,
            producer_epoch=known.epoch,
            transaction_start_time_ms=known.started,
            transaction_timeout_ms=900_000,
            topics=(),
        )

    def _end(self, known: Transaction, commit: bool) -> None:
        known.state, known.done_at = "PrepareCommit" if commit else "PrepareAbort", self._schedule.now + _MARKERS
        (self.committed if commit else self.aborted).add(known.serial)

    def _settle(self) -> None:
        for known in self.ids.values():
            if known.state.startswith("Prepare") and known.done_at <= self._schedule.now:
                known.state = "Complete" + known.state.removeprefix("Prepare")


class SimulatedConnections:
    """Stands in for `penstock.kafka.connections.Connections`: kafka-python sends nothing again by itself, and who sends
    again here knows that the first request may still arrive."""

    servers = "simulated:9092"

    def __init__(self, cluster: Cluster, schedule: Scheduler) -> None:
        self._cluster, self._schedule = cluster, schedule

    def send(self, requests: Sequence[tuple[int | None, Any]], deadline: Any) -> list[Any]:
        answers: list[Any] = []
        for node, request in requests:
            try:
                if deadline.passed():
                    raise NotSent
                answers.append(self._one(node, request))
            except Exception as error:
                self._schedule.sleep(min(1.0, deadline.remaining()))
                answers.append(error)
        return answers

    def ask(self, question: Callable[[Any], Any], deadline: Any) -> Any:
        def reach() -> None:
            if self._cluster.away_until > self._schedule.now:
                raise _lost()

        self._schedule.call("ask kafka", reach, _lost, once=True)
        return ({0, 1}, True) if question.__name__ == "_brokers" else {0, 1}

    def close(self) -> None:
        pass

    def _reach(self) -> None:
        if self._cluster.away_until > self._schedule.now:
            raise NotSent

    def _one(self, node: int | None, request: Any) -> Any:
        kind = type(request).__name__.removesuffix("Request")
        label, work = getattr(self, f"_{kind.lower()}")(node, request)

        def answered() -> Any:
            self._reach()
            return work()

        return self._schedule.call(label, answered, _lost, once=True)

    def _findcoordinator(self, node: int | None, request: Any) -> tuple[str, Callable[[], Any]]:
        names, cluster = list(request.coordinator_keys), self._cluster
        return "ask coordinators", lambda: SimpleNamespace(
            coordinators=[SimpleNamespace(key=name, error_code=0, node_id=cluster.find(name)) for name in names]
        )

    def _describetransactions(self, node: int | None, request: Any) -> tuple[str, Callable[[], Any]]:
        names, cluster = list(request.transactional_ids), self._cluster
        return f"describe {', '.join(names)}", lambda: SimpleNamespace(
            transaction_states=[cluster.describe(name, node or 0) for name in names]
        )

    def _endtxn(self, node: int | None, request: Any) -> tuple[str, Callable[[], Any]]:
        name, commit, cluster = request.transactional_id, bool(request.committed), self._cluster
        pid, epoch = request.producer_id, request.producer_epoch

        def end() -> Any:
            if cluster.node(name) != node:
                return SimpleNamespace(error_code=errors.NOT_COORDINATOR)
            return SimpleNamespace(error_code=cluster.end(name, pid, epoch, commit))

        return f"{'commit' if commit else 'abort'} {name}", end

    def _initproducerid(self, node: int | None, request: Any) -> tuple[str, Callable[[], Any]]:
        name, cluster = request.transactional_id, self._cluster

        def init() -> Any:
            if cluster.node(name) != node:
                return SimpleNamespace(error_code=errors.NOT_COORDINATOR)
            return SimpleNamespace(error_code=cluster.init(name)[0])

        return f"fence {name}", init

    def _listtransactions(self, node: int | None, request: Any) -> tuple[str, Callable[[], Any]]:
        cluster = self._cluster

        def listed() -> Any:
            names = [name for name in cluster.open() if cluster.node(name) == node]
            states = [SimpleNamespace(transactional_id=name) for name in names]
            return SimpleNamespace(error_code=0, transaction_states=states)

        return "ask open", listed


class SimulatedProducer:
    """Stands in for `penstock.sinks.kafka.producer.Producer`: what librdkafka does, without its threads. It sends again
    what was not answered, and says nothing; `penstock.kafka.librdkafka.Endings` counts what ends a transaction."""

    def __init__(self, cluster: Cluster, schedule: Scheduler, transactional_id: str) -> None:
        self._cluster, self._schedule = cluster, schedule
        self.transactional_id, self.sequence, self.rows, self.after = transactional_id, 0, 0, -1
        self.topics: set[str] = set()
        self._queue: list[tuple[int, Any]] = []
        self._sure = True
        arrived: list[str] = []

        def init() -> tuple[int, int, int]:
            known = cluster.ids.get(transactional_id)
            if arrived and known is not None and known.started >= 0 and known.state != "Ongoing":
                cluster.wiped.add(transactional_id)
            arrived.append(transactional_id)
            return cluster.init(transactional_id)

        code, self._pid, self._epoch = self._ask("init", init)
        if code:
            raise PreCommitFailed(f"The producer could not be opened: code {code}.")

    def begin(self) -> None:
        self.sequence += 1
        self.rows, self.topics, self._queue = 0, set(), []

    def send(self, columns: Mapping[str, Any], topic: str | None) -> None:
        values, partitions = columns["value"].to_pylist(), columns["partition"].to_pylist()
        self._queue += zip(partitions, values, strict=True)
        self.rows += len(values)
        self.topics.add(topic or "t")

    def flush(self) -> None:
        rows, self._queue = self._queue, []
        # A producer of librdkafka numbers what it sends, so a request that arrives twice counts once.
        sent = [False]

        def produce() -> int:
            if sent[0]:
                return 0
            code = self._cluster.produce(self.transactional_id, self._pid, self._epoch, rows)
            sent[0] = code == 0
            return code

        for _ in range(20):
            code = self._ask("produce", produce) if rows else 0
            if code != errors.CONCURRENT_TRANSACTIONS:
                break
            self._schedule.sleep(0.01)
        if code:
            raise PreCommitFailed(f"Rows were not delivered: code {code}.")

    def commit(self) -> bool:
        return self._end(commit=True)

    def abort(self) -> bool:
        return self._end(commit=False)

    def destroy(self) -> None:
        pass

    def abandon(self) -> None:
        pass

    def _end(self, *, commit: bool) -> bool:
        if self.rows == 0:
            return True
        name, cluster = self.transactional_id, self._cluster
        for _ in range(20):
            try:
                code = self._ask(
                    "confirm" if commit else "undo", lambda: cluster.end(name, self._pid, self._epoch, commit)
                )
            except SystemUnavailable:
                self._sure = False
                return False
            if code != errors.CONCURRENT_TRANSACTIONS:
                return code == 0 and self._sure
            self._schedule.sleep(0.01)
        return False

    def _ask(self, what: str, work: Callable[[], Any]) -> Any:
        def answered() -> Any:
            if self._cluster.away_until > self._schedule.now:
                raise _lost()
            return work()

        def again() -> None:
            if what in ("confirm", "undo"):
                self._sure = False

        try:
            return self._schedule.call(f"{what} {self.transactional_id}", answered, _lost, again=again)
        except SystemUnavailable:
            self._schedule.sleep(1.0)
            raise


def _lost() -> SystemUnavailable:
    return SystemUnavailable("The brokers did not answer.")
