"""The driver's view of Kafka transactions: describe, end, list and fence them by name, from any process.

Kafka keeps a transaction at the broker that coordinates its id, not at the client that opened it. So any client that
knows id, producer id and epoch may end it.

Every method works until its deadline, finds coordinators again when they move, and reconnects. None raises for the
answer to a single transaction; `SystemUnavailable` and `AccessDenied` mean that nothing can be asked at all.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any

from penstock.checkpoint.decision import Committable
from penstock.deadline import Deadline
from penstock.errors import PenstockError, SystemUnavailable
from penstock.kafka import connections as cluster
from penstock.kafka import errors
from penstock.kafka.connections import REQUEST_SECONDS, Connections, NotSent, Place, kafka_python

_MOVED = (errors.COORDINATOR_LOADING, errors.COORDINATOR_NOT_AVAILABLE, errors.NOT_COORDINATOR)
#: No answer; not a code of Kafka's.
SILENT = -1000
_LOG = "__transaction_state"
_DEFAULT_PARTITIONS = 50
Starts = Mapping[str, int]  # of transactions, by id
_ANY: Starts = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Described:
    """A coordinator's description of a transactional id: `state` is Kafka's word or `NotFound`, times in ms."""

    state: str
    producer_id: int = -1
    producer_epoch: int = -1
    started: int = -1
    timeout: int = -1
    partitions: tuple[str, ...] = ()

    @property
    def open(self) -> bool:
        return self.state == "Ongoing"


@dataclass(frozen=True, slots=True)
class Ending:
    """A transaction to end: exactly this one, by producer id and epoch."""

    transactional_id: str
    producer_id: int
    producer_epoch: int


@dataclass(frozen=True, slots=True)
class Ended:
    """The last answer. Not `sure`: a request may still arrive and end a later transaction of this producer."""

    code: int
    sure: bool

    @property
    def done(self) -> bool:
        return self.code == 0


class Unsure:
    """Transactional ids with a request that was never answered, shared by the whole process.

    Such a request may still reach the broker, and would end any transaction that its producer has open then. So no
    committer may let a writer reuse one of these ids: not the one that sent the request, nor another that found the
    transaction ended later (the drainer has its own), nor one opened since. Other processes need not know: they have
    another generation, and a writer never uses an earlier generation's producer.

    Grows by one id per lost answer and never shrinks: an id is some fifty bytes, a lost answer is rare.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ids: dict[str, None] = {}  # oldest first

    def add(self, ids: Iterable[str]) -> None:
        with self._lock:
            self._ids.update(dict.fromkeys(ids))

    def __contains__(self, name: str) -> bool:
        return name in self._ids

    def newest(self, prefix: str, most: int) -> list[str]:
        """The last `most` ids that begin with `prefix`."""
        with self._lock:
            return [name for name in self._ids if name.startswith(prefix)][-most:]


UNSURE = Unsure()


