"""The driver's view of Kafka transactions: describe, end, list and fence them by name, from any process.

Kafka keeps a transaction at the broker that coordinates its id, not at the client that opened it. So whoever knows id,
producer id and epoch may end it.

Every method works until its deadline, finds coordinators again when they move, and reconnects. None raises for what a
single transaction answers; `SystemUnavailable` and `AccessDenied` are raised where nothing can be asked at all.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.errors import SystemUnavailable
from penstock.kafka import errors
from penstock.kafka.connections import REQUEST_SECONDS, Connections, NotSent, kafka_python

if TYPE_CHECKING:
    from penstock.checkpoint.decision import Committable
    from penstock.deadline import Deadline

_MOST_CACHED = 20_000
_MOVED = (errors.COORDINATOR_LOADING, errors.COORDINATOR_NOT_AVAILABLE, errors.NOT_COORDINATOR)
#: No answer came; not a code of Kafka's.
SILENT = -1000


@dataclass(frozen=True, slots=True)
class Described:
    """What the coordinator says of one transactional id. `state` is Kafka's own word, or `NotFound`. Times are in
    milliseconds; `partitions` (`topic-number`) are those the transaction has written to."""

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
    """The last answer to an attempt to end a transaction.

    `sure` is False if some request got no answer: it may still be on its way to the broker, and could meet a later
    transaction of the same producer. Such a producer must not be used again.
    """

    code: int
    sure: bool

    @property
    def done(self) -> bool:
        return self.code == 0


class Unsure:
    """Transactional ids with a request that was never answered, known to everything in this process.

    Such a request may yet reach the broker, and would end whatever its producer has open then. So nobody may tell a
    writer to go on with one of these: not the committer that sent the request, nor another that found the transaction
    ended later (the drainer has one of its own), nor one that was opened since. Another process need not know: its
    generation is another, and a writer never uses an earlier generation's producer.

    Grows by one id for each lost answer, and never shrinks: an id is some fifty bytes, a lost answer is rare.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ids: dict[str, None] = {}  # in the order they came

    def add(self, ids: Iterable[str]) -> None:
        with self._lock:
            self._ids.update(dict.fromkeys(ids))

    def __contains__(self, name: str) -> bool:
        return name in self._ids

    def newest(self, prefix: str, most: int) -> list[str]:
        """Those whose name begins so, the last `most` of them."""
        with self._lock:
            return [name for name in self._ids if name.startswith(prefix)][-most:]


#: This process's.
UNSURE = Unsure()


