"""State backends: which files they leave, that state is kept over a restart, and that the other one is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.dataset as ds
import pytest

from penstock import Checkpoints, DataGenSource, FileSink, Job, RestartStrategy, StateBackend
from penstock.config.levels import OPTIONS_VARIABLE
from penstock.config.state import BOUNDED, LIMIT, PROVIDER
from penstock.errors import ConfigurationError
from penstock.spark.settings import remember_defaults

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")

PARTITIONS = "spark.sql.shuffle.partitions"
GROUPS = 5


class Sums:
    """A job that counts rows by group, as often as it is run; each run has more input than the one before."""

    def __init__(self, session: SparkSession, folder: Path) -> None:
        self._session, self._folder = session, folder
        self.checkpoint = folder / "checkpoints" / "sums" / "out" / "spark"

    def run(self, rows: int, backend: StateBackend | None = None) -> None:
        job = Job(
            "sums",
            checkpoints=Checkpoints(storage=str(self._folder / "checkpoints")),
            state_backend=backend,
            restart=RestartStrategy.none(),
            spark=self._session,
        )
        source = DataGenSource(rows, partitions=1, columns={"part": f"id % {GROUPS}"}, max_rows_per_epoch=50)
        frame = job.read(source, uid="in").groupBy("part").count()
        job.write(frame, FileSink(str(self._folder / "out")), uid="out", output_mode="update")
        job.run()

    def totals(self) -> dict[int, int]:
        """The last count of each group; counts only grow."""
        rows = ds.dataset(self._folder / "out", format="parquet").to_table().to_pylist()
        return {part: max(row["count"] for row in rows if row["part"] == part) for part in range(GROUPS)}

    def kinds(self) -> set[str]:
        """What the state stores have written."""
        return {path.suffix for path in self.checkpoint.glob("state/0/*/*") if path.suffix != ".crc"}


@pytest.fixture
def sums(session: SparkSession, tmp_path: Path) -> Iterator[Sums]:
    before = dict(session.conf.getAll)
    yield Sums(session, tmp_path)
    Job("nothing", spark=session).spark  # noqa: B018 - asks for nothing, so what the tests asked for is set back
    after = dict(session.conf.getAll)
    assert {key: after.get(key) for key in (PROVIDER, BOUNDED, LIMIT, PARTITIONS)} == {
        key: before.get(key) for key in (PROVIDER, BOUNDED, LIMIT, PARTITIONS)
    }


@pytest.mark.core("backends")
@pytest.mark.parametrize(
    ("backend", "kind"),
    [
        (StateBackend.hashmap(), ".delta"),
        (StateBackend.rocksdb(memory_limit="64mb"), ".zip"),
        (StateBackend.rocksdb(changelog=True), ".changelog"),
    ],
    ids=["hashmap", "rocksdb", "rocksdb-changelog"],
)
def test_each_backend_keeps_state(sums: Sums, session: SparkSession, backend: StateBackend, kind: str) -> None:
    sums.run(100, backend)
    told = session.conf.getAll
    assert (told.get(LIMIT), told.get(BOUNDED)) == (
        "64" if backend.memory_limit else None,
        "true" if backend.kind == "rocksdb" else None,
    )
    sums.run(200, backend)
    assert kind in sums.kinds()
    assert sums.totals() == dict.fromkeys(range(GROUPS), 200 // GROUPS)
    state = session.read.format("statestore").load(str(sums.checkpoint)).select("key.part", "value.count").collect()
    assert {row["part"]: row["count"] for row in state} == sums.totals(), "what Spark's own reader shows"


def test_the_other_backend_is_refused(sums: Sums, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the query starts: no epoch is cut, and with the former backend it goes on."""
    sums.run(50)
    offsets = sorted((sums.checkpoint / "offsets").iterdir())
    monkeypatch.setenv(OPTIONS_VARIABLE, json.dumps({"state.backend.type": "rocksdb"}))
    with pytest.raises(
        ConfigurationError, match="was written with the state backend hashmap, the job now asks for rocks"
    ):
        sums.run(100)
    assert sorted((sums.checkpoint / "offsets").iterdir()) == offsets
    monkeypatch.delenv(OPTIONS_VARIABLE)
    sums.run(100)
    assert sums.totals() == dict.fromkeys(range(GROUPS), 100 // GROUPS)


def test_parallelism_is_the_number_of_state_partitions(
    sums: Sums, session: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As in a session just made by us; in this one other tests may have said what they want.
    remember_defaults(session, {"spark.sql.shuffle.partitions": session.conf.get("spark.sql.shuffle.partitions") or ""})
    monkeypatch.setenv(OPTIONS_VARIABLE, json.dumps({"parallelism.default": "3"}))
    sums.run(50)
    assert len([one for one in (sums.checkpoint / "state" / "0").iterdir() if one.name.isdigit()]) == 3


def test_what_the_session_was_told_is_not_changed(sums: Sums, session: SparkSession) -> None:
    session.conf.set(LIMIT, "32")
    try:
        with pytest.raises(ConfigurationError) as refused:
            sums.run(50, StateBackend.rocksdb(memory_limit="64mb"))
        assert "StateBackend.rocksdb(memory_limit=64mb) in the code" in refused.value.happened
        assert f"{LIMIT}=32 from the Spark session" in refused.value.happened
        assert session.conf.get(LIMIT) == "32"
    finally:
        session.conf.unset(LIMIT)