class TransactionClient:
    """One cluster, seen from the driver. Thread-safe."""

    def __init__(self, connections: Connections, *, transaction_timeout: float) -> None:
        self._connections = connections
        self._timeout_ms = int(transaction_timeout * 1000)
        self._coordinators: dict[str, int] = {}
        self._log_partitions = 0

    def describe(self, ids: Iterable[str], deadline: Deadline, since: Starts = _ANY) -> Mapping[str, Described]:
        """The state of each id, begun at `since` or later; without those that could not be asked in time."""
        waiting = list(dict.fromkeys(ids))
        states: dict[str, Described] = {}
        for pause in _pauses(deadline):
            by_node: dict[int, list[str]] = {}
            for name, node in self._find(waiting, deadline).items():
                by_node.setdefault(node, []).append(name)
            requests = [
                (node, kafka_python().DescribeTransactions(transactional_ids=group)) for node, group in by_node.items()
            ]
            for answer in self._connections.send(requests, deadline):
                for state in getattr(answer, "transaction_states", ()):
                    if state.error_code == 0:
                        if 0 <= state.transaction_start_time_ms < since.get(state.transactional_id, 0):
                            continue  # what a former coordinator remembers
                        states[state.transactional_id] = Described(
                            state.transaction_state,
                            state.producer_id,
                            state.producer_epoch,
                            state.transaction_start_time_ms,
                            state.transaction_timeout_ms,
                            tuple(f"{topic.topic}-{number}" for topic in state.topics for number in topic.partitions),
                        )
                    elif state.error_code == errors.TRANSACTIONAL_ID_NOT_FOUND:
                        states[state.transactional_id] = Described("NotFound")
                    else:
                        _raise_denied(state.error_code)
            waiting = [name for name in waiting if name not in states]
            self._forget(waiting)
            if not waiting:
                break
            time.sleep(pause)
        return states

    def end(self, endings: Sequence[Ending], commit: bool, deadline: Deadline) -> Mapping[str, Ended]:
        """Commit or abort all, in parallel. Waits for coordinators and for CONCURRENT_TRANSACTIONS to pass; the caller
        judges any other answer, or none: the state at another coordinator must be read first."""
        waiting = {ending.transactional_id: ending for ending in endings}
        answers: dict[str, Ended] = {name: Ended(SILENT, True) for name in waiting}
        # Version 3 leaves the epoch unchanged, so that the writer's producer can continue.
        request = partial(kafka_python().EndTxn, committed=commit, max_version=3)
        for pause in _pauses(deadline):
            nodes = self._find(waiting, deadline)
            requests = [(node, request(**asdict(waiting[name]))) for name, node in nodes.items()]
            for name, answer in zip(nodes, self._connections.send(requests, deadline), strict=True):
                code = getattr(answer, "error_code", SILENT)
                sure = answers[name].sure and (code != SILENT or isinstance(answer, NotSent))
                answers[name] = Ended(code, sure)
                if code == SILENT or code in _MOVED:
                    self._forget((name,))
                if code != errors.CONCURRENT_TRANSACTIONS:
                    del waiting[name]
            if not waiting:
                break
            time.sleep(pause)
        return answers

    def list_open(self, prefix: str, deadline: Deadline) -> Sequence[str]:
        """Transactional ids that begin with `prefix` and have a transaction open.

        A broker lists what it has loaded. Right after a coordinator is lost, no broker may list its transactions yet.
        So a list counts only if every partition of the coordinators' log had the same owner before and after it, which
        had loaded it."""
        probes = _probes(prefix, self._partitions(deadline))
        owners = self._owners(probes, deadline)
        while True:
            names = self._list(prefix, deadline)
            before, owners = owners, self._owners(probes, deadline)
            if owners == before:
                return names

    def _partitions(self, deadline: Deadline) -> int:
        """Of the coordinators' log; Kafka's default where this user may not ask, or there is no log yet."""
        if not self._log_partitions:
            try:
                self._log_partitions = len(
                    self._connections.ask(lambda admin: cluster.find_leaders(_LOG, admin), deadline)
                )
            except (PenstockError, kafka_python().errors.KafkaError):
                return _DEFAULT_PARTITIONS
        return self._log_partitions or _DEFAULT_PARTITIONS

    def _owners(self, probes: Sequence[str], deadline: Deadline) -> dict[str, int]:
        """The broker that coordinates each of these ids, and has answered for it: it has loaded that partition."""
        self._forget(probes)
        states = self.describe(probes, deadline)
        if len(states) < len(probes):
            raise errors.unreachable(self._connections.servers, "a coordinator has not loaded its log", REQUEST_SECONDS)
        return {name: self._coordinators.get(name, SILENT) for name in probes}

    def _list(self, prefix: str, deadline: Deadline) -> Sequence[str]:
        """Ask all brokers; if one does not answer and the cluster has given it up, ask all others again, because they
        have its transactions now."""
        pending: set[int] | None = None
        asked: set[int] = set()
        pattern: dict[str, str] = {}
        names: set[str] = set()
        for pause in _pauses(deadline):
            if pending is None:
                try:
                    pending, patterns = self._connections.ask(_brokers, deadline)
                except SystemUnavailable:
                    time.sleep(pause)
                    continue
                # Brokers before 4.1 know no pattern and list all; hence the filter below.
                pattern = {"transactional_id_pattern": f"{re.escape(prefix)}.*"} if patterns else {}
                asked = set(pending)
            nodes = sorted(pending)
            requests = [(node, kafka_python().ListTransactions(state_filters=["Ongoing"], **pattern)) for node in nodes]
            for node, answer in zip(nodes, self._connections.send(requests, deadline), strict=True):
                code = getattr(answer, "error_code", SILENT)
                _raise_denied(code)
                if code == 0:
                    pending.discard(node)
                    ids = (state.transactional_id for state in answer.transaction_states)
                    names.update(name for name in ids if name.startswith(prefix))
            if not pending:
                return sorted(names)
            time.sleep(pause)
            with suppress(SystemUnavailable, kafka_python().errors.KafkaError):  # no broker answers
                living = self._connections.ask(_living, deadline)
                if living and living != asked:
                    pending, asked = set(living), living
        raise errors.unreachable(self._connections.servers, "open transactions could not be listed", REQUEST_SECONDS)

    def fence(self, ids: Collection[str], deadline: Deadline, since: Starts = _ANY) -> Collection[str]:
        """Abort the open transactions of `ids` and bump their epochs, so that a surviving writer can do nothing more.
        Returns those not fenced by the deadline. `since` is that of `describe`.

        Requests the abort and then only looks: initialising again after the abort would wipe the state that proves it.
        """
        waiting = set(ids)
        request = partial(kafka_python().InitProducerId, transaction_timeout_ms=self._timeout_ms, max_version=4)
        for pause in _pauses(deadline):
            states = self.describe(waiting, deadline, since)
            unsettled = ("Ongoing", "PrepareAbort", "PrepareEpochFence")
            waiting -= {name for name, described in states.items() if described.state not in unsettled}
            if not waiting:
                break
            nodes = self._find([name for name in waiting if name in states and states[name].open], deadline)
            requests = [(node, request(transactional_id=name)) for name, node in nodes.items()]
            for answer in self._connections.send(requests, deadline):
                _raise_denied(getattr(answer, "error_code", SILENT))
            time.sleep(pause)
        return waiting

    def evidence(self, committable: Committable, deadline: Deadline) -> str:
        """What the topics hold of a sealed transaction, read from their beginning, for an operator."""
        payload, evidence = committable.payload, Evidence(committable.rows)
        for topic in payload.get("topics", ()):
            try:
                places = self._connections.ask(partial(cluster.find_places, topic), deadline)
            except (PenstockError, kafka_python().errors.KafkaError) as error:
                evidence.gaps.append(f"topic {topic} ({type(error).__name__})")
                continue
            if not places:
                evidence.gaps.append(f"topic {topic} (it does not exist)")
            for place in places:
                read = partial(cluster.fetch, self._connections, place, deadline=deadline)
                if why := _count(place, read, payload, evidence):
                    evidence.gaps.append(f"{topic}-{place.number} ({why})")
        return str(evidence)

    def close(self) -> None:
        self._connections.close()

    def _find(self, ids: Iterable[str], deadline: Deadline) -> dict[str, int]:
        names = list(ids)
        unknown = [name for name in names if name not in self._coordinators]
        if unknown:
            if len(self._coordinators) > 20_000:
                self._coordinators.clear()
                unknown = names
            request = kafka_python().FindCoordinator(key_type=1, coordinator_keys=unknown, min_version=4)
            for answer in self._connections.send([(None, request)], deadline):
                for row in getattr(answer, "coordinators", ()):
                    _raise_denied(row.error_code)
                    if row.error_code == 0:
                        self._coordinators[row.key] = row.node_id
        return {name: self._coordinators[name] for name in names if name in self._coordinators}

    def _forget(self, ids: Iterable[str]) -> None:
        for name in ids:
            self._coordinators.pop(name, None)


