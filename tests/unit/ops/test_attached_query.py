"""A drop-in's query under operations, with a stand-in for Spark's execution: what it shows, what it refuses, how its
end is recorded, and that nothing that fails there reaches the query."""

from __future__ import annotations

import json
import logging
import threading
import urllib.request
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.config import Checkpoints
from penstock.contracts.guarantees import Guarantee
from penstock.errors import SavepointError
from penstock.events import Events
from penstock.ops import attach
from penstock.ops.attach import JobInsight, QueryOfSpark, attached_query
from penstock.ops.process.registry import Entry, Registry, State
from penstock.sources.kafka import KafkaSource
from tests.support.memory_sink import MemorySink

READ = {"kafka.bootstrap.servers": "there:9092", "Subscribe": "orders", "startingOffsets": "latest"}


class Leaves(list[Any]):
    """A sequence of Scala's."""

    def size(self) -> int:
        return len(self)

    def apply(self, index: int) -> Any:
        return self[index]


def leaf(options: dict[str, str] | None, streaming: bool = True) -> Any:
    kept = SimpleNamespace(asCaseSensitiveMap=lambda: options)
    relation = SimpleNamespace(options=lambda: kept)
    return SimpleNamespace(isStreaming=lambda: streaming, relation=lambda: relation if options is not None else None)


class Execution:
    def __init__(self, *leaves: Any, error: str | None = None) -> None:
        self._leaves, self._error, self.stopped = Leaves(leaves), error, threading.Event()

    def resolvedCheckpointRoot(self) -> str:  # noqa: N802
        return "file:/checkpoints/alerts"

    def runId(self) -> str:  # noqa: N802
        return "a-run"

    def logicalPlan(self) -> Any:  # noqa: N802
        return SimpleNamespace(collectLeaves=lambda: self._leaves)

    def exception(self) -> Any:
        failed = SimpleNamespace(getMessage=lambda: self._error)
        return SimpleNamespace(isDefined=lambda: self._error is not None, get=lambda: failed)

    def stop(self) -> None:
        self.stopped.set()


def described(execution: Execution) -> tuple[Any, ...]:
    coordinator = SimpleNamespace(
        query="alerts", watermark=SimpleNamespace(each={}), barrier=None, completed=3, generation=2
    )
    session = SimpleNamespace(sparkContext=SimpleNamespace(uiWebUrl=None))
    return "shop", coordinator, MemorySink(), Checkpoints(), execution, session


def entry() -> Entry:
    return next(one for one in Registry().entries() if one.name == "shop")


@pytest.fixture(autouse=True)
def own_registry(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path))


def test_sources_are_known_by_their_options() -> None:
    query = QueryOfSpark(
        *described(Execution(leaf({"path": "/in"}), leaf(READ), leaf({}, streaming=False), leaf(None)))
    )
    assert query.plan.positions == [None, "alerts-1", None]
    source = query.plan.sources["alerts-1"]
    assert isinstance(source, KafkaSource)
    assert (source.topics, source.servers) == (("orders",), "there:9092")
    assert query.chains["alerts"].guarantee is Guarantee.AT_LEAST_ONCE, "read_uncommitted, as Spark reads"
    committed = {**READ, "kafka.isolation.level": "read_committed"}
    query = QueryOfSpark(*described(Execution(leaf(committed))))
    assert query.plan.positions == ["alerts"]
    assert query.chains["alerts"].guarantee is Guarantee.EXACTLY_ONCE


@pytest.mark.parametrize("options", [{}, {"subscribe": "a"}, {**READ, "subscribePattern": "b"}, {"assign": "{}"}])
def test_what_is_no_topic_of_kafkas(options: dict[str, str]) -> None:
    assert KafkaSource.behind(options) is None


def test_lag_tools_see_complete_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(KafkaSource, "publish", lambda self, *what: seen.append(what))
    made = described(Execution(leaf(READ)))
    query = QueryOfSpark(*made)
    query.publish({"event": "completed"})
    assert not seen, "nothing is complete"
    made[1].barrier = SimpleNamespace(offsets=[{"orders": {"0": 7}}])
    query.publish({"event": "opened"})
    query.publish({"event": "completed"})
    assert seen == [("shop", "alerts", {"orders": {"0": 7}})]


def asked(path: str) -> str:
    """What the query's own server answers."""
    request = urllib.request.Request(f"http://{entry().address}{path}")
    request.add_header("Authorization", f"Bearer {entry().token}")
    with urllib.request.urlopen(request, timeout=30) as answer:
        return answer.read().decode()


def test_it_is_served_while_it_runs() -> None:
    with attached_query(Events(), *described(Execution(leaf(READ)))):
        state, run = entry().state, json.loads(asked(f"/penstock/v1/runs/{entry().id}"))
        metrics, page = asked("/metrics"), asked("/")
    assert state is State.RUNNING
    [query] = run["queries"]
    assert query["uid"] == "alerts"
    assert query["sources"][0]["describe"] == "Kafka orders at there:9092"
    assert run["weakest"]["uid"] == "alerts"
    assert 'penstock_job_state{job_name="shop",state="RUNNING"} 1.0' in metrics
    assert "<!doctype html>" in page.lower()
    assert entry().state is State.FINISHED, entry().error


def test_it_is_commanded() -> None:
    execution = Execution()
    query = QueryOfSpark(*described(execution))
    for refused in (query.savepoint, query.stop_with_savepoint, query.checkpoint):
        with pytest.raises(SavepointError, match="no savepoints"):
            refused("somewhere", kind="native")
    assert not execution.stopped.is_set()
    query.cancel()
    assert execution.stopped.wait(30)
    assert query.status()["queries"]["alerts"]["epoch"] == 3
    assert JobInsight(query).plan()["folder"] == "file:/checkpoints/alerts"


def test_how_it_failed_is_recorded() -> None:
    with attached_query(Events(), *described(Execution(error="the sink is away"))):
        pass
    assert entry().state is State.FAILED
    assert "the sink is away" in str(entry().error)


def test_no_failure_reaches_the_query(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def fail(*_: Any) -> None:
        raise OSError("no registry")

    monkeypatch.setattr(attach, "serving", fail)
    ran = []
    with caplog.at_level(logging.WARNING, "penstock"), attached_query(Events(), *described(Execution())):
        ran.append(True)
    assert ran
    assert "without its page and metrics: no registry" in caplog.text
    with attached_query(Events(), "not", "enough"):
        ran.append(True)
    assert len(ran) == 2
