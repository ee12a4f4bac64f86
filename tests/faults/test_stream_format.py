"""`format("penstock")`: drivers and its Python workers die at every point, and each row is visible once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock.failpoints import POINTS
from tests.support import fault_case
from tests.support.fault_case import Case
from tests.support.jobs import stream_format

if TYPE_CHECKING:
    from tests.support.servers.broker import Broker

#: Not passed: Spark's log is never completed here.
ELSEWHERE = {"recover.finished"}
DRIVER = [name for name, where in POINTS.items() if where == "driver" and name not in ELSEWHERE]
DRIVER = [name for name in DRIVER if not name.startswith(("inflight.", "drain."))]
WORKER = [name for name, where in POINTS.items() if where == "worker" and name != "task.logged"]


@pytest.fixture
def world(broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Case]:
    monkeypatch.setattr(fault_case, "SCRIPT", Path(stream_format.__file__))
    made = Case(broker.servers, tmp_path / "case")
    yield made
    made.close()


def test_rows_go_through(world: Case) -> None:
    run = world.start()
    for _ in range(3):
        world.source.feed(100)
        world.wait_visible(run)
    print(run.tail(100))
    run.kill()
