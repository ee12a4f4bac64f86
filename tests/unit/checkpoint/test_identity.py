"""Ledger, checkpoint and program that do not belong together are told apart before anything is touched."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from penstock.checkpoint.belonging import barrier_to_run, check_barrier, check_sources, history_of, mismatch
from penstock.checkpoint.decision import Decision, DecisionId
from penstock.checkpoint.ledger import Ledger
from penstock.checkpoint.spark_log import SparkLog
from penstock.errors import LedgerCorrupt, LedgerError, UidChanged
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


def decided(*barriers: str | None, query: str = "q", epoch: int = 5) -> Ledger:
    ledger = Ledger(MemoryStorage())
    for generation, barrier in enumerate(barriers, start=1):
        ledger.decide(Decision(DecisionId(epoch, generation), ()), query=query, barrier=barrier)
    return ledger


DIGEST = hashlib.sha256(BARRIER).hexdigest()
OTHERS = "0" * 64, "f" * 64


@pytest.mark.parametrize(
    "barriers", [(DIGEST,), (None,), (OTHERS[0], DIGEST), (DIGEST, OTHERS[1]), (OTHERS[0], None), ()]
)
def test_the_file_that_was_decided_on_is_fine(barriers: tuple[str | None, ...]) -> None:
    check_barrier(decided(*barriers), SparkLog(checkpoint()), 5, "q")


@pytest.mark.parametrize("barriers", [OTHERS[:1], OTHERS[1:], OTHERS])
def test_another_file_than_was_decided_on_stops_the_job(barriers: tuple[str, ...]) -> None:
    log = SparkLog(checkpoint())
    with pytest.raises(LedgerCorrupt) as refused:
        check_barrier(decided(*barriers), log, 5, "q")
    assert refused.value.happened == f"{log.location}/offsets/5 is not the file epoch 5 was decided on."


@pytest.mark.parametrize("query", ["a", "z"])
def test_decisions_of_another_query_are_no_measure(query: str) -> None:
    check_barrier(decided(OTHERS[0], query=query), SparkLog(checkpoint()), 5, "q")


def test_without_a_barrier_there_is_nothing_to_compare() -> None:
    check_barrier(decided(OTHERS[0], epoch=6), SparkLog(checkpoint()), 6, "q")
    check_barrier(decided(OTHERS[0]), SparkLog(checkpoint()), -1, "q")


def test_a_torn_barrier_is_written_again_not_compared() -> None:
    storage = checkpoint()
    storage.delete("offsets/5")
    storage.create("offsets/5", b"")
    check_barrier(decided(OTHERS[0]), SparkLog(storage), 5, "q")


def test_epoch_zero_is_compared_like_any_other() -> None:
    storage = checkpoint()
    storage.create("offsets/0", BARRIER)
    with pytest.raises(LedgerCorrupt):
        check_barrier(decided(OTHERS[0], epoch=0), SparkLog(storage), 0, "q")


def test_the_error_for_two_that_are_not_each_others_names_both() -> None:
    assert "query 'copy', but the log is elsewhere:" in mismatch("copy", "the log is elsewhere").happened


def test_an_epoch_without_a_barrier_is_of_another_checkpoint() -> None:
    with pytest.raises(LedgerError, match="query 'copy', but memory:job/copy/spark has no offsets/6"):
        barrier_to_run(SparkLog(checkpoint()), 6, "copy", drains=True)


def test_the_barrier_of_a_drain_is_run_only_by_who_asked_for_it() -> None:
    log = SparkLog(checkpoint())
    log.end_of_time(6)
    with pytest.raises(LedgerError, match="barrier of epoch 6 of query 'copy'") as refused:
        barrier_to_run(log, 6, "copy", drains=False)
    assert refused.value.retryable, "the next start removes it"
    assert barrier_to_run(log, 6, "copy", drains=True).drains == "q"
    assert barrier_to_run(log, 5, "copy", drains=False).text == BARRIER.decode()
