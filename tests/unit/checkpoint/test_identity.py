"""Ledger, checkpoint and program that do not belong together are told apart before anything is touched."""

from __future__ import annotations

import hashlib
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.checkpoint import open as opening
from penstock.checkpoint.decision import Decision, DecisionId
from penstock.checkpoint.ledger import Ledger, Manifest
from penstock.checkpoint.open import check_sources, history_of, ledger_at, mismatch, overwritten, spark_log_at
from penstock.checkpoint.spark_log import STATE_FORMAT, SparkLog
from penstock.errors import LedgerCorrupt, StorageNotAtomic, UidChanged
from tests.support.memory_storage import MemoryStorage

BARRIER = b"v1\n{}\n7"


def checkpoint(location: str = "memory:job/copy/spark", *, started: bool = True) -> MemoryStorage:
    """Spark's folder under a name of its own."""
    storage = MemoryStorage(location)
    if started:
        storage.create("metadata", b'{"id":"q"}')
    storage.create("offsets/5", BARRIER)
    return storage


def run_before(history: str = "spark") -> Ledger:
    ledger = Ledger(MemoryStorage())
    ledger.register({"sources": ["a", "b"], "history": history})
    ledger.register({"sources": ["orders", "rates"], "history": history})
    return ledger


@pytest.mark.parametrize("location", ["file:/x/copy/spark.2", "file:/x/copy/spark.2/", "spark.2"])
def test_a_history_is_the_name_of_its_folder(location: str) -> None:
    assert history_of(SparkLog(checkpoint(location))) == "spark.2"


@pytest.mark.parametrize("now", [("orders",), ("rates", "orders"), ("orders", "rates", "more"), ("a", "b"), ()])
def test_other_sources_than_those_of_the_last_run_are_refused(now: tuple[str, ...]) -> None:
    with pytest.raises(UidChanged) as refused:
        check_sources(run_before(), SparkLog(checkpoint()), "copy", now)
    assert "'copy'" in refused.value.happened
    assert f"{['orders', 'rates']}, the program now reads {list(now)}" in refused.value.happened


def test_the_same_sources_are_fine_and_so_is_a_first_run() -> None:
    check_sources(run_before(), SparkLog(checkpoint()), "copy", ("orders", "rates"))
    check_sources(Ledger(MemoryStorage()), SparkLog(checkpoint()), "copy", ("whatever",))


def test_before_spark_has_begun_sources_may_still_change() -> None:
    check_sources(run_before(), SparkLog(checkpoint(started=False)), "copy", ("others",))


@pytest.mark.parametrize("before", ["spark.1", "rocks", "zoo"])
def test_a_run_on_another_history_says_nothing(before: str) -> None:
    """A restore has put the positions into the program's order."""
    check_sources(run_before(history=before), SparkLog(checkpoint()), "copy", ("others",))
    check_sources(run_before(), SparkLog(checkpoint(f"memory:job/copy/{before}")), "copy", ("others",))
    with pytest.raises(UidChanged):
        check_sources(
            run_before(history=before), SparkLog(checkpoint(f"memory:job/copy/{before}")), "copy", ("others",)
        )


def decided(barrier: str | None, offsets: str | None = None, **notes: str) -> Manifest:
    ledger = Ledger(MemoryStorage())
    named = {f"sources/{index}/9": text for index, text in notes.items()}
    ledger.decide(Decision(DecisionId(5, 1), ()), query="q", barrier=barrier, offsets=offsets, notes=named)
    return ledger.manifests(5)[0]


DIGEST = hashlib.sha256(BARRIER).hexdigest()
OTHER = "v1\n{}\n8"


@pytest.mark.parametrize("barrier", [DIGEST, None])
def test_the_file_that_was_decided_on_is_fine(barrier: str | None) -> None:
    assert overwritten(SparkLog(checkpoint()), 5, decided(barrier)) == {}
    assert overwritten(SparkLog(checkpoint()), 5, None) == {}, "an epoch that was not decided"


def test_another_file_than_was_decided_on_is_to_be_restored_from_the_decision() -> None:
    manifest = decided(hashlib.sha256(OTHER.encode()).hexdigest(), OTHER)
    assert overwritten(SparkLog(checkpoint()), 5, manifest) == {"offsets/5": OTHER}


@pytest.mark.parametrize("offsets", [None, OTHER])
@pytest.mark.parametrize("digest", ["0" * 64, "f" * 64])
def test_where_the_decision_holds_no_copy_of_it_the_job_stops(digest: str, offsets: str | None) -> None:
    log = SparkLog(checkpoint())
    with pytest.raises(LedgerCorrupt) as refused:
        overwritten(log, 5, decided(digest, offsets))
    assert refused.value.happened.startswith(f"{log.location}/offsets/5 is not the file epoch 5 was decided on")


@pytest.mark.parametrize("data", [None, b""])
def test_a_barrier_that_is_lost_or_torn_is_written_again_not_compared(data: bytes | None) -> None:
    storage = checkpoint()
    storage.delete("offsets/5")
    if data is not None:
        storage.create("offsets/5", data)
    assert overwritten(SparkLog(storage), 5, decided("0" * 64)) == {}