def _raise_denied(code: int) -> None:
    if code in errors.DENIED:
        raise errors.denied(errors.DENIED[code], f"code {code}")


def _probes(prefix: str, partitions: int) -> list[str]:
    """An id for each partition of the coordinators' log, as Kafka assigns them: by Java's hash of the id."""
    probes: dict[int, str] = {}
    number = 0
    while len(probes) < partitions:
        name = f"{prefix}-probe-{number}"
        value = 0
        for unit in memoryview(name.encode("utf-16-le")).cast("H"):
            value = (31 * value + unit) & 0xFFFFFFFF
        probes.setdefault(min(value, 2**32 - value) % 2**31 % partitions, name)  # Java's absolute value
        number += 1
    return list(probes.values())


def _brokers(admin: Any) -> tuple[set[int], bool]:
    """The cluster's brokers, and whether they filter transactions by pattern."""
    manager = admin._manager
    nodes = {broker.node_id for broker in manager.cluster.brokers()}
    return nodes, manager.broker_version_data.api_version(kafka_python().ListTransactions) >= 2


def _living(admin: Any) -> set[int]:
    brokers = admin.describe_cluster()["brokers"]
    return {int(broker["broker_id"]) for broker in brokers if not broker.get("is_fenced")}


def _pauses(deadline: Deadline) -> Iterable[float]:
    """Waits between rounds: short at first, because a broker writes its markers in a few milliseconds."""
    pause = 0.002
    yield pause
    while not deadline.passed():
        pause = min(pause * 1.6, 0.25)
        yield min(pause, deadline.remaining())


@dataclass
class Evidence:
    """Rows of a transaction that its coordinator has forgotten, by how it ended in their partition; an operator judges.

    Batches and markers of a partition's log outlive the coordinator's memory. A kept producer has ended
    many transactions; this one ended after the moment at which it began. Rows removed by retention or compaction leave
    no trace, and brokers' clocks differ, so this evidence is shown and never taken as proof.
    """

    rows: int  # as many as were decided
    committed: int = 0
    aborted: int = 0
    open: int = 0
    gaps: list[str] = field(default_factory=list)  # partitions that could not be read completely

    def __str__(self) -> str:
        counts = f"of {self.rows} rows {self.committed} committed, {self.aborted} aborted, {self.open} without an end"
        return f"{counts}; not seen: {', '.join(self.gaps)}" if self.gaps else counts


def _count(place: Place, read: Callable[[int], tuple[Any, str]], payload: Mapping[str, Any], found: Evidence) -> str:
    """Add the partition's rows; returns why some may be missing, if so."""
    offset, pending = place.start, 0
    while True:
        answer, _ = read(offset)
        if answer is None:
            return f"read up to offset {offset}"
        start = offset
        for batch in cluster.batches(answer):
            offset = max(offset, batch.last + 1)
            if batch.producer[0] != payload["producer_id"]:
                continue
            if not batch.is_marker:
                pending += batch.rows
                continue
            if batch.time >= payload["started"]:
                found.committed += pending if batch.commits else 0
                found.aborted += 0 if batch.commits else pending
            pending = 0
        if offset >= answer.high_watermark or offset == start:
            break
    found.open += pending
    return "" if place.start == 0 else f"begins at offset {place.start}"
