"""What an earlier version left behind, as it was when its driver was killed, is taken over by this one: a decided epoch
is made visible, the in-flight log is delivered, both kinds of savepoint are restored, and no row is missing or doubled.

What is in the archives, and what made them: `tests/support/stored_checkpoint.py`.
"""

from __future__ import annotations

import json
import tarfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

from penstock.config.levels import OPTIONS_VARIABLE
from tests.support.stored_checkpoint import KEYS, PER_EPOCH, behind, stored

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STORED = sorted((Path(__file__).parents[1] / "data").glob("checkpoint-*.tar.gz"))


@pytest.fixture(params=STORED, ids=lambda path: path.name.removesuffix(".tar.gz"))
def left(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A place where the version's job has never been, with what it left."""
    folder = tmp_path / "moved here"
    with tarfile.open(request.param) as archive:
        archive.extractall(folder, filter="data")
    return folder


def rows(out: Path) -> Iterator[dict[str, Any]]:
    for path in out.glob("part-*"):
        yield from pq.read_table(path).to_pylist()


def assert_every_row_once(out: Path, *, start: int) -> None:
    """Every number from `start` on is there, and none twice."""
    found = Counter(row["id"] for row in rows(out))
    assert found == Counter(range(start, max(found) + 1))


def assert_every_count_once(out: Path, *, start: int) -> None:
    """For each key there is its count at the end of each epoch, from epoch `start` on."""
    found = Counter((row["key"], row["count"]) for row in rows(out))
    per_key = PER_EPOCH // KEYS
    newest = max(count for _, count in found)
    assert found == Counter((key, n) for key in range(KEYS) for n in range((start + 1) * per_key, newest + 1, per_key))


def bodies(folder: Path, pattern: str) -> list[dict[str, Any]]:
    return [json.loads(path.read_text())["body"] for path in sorted(folder.glob(pattern))]


def undone(checkpoint: Path, query: str) -> list[dict[str, Any]]:
    """Decisions of which Spark's log knows nothing."""
    done = {int(path.name) for path in checkpoint.glob(f"{query}/spark*/commits/[0-9]*")}
    return [body for body in bodies(checkpoint, f"{query}/ledger/epochs/*.json") if body["epoch"] > max(done)]


def test_a_stored_checkpoint_goes_on(left: Path, session: SparkSession, running: Any) -> None:
    checkpoint = left / "checkpoints" / "stored"
    [restore] = bodies(checkpoint, "restores/*.json")
    decided = {query: undone(checkpoint, query) for query in ("copies", "counts")}
    files = [(query, one[5]["final"]) for query in decided for body in decided[query] for one in body["committables"]]
    assert files
    assert not [name for query, name in files if (left / "out" / query / name).exists()]
    generations = {query: len(bodies(checkpoint, f"{query}/ledger/generations/*.json")) for query in decided}
    number = bodies(checkpoint, "global/*.json")[-1]["number"]

    with running(stored(left, session)) as run:
        for query, bodies_undone in decided.items():
            recovered = run.wait_for("recovered", query=query)
            assert recovered["generation"] == generations[query] + 1
            if bodies_undone:
                assert (recovered["action"], recovered["epoch"]) == ("finished", bodies_undone[-1]["epoch"] + 1)
            run.wait_for("completed", 2, query=query)
        run.wait(lambda: any(one["number"] > number for one in run.all("global_checkpoint")), "a global checkpoint")

    assert not [name for query, name in files if not (left / "out" / query / name).exists()]
    assert_every_row_once(left / "out" / "copies", start=(restore["epochs"]["copies"] + 1) * PER_EPOCH)
    assert_every_count_once(left / "out" / "counts", start=restore["epochs"]["counts"] + 1)


def test_a_stored_in_flight_log_is_delivered(left: Path, session: SparkSession, running: Any) -> None:
    checkpoint = left / "checkpoints" / "behind"
    waiting = [int(path.stem) for path in sorted(checkpoint.glob("late/inflight/*/*/backlog/*.json"))]
    assert waiting
    with running(behind(left, session)) as run:
        for epoch in waiting:
            run.wait_for("drained", epoch=epoch)
        run.wait_for("drained", len(waiting) + 2)
    assert [one["epoch"] for one in run.all("drained")][: len(waiting)] == waiting
    assert_every_row_once(left / "out" / "behind", start=0)


@pytest.mark.parametrize("kind", ["native", "canonical"])
def test_a_stored_savepoint_of_two_queries_goes_on(
    left: Path, kind: str, session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, running: Any
) -> None:
    savepoint = left / "savepoints" / kind
    saved = json.loads((savepoint / "_metadata").read_text())["body"]["queries"]
    monkeypatch.setenv(OPTIONS_VARIABLE, json.dumps({"execution.state-recovery.path": str(savepoint)}))
    job = stored(tmp_path / "restored", session)
    monkeypatch.delenv(OPTIONS_VARIABLE)
    with running(job) as run:
        for query in saved:
            run.wait_for("completed", 2, query=query)
    out = tmp_path / "restored" / "out"
    assert_every_row_once(out / "copies", start=(saved["copies"]["epoch"] + 1) * PER_EPOCH)
    assert_every_count_once(out / "counts", start=saved["counts"]["epoch"] + 1)
