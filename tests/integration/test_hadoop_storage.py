"""One behaviour for every storage the ledger may lie on; `HadoopStorage` goes through the JVM to `file:`."""

from __future__ import annotations

import os
import threading
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock import Checkpoints, FileSink, Job, RestartStrategy
from penstock.checkpoint import open as opened
from penstock.checkpoint.decision import Claim, Committable, Decision, DecisionId
from penstock.checkpoint.ledger import Ledger
from penstock.checkpoint.open import ledger_at
from penstock.errors import LedgerError, StorageFull, StorageNotAtomic
from penstock.failpoints import InjectedFault, hooked
from penstock.storage.hadoop import HadoopStorage
from penstock.storage.local import LocalStorage, storage_at
from penstock.storage.storage import AlreadyExists, Storage
from tests.support.memory_storage import MemoryStorage
from tests.support.run_job import CrashAt, Numbers, failing, run_all

if TYPE_CHECKING:
    from py4j.java_gateway import JavaObject
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")

BINARY = bytes(range(256)) * 300


@pytest.fixture(params=["local", "memory", "hadoop"])
def storage(request: pytest.FixtureRequest, session: SparkSession, tmp_path: Path) -> Storage:
    made: dict[str, Storage] = {
        "local": LocalStorage(tmp_path / "root"),
        "memory": MemoryStorage(),
        "hadoop": HadoopStorage(session, f"file:{tmp_path}/root"),
    }
    return made[request.param]


@pytest.fixture
def hadoop(session: SparkSession, tmp_path: Path) -> HadoopStorage:
    return HadoopStorage(session, f"file://{tmp_path}/root")


# What every storage does


def test_a_name_is_created_once(storage: Storage) -> None:
    storage.create("folder/name", BINARY)
    with pytest.raises(AlreadyExists):
        storage.create("folder/name", b"second")
    assert storage.read("folder/name") == BINARY
    storage.create("folder/empty", b"")
    assert storage.read("folder/empty") == b""


def test_listing_and_deleting(storage: Storage) -> None:
    assert storage.list("") == []
    storage.create("top/name", b"1")
    assert storage.list("") == ["top"]
    storage.delete("top/name")
    assert storage.list("folder") == []
    assert storage.read("folder/a") is None
    storage.delete("folder/a")
    for name in ("b", "a", "c"):
        storage.create(f"folder/{name}", name.encode())
    assert storage.list("folder") == ["a", "b", "c"]
    storage.delete("folder/b")
    assert storage.list("folder") == ["a", "c"]
    storage.create("folder/b", b"again")
    assert storage.read("folder/b") == b"again"


def test_a_ledger_on_it(storage: Storage) -> None:
    ledger = Ledger(storage)
    if not isinstance(storage, HadoopStorage):  # whose rename on `file:` looks first
        ledger.prove_atomic()
    assert [ledger.register({"sources": []}) for _ in range(3)] == [1, 2, 3]
    decision = Decision(DecisionId(0, 3), (Committable("out", 0, 1, 2**64 - 1, {"path": "Zażółć"}),), None)
    ledger.decide(decision, query="q", barrier="digest")
    ledger.claim(Claim(3, 0, decision.id), "q")
    assert ledger.decisions(0, "q") == (decision,)
    assert ledger.claims("q") == (Claim(3, 0, decision.id),)
    with pytest.raises(LedgerError, match="exists already"):
        ledger.decide(decision, query="q", barrier="digest")
    assert storage.list("probe") == []


@pytest.mark.parametrize("storage", ["local", "memory"], indirect=True)
def test_of_eight_threads_one_wins(storage: Storage) -> None:
    """On a real HDFS: `test_hdfs.py`. Hadoop's own way into a local disk looks first and renames then."""
    for attempt in range(5):
        start = threading.Barrier(8)
        won: list[bytes] = []

        def create(number: int, start: threading.Barrier = start, won: list[bytes] = won, at: int = attempt) -> None:
            start.wait()
            try:
                storage.create(f"race/{at}", str(number).encode())
            except AlreadyExists:
                return
            won.append(str(number).encode())

        threads = [threading.Thread(target=create, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert won == [storage.read(f"race/{attempt}")]


# What is Hadoop's own


def test_half_a_write_is_never_seen(hadoop: HadoopStorage, tmp_path: Path) -> None:
    seen: list[object] = []

    def look() -> None:
        seen.append((hadoop.read("folder/name"), hadoop.list("folder")))
        raise KeyError

    with hooked("ledger.aside", look), pytest.raises(KeyError):
        hadoop.create("folder/name", b"content")
    assert seen == [(None, [])]
    assert os.listdir(tmp_path / "root" / "folder") == []


def test_refusals_have_names_of_ours(hadoop: HadoopStorage, tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "file").write_text("")
    with pytest.raises(LedgerError) as refused:
        hadoop.create("file/inside", b"")
    assert "file/inside" in refused.value.happened
    assert refused.value.safe
    assert refused.value.to_do
    assert not isinstance(refused.value, StorageFull)


def test_which_storage_a_location_gets(session: SparkSession, tmp_path: Path) -> None:
    assert isinstance(storage_at(str(tmp_path), session), LocalStorage)
    assert isinstance(storage_at(f"file://{tmp_path}", session), LocalStorage)
    conf: JavaObject = session._jsc.hadoopConfiguration()
    before = conf.get("fs.defaultFS")
    conf.set("fs.defaultFS", "hdfs://localhost:1")
    try:
        with pytest.raises(LedgerError):
            storage_at(str(tmp_path), session).read("a path without a scheme belongs to the default file system")
    finally:
        conf.set("fs.defaultFS", before)


def test_a_whole_job_on_it(
    session: SparkSession, tmp_path: Path, crash_at: CrashAt, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ledger and Spark's log through the JVM, a crash between decision and commit, and recovery."""
    monkeypatch.setattr(opened, "storage_at", lambda location, spark: HadoopStorage(spark, f"file:{location}"))
    proven: list[str] = []
    monkeypatch.setattr(Ledger, "prove_atomic", lambda ledger: proven.append(ledger.location))
    out = tmp_path / "out"

    def job() -> Job:
        checkpoints = Checkpoints(storage=str(tmp_path / "checkpoints"), trusted_schemes=["file"])
        job = Job("hadoop", checkpoints=checkpoints, spark=session, restart=RestartStrategy.none())
        numbers = job.read(Numbers(300, {"value": "cast(id AS string)"}), uid="in")
        job.write(numbers, FileSink(str(out), format="csv"), uid="out")
        return job

    crash_at("epoch.decided", 2)
    failing(job(), InjectedFault)
    crash_at.no_more()
    events = run_all(job())
    assert [event["action"] for event in events if event["event"] == "recovered"] == ["finished"]
    assert Counter(line for part in out.glob("part-*") for line in part.read_text().split()) == Counter(
        str(number) for number in range(300)
    )
    assert len(proven) == 2
    assert all(location.startswith("file:/") for location in proven)
    where = str(tmp_path / "checkpoints/hadoop/out/ledger")
    assert ledger_at(where, session, retained=2, trusted=["file"]).newest_generation() == 2
    with pytest.raises(StorageNotAtomic, match=r"file:/.* does not promise"):
        ledger_at(where, session, retained=2)
