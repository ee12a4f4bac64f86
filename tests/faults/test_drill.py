"""`penstock drill` over small jobs: of those with a planted mistake each is named, of sound ones none is accused. Real
faults, each drawn by a seed; what is asserted depends on none of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from penstock.testing.drill import drill, fixture
from tests.support.servers.broker import Broker

ROOT = Path(__file__).parents[2]
JOBS = ROOT / "tests" / "support" / "jobs" / "drilled"
SECONDS = 180.0
Facts = Mapping[str, Any]

#: For each planted mistake, the kind of the finding, and words that name it.
PLANTED = {
    "append_in_udf": ("side effect", "function note", "sent.txt"),
    "post_in_udf": ("side effect", "function alert", "POST"),
    "append_in_epoch": ("side effect", "function count", "counts.txt"),
    "clock_in_udf": ("other rows", "sink out", "in at "),
    "clock_in_plan": ("not repeatable", "query out", "current_timestamp()"),
    "chance_in_plan": ("not repeatable", "query out", "uuid()"),
    "memory_of_worker": ("other rows", "sink out", "in number "),
    "source_without_memory": ("other rows", "sink out", "source sensor"),
    "skips_lost_rows": ("guarantee", "query out", "failOnDataLoss=false"),
    "tolerates_loss": ("guarantee", "source numbers", "failOnDataLoss=false"),
    "cannot_replay": ("guarantee", "source lines", "at-most-once"),
    "ignores_missing_files": ("guarantee", "source rows", "ignoreMissingFiles"),
}
SOUND = sorted(path.stem for path in (JOBS / "sound").glob("*.py"))


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quick_jvm: None) -> Path:
    monkeypatch.setenv("PENSTOCK_TEST_DRILLED", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    (tmp_path / "input").mkdir()
    for number in range(12):
        rows = "".join(f'{{"id": {number * 100 + row}}}\n' for row in range(100))
        (tmp_path / "input" / f"{number}.json").write_text(rows)
    return tmp_path


def run(script: Path, place: Path) -> Facts:
    return drill(script, "--seed", "1", seconds=SECONDS, html=place / "drill.html")


def assert_named(drilled: Facts, name: str) -> None:
    kind, where, word = PLANTED[name]
    named = [each for each in drilled["mistakes"] if (each["kind"], each["where"]) == (kind, where)]
    assert any(word in each["why"] for each in named), drilled["mistakes"]


def test_every_job_is_listed() -> None:
    assert sorted(path.stem for path in (JOBS / "planted").glob("*.py")) == sorted(PLANTED)
    assert len(PLANTED) == len(SOUND) == 12


drilling = fixture(SECONDS)


def test_a_mistake_in_the_plan_is_named_before_anything_runs(place: Path, drilling: Callable[..., Facts]) -> None:
    drilled = drilling(JOBS / "planted" / "skips_lost_rows.py")
    assert "skips_lost_rows" in (place / "drill.html").read_text()
    assert_named(drilled, "skips_lost_rows")
    assert drilled["status"] == 1
    assert not drilled["drilled"]["events"]


@pytest.mark.long
@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", sorted(PLANTED))
def test_a_planted_mistake_is_named(name: str, place: Path) -> None:
    assert_named(run(JOBS / "planted" / f"{name}.py", place), name)
    assert name in (place / "drill.html").read_text()


@pytest.mark.long
@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", [name for name in SOUND if name != "topic_to_topic"])
def test_a_sound_job_is_not_accused(name: str, place: Path) -> None:
    drilled = run(JOBS / "sound" / f"{name}.py", place)
    assert drilled["mistakes"] == []
    assert drilled["drilled"]["faults"]
    assert drilled["rows"]


@pytest.mark.long
@pytest.mark.timeout(400)
def test_a_sound_job_without_end_is_not_accused(place: Path, broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its calm run is one epoch over what the drilled run has read."""
    from penstock.dev.kafka import create_topics, produce

    topic = f"drilled-{place.name}"
    monkeypatch.setenv("PENSTOCK_TEST_SERVERS", broker.servers)
    monkeypatch.setenv("PENSTOCK_TEST_TOPIC", topic)
    create_topics(broker.servers, [topic], 2)
    for _ in produce(broker.servers, topic, ((f"key {row % 20}", f"row {row}") for row in range(40_000)), 0):
        pass
    script = JOBS / "sound" / "topic_to_topic.py"
    drilled = drill(script, "--seed", "1", "--ordered", seconds=100, html=place / "drill.html")
    assert drilled["mistakes"] == []
    assert drilled["not_judged"] == []
    assert drilled["rows"]["out"]
