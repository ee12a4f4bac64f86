"""Several queries as one job: they restart together, end together, and their global checkpoints are consistent cuts."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock import Checkpoints, FileSink, Job, RestartStrategy
from penstock.checkpoint.record import global_numbers, read_global
from penstock.failpoints import InjectedFault
from penstock.storage.local import LocalStorage
from tests.support.jobs.chain import Chain, assert_consistent, build, records
from tests.support.kafka import Input, Tail, assert_copied, assert_counted, assert_nothing_open, counted, read_committed
from tests.support.run_job import CrashAt, Kafka, Numbers, Watched, run_all

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def chain(kafka: Kafka, storage: str) -> Chain:
    return Chain("chain", kafka.servers, kafka.topic(2), kafka.topic(2), kafka.topic(2), storage)


def assert_exact(chain: Chain, source: Input) -> None:
    assert_nothing_open(chain.servers, chain.name)
    assert_copied(source, chain.servers, chain.enriched)
    assert_counted(source, chain.servers, chain.totals)


def test_two_queries_linked_through_a_topic(
    session: SparkSession, chain: Chain, running: type[Watched], crash_at: CrashAt
) -> None:
    """One fails, both restart; both are stopped and started again; all is exact, and every record is a cut."""
    source = Input(chain.servers, chain.orders)
    source.feed(250)
    crash_at("epoch.decided", 4)
    with Tail(chain.servers, chain.totals) as tail:
        with running(build(chain, session)) as first:
            first.wait(lambda: counted(tail, source), "the totals of the first part")
        [restarting] = first.all("restarting")
        assert restarting["query"] in ("enrich", "total")
        assert "Failpoint epoch.decided" in restarting["error"]
        for uid in ("enrich", "total"):
            assert [event["generation"] for event in first.all("started", query=uid)] == [1, 2]
            assert len(first.all("stopped", query=uid, error=None)) == 1
        after = records(chain)[-1]
        assert after["queries"] == {
            uid: {"epoch": max(one["epoch"] for one in first.all("committed", query=uid)), "generation": 2}
            for uid in ("enrich", "total")
        }

        source.feed(150)
        with running(build(chain, session)) as second:
            second.wait(lambda: counted(tail, source), "the totals of the second part")
    assert not second.all("restarting")
    assert_exact(chain, source)
    assert assert_consistent(chain, read_committed(chain.servers, chain.enriched)) >= 2
    assert read_global(LocalStorage(chain.folder), global_numbers(LocalStorage(chain.folder))[-1]) == records(chain)[-1]
    told = [event["number"] for run in (first, second) for event in run.all("global_checkpoint")]
    assert told == [record["number"] for record in records(chain)] == list(range(1, len(told) + 1))


def two_bounded(session: SparkSession, storage: str, folder: Path, rows: tuple[int, int]) -> Job:
    job = Job(
        "pair",
        checkpoints=Checkpoints(storage=storage),
        restart=RestartStrategy.fixed_delay(attempts=3, delay=0),
        spark=session,
    )
    for uid, count in zip(("short", "long"), rows, strict=True):
        frame = job.read(Numbers(count, {"id": "id"}), uid=f"{uid}-in")
        job.write(frame, FileSink(str(folder / uid), format="csv"), uid=uid)
    return job


def test_a_bounded_query_that_is_done_stays_done(
    session: SparkSession, storage: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, crash_at: CrashAt
) -> None:
    """The long one fails after the short one is through; only the long one starts again, and the job then ends."""
    job = two_bounded(session, storage, tmp_path, (100, 1000))
    crash_at("epoch.sealed", 8)
    with caplog.at_level(logging.WARNING, "penstock"):
        events = run_all(job)
    started = [event["query"] for event in events if event["event"] == "started"]
    assert (started.count("short"), started.count("long")) == (1, 2)
    for uid, count in (("short", 100), ("long", 1000)):
        lines = [int(line) for part in (tmp_path / uid).glob("part-*") for line in part.read_text().split()]
        assert sorted(lines) == list(range(count))
    pair = LocalStorage(Path(storage) / "pair")
    record = read_global(pair, global_numbers(pair)[-1])
    assert record is not None
    assert {uid: one["epoch"] for uid, one in record["queries"].items()} == {"short": 0, "long": 9}


def test_the_job_gives_up_as_one(session: SparkSession, storage: str, tmp_path: Path, crash_at: CrashAt) -> None:
    """Without restarts one failure ends both, the other one cleanly, and the checkpoints stay."""
    job = two_bounded(session, storage, tmp_path, (1000, 1000))
    job.settings = replace(job.settings, restart=RestartStrategy.none())
    crash_at("epoch.sealed", 4)
    events: list[dict[str, object]] = []
    with pytest.raises(InjectedFault):
        job.run(on_event=lambda event: events.append(dict(event)))
    stopped = {event["query"]: event["error"] for event in events if event["event"] == "stopped"}
    assert stopped.keys() == {"short", "long"}
    assert sorted(error is None for error in stopped.values()) == [False, True]
    run_all(two_bounded(session, storage, tmp_path, (1000, 1000)))
    for uid in ("short", "long"):
        lines = [int(line) for part in (tmp_path / uid).glob("part-*") for line in part.read_text().split()]
        assert sorted(lines) == list(range(1000))
