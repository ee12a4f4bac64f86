"""A driver with two linked queries dies by SIGKILL; its successor goes on, and every global checkpoint is a cut."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from penstock import failpoints
from tests.support.jobs import chain
from tests.support.jobs.chain import Chain, assert_consistent, records
from tests.support.kafka import Input, Tail, assert_copied, assert_counted, assert_nothing_open, counted, read_committed
from tests.support.processes import JobProcess
from tests.support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.servers.broker import Broker

SCRIPT = Path(chain.__file__)


@pytest.fixture
def config(broker: Broker, topic: Callable[..., str], tmp_path: Path) -> Chain:
    conf = {
        "spark.master": "local[2]",
        "spark.driver.memory": "512m",
        "spark.sql.shuffle.partitions": "2",
    }
    orders, enriched, totals = (topic(2) for _ in range(3))
    storage = str(tmp_path / "checkpoints")
    name = f"chain-{uuid4().hex[:8]}"
    return Chain(name, broker.servers, orders, enriched, totals, storage, rows_per_epoch=50, conf=conf)


def start(config: Chain, folder: Path, points: str = "") -> JobProcess:
    return JobProcess(
        SCRIPT, [str(config.write(folder / "config.json"))], folder, environment={failpoints.VARIABLE: points}
    )


@pytest.mark.long
def test_driver_killed_between_two_linked_queries(config: Chain, tmp_path: Path) -> None:
    """It dies when an epoch, by then most likely of the downstream query, is decided and not committed. In `make test`
    the same job crashes inside a process (`test_linked_queries.py`), and a driver is killed at every point
    (`test_several_sinks.py`)."""
    source = Input(config.servers, config.orders)
    source.feed(300)
    with start(config, tmp_path, "epoch.decided=crash@6") as killed:
        assert killed.wait() == -signal.SIGKILL, killed.tail()
    source.feed(300)
    with start(config, tmp_path) as run, Tail(config.servers, config.totals) as tail:
        until(lambda: counted(tail, source), lambda: f"all totals\n{run.tail()}")
        run.terminate()
        assert run.wait() == 0, run.tail()
    assert_nothing_open(config.servers, config.name)
    assert_copied(source, config.servers, config.enriched)
    assert_counted(source, config.servers, config.totals)
    assert assert_consistent(config, read_committed(config.servers, config.enriched)) >= 1
    assert {one["generation"] for one in records(config)[-1]["queries"].values()} == {2}