@pytest.mark.parametrize("lost", [False, True])
def test_what_the_positions_of_a_file_source_stand_for_is_compared_as_well(lost: bool) -> None:
    """Both drivers call their cut 9; which files that are, only the source's note says. Also with a lost barrier."""
    storage = checkpoint()
    if lost:
        storage.delete("offsets/5")
    for index in ("a", "b"):
        storage.create(f"sources/{index}/9", b"v1\nthe same")
    manifest = decided(DIGEST, BARRIER.decode(), a="v1\nthe same", b="v1\nanother", c="v1\nlost")
    assert overwritten(SparkLog(storage), 5, manifest) == {"sources/b/9": "v1\nanother"}


@pytest.mark.parametrize(("length", "kept"), [(1 << 16, True), ((1 << 16) + 1, False)])
def test_a_note_that_is_too_long_for_the_ledger_is_told_apart_and_not_restored(length: int, kept: bool) -> None:
    storage, text = checkpoint(), "x" * length
    storage.create("sources/b/9", text.encode())
    manifest = decided(DIGEST, BARRIER.decode(), b=text)
    assert overwritten(SparkLog(storage), 5, manifest) == {}
    storage.delete("sources/b/9")
    storage.create("sources/b/9", b"v1\nof another driver")
    if kept:
        assert overwritten(SparkLog(storage), 5, manifest) == {"sources/b/9": text}
        return
    with pytest.raises(LedgerCorrupt, match="sources/b/9 is not the file epoch 5 was decided on"):
        overwritten(SparkLog(storage), 5, manifest)


def test_the_error_for_two_that_are_not_each_others_names_both() -> None:
    assert "query 'copy', but the log is elsewhere:" in mismatch("copy", "the log is elsewhere").happened


# Opening them


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Any]]:
    """What was asked for, location and session; each gets a storage in memory."""
    asked: list[tuple[str, Any]] = []

    def storage_at(location: str, spark: Any) -> MemoryStorage:
        asked.append((location, spark))
        return Overwriting(location) if "overwriting" in location else MemoryStorage(location)

    monkeypatch.setattr(opening, "storage_at", storage_at)
    return asked


class Overwriting(MemoryStorage):
    """It promises what it does not keep."""

    def create(self, name: str, data: bytes) -> None:
        self._files[name] = data


def session(**settings: str) -> Any:
    return SimpleNamespace(conf=settings)


def test_a_ledger_on_remote_storage_is_opened_through_the_session_and_keeps_as_much_as_is_asked(
    opened: list[tuple[str, Any]],
) -> None:
    spark = session()
    ledger = ledger_at("memory:job/copy/ledger", spark, retained=7, trusted=["memory"])
    assert opened == [("memory:job/copy/ledger", spark)]
    for epoch in (42, 43):
        ledger.decide(Decision(DecisionId(epoch, 1), ()), query="q", barrier=None)
    ledger.prune(50)
    assert [one.decision.id.epoch for one in ledger.all_manifests()] == [43]


@pytest.mark.usefixtures("opened")
def test_a_ledger_on_storage_that_is_not_trusted_or_not_atomic_is_refused() -> None:
    with pytest.raises(StorageNotAtomic, match="does not promise"):
        ledger_at("memory:job", None, retained=7)
    with pytest.raises(StorageNotAtomic, match="created twice"):
        ledger_at("memory:overwriting", None, retained=7, trusted=["memory"])


def test_sparks_log_is_opened_through_the_session_with_its_state_format(opened: list[tuple[str, Any]]) -> None:
    for settings, expected in (({}, "1"), ({STATE_FORMAT: "2"}, "2")):
        spark = session(**settings)
        log = spark_log_at("memory:job/copy/spark", spark)
        assert log.state_format == expected
        assert opened.pop() == ("memory:job/copy/spark", spark)
        assert log.location == "memory:job/copy/spark"
    assert spark_log_at("memory:job", None).state_format == "1"


@pytest.mark.usefixtures("opened")
def test_the_format_of_sparks_commits_is_known_unless_the_caller_denies_it() -> None:
    assert spark_log_at("memory:job", None).commit_text(0, 7, None) == 'v1\n{"nextBatchWatermarkMs":7}'
    assert spark_log_at("memory:job", None, known=False).commit_text(0, 7, None) is None


@pytest.mark.usefixtures("opened")
@pytest.mark.parametrize(("more", "torn"), [({}, ["offsets/6"]), ({"positions": 1}, [])])
def test_a_barrier_has_as_many_positions_as_the_oldest_unless_the_plan_has_one_source(
    more: dict[str, Any], torn: list[str]
) -> None:
    log = spark_log_at("memory:job", None, **more)
    log.storage.create("offsets/5", b"v1\n{}\n7\n7")
    log.storage.create("offsets/6", b"v1\n{}\n8")
    assert log.torn() == torn
