"""Ledger, checkpoint and program that do not belong together are told apart before anything is touched."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from penstock.checkpoint.belonging import check_sources, history_of, is_decided, mismatch
from penstock.checkpoint.decision import Decision, DecisionId
from penstock.checkpoint.ledger import Ledger, Manifest
from penstock.checkpoint.spark_log import SparkLog
from penstock.errors import LedgerCorrupt, UidChanged
from penstock.storage.storage import MemoryStorage

BARRIER = b"v1\n{}\n7"


def checkpoint(location: str = "memory:job/copy/spark", *, started: bool = True) -> MemoryStorage:
    """Spark's folder under a name of its own."""
    storage = MemoryStorage(location)
    if started:
        storage.create("metadata", b'{"id":"q"}')
    storage.create("offsets/5", BARRIER)
    return storage


def run_before(**facts: Any) -> Ledger:
    ledger = Ledger(MemoryStorage())
    ledger.register({"sources": ["a", "b"]})
    ledger.register({"sources": ["orders", "rates"], **facts})
    return ledger


@pytest.mark.parametrize("location", ["file:/x/copy/spark.2", "file:/x/copy/spark.2/", "spark.2"])
def test_a_history_is_the_name_of_its_folder(location: str) -> None:
    assert history_of(SparkLog(checkpoint(location))) == "spark.2"


@pytest.mark.parametrize("now", [("orders",), ("rates", "orders"), ("orders", "rates", "more"), ("a", "b"), ()])
@pytest.mark.parametrize("facts", [{}, {"history": "spark"}])
def test_other_sources_than_those_of_the_last_run_are_refused(facts: dict[str, Any], now: tuple[str, ...]) -> None:
    with pytest.raises(UidChanged) as refused:
        check_sources(run_before(**facts), SparkLog(checkpoint()), "copy", now)
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


def decided(barrier: str | None, offsets: str | None = None) -> Manifest:
    ledger = Ledger(MemoryStorage())
    ledger.decide(Decision(DecisionId(5, 1), ()), query="q", barrier=barrier, offsets=offsets)
    return ledger.manifests(5)[0]


DIGEST = hashlib.sha256(BARRIER).hexdigest()
OTHER = "v1\n{}\n8"


@pytest.mark.parametrize("barrier", [DIGEST, None])
def test_the_file_that_was_decided_on_is_fine(barrier: str | None) -> None:
    assert is_decided(SparkLog(checkpoint()), 5, decided(barrier))
    assert is_decided(SparkLog(checkpoint()), 5, None), "an epoch that was not decided"


def test_another_file_than_was_decided_on_is_to_be_restored_from_the_decision() -> None:
    assert not is_decided(SparkLog(checkpoint()), 5, decided(hashlib.sha256(OTHER.encode()).hexdigest(), OTHER))


@pytest.mark.parametrize("offsets", [None, OTHER])
@pytest.mark.parametrize("digest", ["0" * 64, "f" * 64])
def test_where_the_decision_holds_no_copy_of_it_the_job_stops(digest: str, offsets: str | None) -> None:
    log = SparkLog(checkpoint())
    with pytest.raises(LedgerCorrupt) as refused:
        is_decided(log, 5, decided(digest, offsets))
    assert refused.value.happened.startswith(f"{log.location}/offsets/5 is not the file epoch 5 was decided on")


@pytest.mark.parametrize("data", [None, b""])
def test_a_barrier_that_is_lost_or_torn_is_written_again_not_compared(data: bytes | None) -> None:
    storage = checkpoint()
    storage.delete("offsets/5")
    if data is not None:
        storage.create("offsets/5", data)
    assert is_decided(SparkLog(storage), 5, decided("0" * 64))


def test_the_error_for_two_that_are_not_each_others_names_both() -> None:
    assert "query 'copy', but the log is elsewhere:" in mismatch("copy", "the log is elsewhere").happened
