"""An old driver stands still in the middle of an epoch, a new one takes over, the old one wakes up: it must leave."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from tests.support.fault_case import Case, running

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: From before its rows are flushed to after it last looked whether it is the newest. The
#: simulation pauses drivers at every point; here one that has committed in part is enough for every day.
POINTS = [
    pytest.param("task.written", marks=pytest.mark.long),
    pytest.param("epoch.sealed", marks=pytest.mark.long),
    pytest.param("epoch.decided", marks=pytest.mark.long),
    "commit.first",
]


@pytest.mark.parametrize("point", POINTS)
def test_zombie_leaves(case: Callable[..., Case], session: SparkSession, point: str) -> None:
    world = case()
    world.source.feed(100)
    old = world.start({point: "hang"})
    world.wait_acted(point, old)
    old.stop_all()
    with running(world.build(session)) as new:
        world.source.feed(100)
        world.wait_visible(new)
        world.release.touch()
        old.continue_all()
        assert old.wait() not in (0, None), old.tail()
        said = old.log.read_text()
        assert "Superseded: Generation 1 of query 'copy' has been superseded by generation 2." in said, old.tail(60)
        # The new one has not noticed: same generation, no failure, and it goes on.
        world.source.feed(100)
        world.wait_visible(new)
        new.stop()
    assert [event["generation"] for event in new.events if event["event"] == "recovered"] == [2]
    assert not [event for event in new.events if event["event"] == "failed"]
    world.assert_exact()