class TransactionClient:
    """One cluster, seen from the driver. Safe to use from several threads."""

    def __init__(self, connections: Connections, *, transaction_timeout: float) -> None:
        self._connections = connections
        self._timeout_ms = int(transaction_timeout * 1000)
        self._coordinators: dict[str, int] = {}

    def describe(self, ids: Iterable[str], deadline: Deadline) -> Mapping[str, Described]:
        """What the brokers say of each id; one that could not be asked in time is absent."""
        waiting = list(dict.fromkeys(ids))
        found: dict[str, Described] = {}
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
                        found[state.transactional_id] = Described(
                            state.transaction_state,
                            state.producer_id,
                            state.producer_epoch,
                            state.transaction_start_time_ms,
                            state.transaction_timeout_ms,
                            tuple(f"{topic.topic}-{number}" for topic in state.topics for number in topic.partitions),
                        )
                    elif state.error_code == errors.TRANSACTIONAL_ID_NOT_FOUND:
                        found[state.transactional_id] = Described("NotFound")
                    else:
                        _raise_denied(state.error_code)
            waiting = [name for name in waiting if name not in found]
            self._forget(waiting)
            if not waiting:
                break
            time.sleep(pause)
        return found

    def end(self, endings: Sequence[Ending], commit: bool, deadline: Deadline) -> Mapping[str, Ended]:
        """Commit or abort all, side by side. Waits for coordinators to be found and CONCURRENT_TRANSACTIONS to pass;
        any other answer, or none, is the caller's to judge: what is true at another coordinator must be seen first."""
        waiting = {ending.transactional_id: ending for ending in endings}
        answers: dict[str, Ended] = {name: Ended(SILENT, True) for name in waiting}
        for pause in _pauses(deadline):
            nodes = self._find(waiting, deadline)
            names = list(nodes)
            requests = [
                (
                    nodes[name],
                    # Version 3 leaves the epoch as it is, so that the writer's producer can go on with it.
                    kafka_python().EndTxn(
                        transactional_id=name,
                        producer_id=waiting[name].producer_id,
                        producer_epoch=waiting[name].producer_epoch,
                        committed=commit,
                        max_version=3,
                    ),
                )
                for name in names
            ]
            for name, answer in zip(names, self._connections.send(requests, deadline), strict=True):
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
        """Transactional ids that begin with `prefix` and have a transaction open. All brokers are asked; where one does
        not answer and the cluster has given it up meanwhile, all the others once more, because they have its
        transactions now."""
        pending: set[int] | None = None
        asked: set[int] = set()
        pattern: dict[str, str] = {}
        found: set[str] = set()
        for pause in _pauses(deadline):
            if pending is None:
                try:
                    pending, patterns = self._connections.ask(_brokers, deadline)
                except SystemUnavailable:
                    time.sleep(pause)
                    continue
                # Brokers before 4.1 know no pattern and list all; the filter below is for them.
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
                    found.update(name for name in ids if name.startswith(prefix))
            if not pending:
                return sorted(found)
            time.sleep(pause)
            living = self._living(deadline)
            if living and living != asked:
                pending, asked = set(living), living
        raise errors.unreachable(self._connections.servers, "open transactions could not be listed", REQUEST_SECONDS)

    def fence(self, ids: Collection[str], deadline: Deadline) -> Collection[str]:
        """Abort the open transactions of `ids` and bump their epochs, so that a writer that still lives can do nothing
        more. Returns those not fenced by the deadline.

        Asks for the abort and then only looks: initialising again after the abort would wipe the state that proves it.
        """
        waiting = set(ids)
        for pause in _pauses(deadline):
            states = self.describe(waiting, deadline)
            waiting -= {name for name, described in states.items() if _settled(described)}
            if not waiting:
                break
            nodes = self._find([name for name in waiting if name in states and states[name].open], deadline)
            requests = [
                (
                    node,
                    kafka_python().InitProducerId(
                        transactional_id=name, transaction_timeout_ms=self._timeout_ms, max_version=4
                    ),
                )
                for name, node in nodes.items()
            ]
            for answer in self._connections.send(requests, deadline):
                _raise_denied(getattr(answer, "error_code", SILENT))
            time.sleep(pause)
        return waiting

    def evidence(self, committable: Committable, deadline: Deadline) -> str:
        """What stands in the topics of a transaction, for a person."""
        from penstock.sinks.kafka.evidence import collect_evidence

        return str(collect_evidence(self._connections, committable, deadline))

    def close(self) -> None:
        self._connections.close()

    def _living(self, deadline: Deadline) -> set[int] | None:
        """The brokers that the cluster counts on now, asked anew; None where nobody says."""
        try:
            return self._connections.ask(_living, deadline)
        except (SystemUnavailable, kafka_python().errors.KafkaError):
            return None

    def _find(self, ids: Iterable[str], deadline: Deadline) -> dict[str, int]:
        """The coordinating broker of each id that has one just now."""
        wanted = list(ids)
        unknown = [name for name in wanted if name not in self._coordinators]
        if unknown:
            if len(self._coordinators) > _MOST_CACHED:
                self._coordinators.clear()
                unknown = wanted
            request = kafka_python().FindCoordinator(key_type=1, coordinator_keys=unknown, min_version=4)
            for answer in self._connections.send([(None, request)], deadline):
                for row in getattr(answer, "coordinators", ()):
                    _raise_denied(row.error_code)
                    if row.error_code == 0:
                        self._coordinators[row.key] = row.node_id
        return {name: self._coordinators[name] for name in wanted if name in self._coordinators}

    def _forget(self, ids: Iterable[str]) -> None:
        for name in ids:
            self._coordinators.pop(name, None)


def _raise_denied(code: int) -> None:
    if code in errors.DENIED:
        raise errors.denied(errors.DENIED[code], f"code {code}")


def _brokers(admin: Any) -> tuple[set[int], bool]:
    """The cluster's brokers, and whether they filter transactions by pattern."""
    manager = admin._manager
    nodes = {broker.node_id for broker in manager.cluster.brokers()}
    return nodes, manager.broker_version_data.api_version(kafka_python().ListTransactions) >= 2


def _living(admin: Any) -> set[int]:
    brokers = admin.describe_cluster()["brokers"]
    return {int(broker["broker_id"]) for broker in brokers if not broker.get("is_fenced")}


def _settled(described: Described) -> bool:
    return described.state not in ("Ongoing", "PrepareAbort", "PrepareEpochFence")


def _pauses(deadline: Deadline) -> Iterable[float]:
    """Waits between rounds: short at first, because a broker writes its markers in a few milliseconds."""
    pause = 0.002
    yield pause
    while not deadline.passed():
        pause = min(pause * 1.6, 0.25)
        yield min(pause, deadline.remaining())
