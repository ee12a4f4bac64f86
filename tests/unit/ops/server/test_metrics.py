"""A job's metrics: their names, what each counts, and who may read them."""

from __future__ import annotations

import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from penstock.events import Events
from penstock.ops.process.registry import State
from penstock.ops.server.metrics import BUCKETS, FAMILIES, JOB_LABEL, Metrics
from penstock.ops.server.run_view import RunView
from tests.support.fake_job import Served, served

PAGE = Path(__file__).parents[4] / "docs" / "reference" / "metrics.md"

#: Dashboards and alerts elsewhere use these: a name or label that changes here breaks them.
NAMES = {
    "penstock_build_info": ("gauge", ("version", "pyspark", "python")),
    "penstock_job_start_timestamp_seconds": ("gauge", ()),
    "penstock_job_state": ("gauge", ("state",)),
    "penstock_restarts_total": ("counter", ()),
    "penstock_savepoints_total": ("counter", ()),
    "penstock_generation": ("gauge", ("query",)),
    "penstock_recoveries_total": ("counter", ("query", "action")),
    "penstock_recovery_seconds": ("histogram", ("query",)),
    "penstock_epochs_completed_total": ("counter", ("query",)),
    "penstock_epochs_failed_total": ("counter", ("query",)),
    "penstock_epochs_skipped_total": ("counter", ("query",)),
    "penstock_epoch_seconds": ("histogram", ("query",)),
    "penstock_epoch_phase_seconds": ("histogram", ("query", "phase")),
    "penstock_epoch_opened_timestamp_seconds": ("gauge", ("query",)),
    "penstock_last_completed_epoch": ("gauge", ("query",)),
    "penstock_last_completed_timestamp_seconds": ("gauge", ("query",)),
    "penstock_rows_total": ("counter", ("query",)),
    "penstock_rows_aside_total": ("counter", ("query",)),
    "penstock_rows_skipped_total": ("counter", ("query",)),
    "penstock_source_lag_rows": ("gauge", ("query", "source", "partition")),
    "penstock_watermark_timestamp_seconds": ("gauge", ("query",)),
    "penstock_alignment_wait_seconds": ("gauge", ("query",)),
    "penstock_alignment_skew_ratio": ("gauge", ("query",)),
    "penstock_transactions_open": ("gauge", ("query",)),
    "penstock_transactions_in_doubt": ("gauge", ("query",)),
    "penstock_transactions_aborted_total": ("counter", ("query",)),
    "penstock_inflight_bytes": ("gauge", ("query", "sink")),
    "penstock_inflight_epochs": ("gauge", ("query", "sink")),
    "penstock_sink_waiting": ("gauge", ("query", "sink")),
    "penstock_throttled": ("gauge", ("query",)),
    "penstock_throttled_seconds_total": ("counter", ("query",)),
    "penstock_state_rows": ("gauge", ("query",)),
    "penstock_state_bytes": ("gauge", ("query",)),
}

Sample = tuple[str, tuple[tuple[str, str], ...]]


class Run:
    """A run of job `payments` at a clock of its own, whose status says `status`."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.status: dict[str, Any] = {}
        self.entry = SimpleNamespace(name="payments", start=5_000, state=State.RUNNING, restarts=0)
        self.events = Events(now=lambda: self.now)
        registration: Any = SimpleNamespace(entry=self.entry)
        lifecycle: Any = SimpleNamespace(status=lambda: self.status)
        self.view = RunView()
        self.metrics = Metrics(self.view, registration, lifecycle)
        self.events.listen(self.view.on_event)
        self.events.listen(self.metrics.on_event)

    def say(self, event: str, after: float = 0.0, **fields: Any) -> None:
        self.now += after
        self.events.emit(event, **{"query": "out", "generation": 3, **fields})

    def epoch(self, number: int, rows: int = 100) -> None:
        """A complete one: read 0.2 s, prepared after 1 s, decided after 1.25 s, committed after 2 s."""
        self.say("opened", epoch=number)
        self.say("precommitted", 1.0, epoch=number, rows=rows, writers=4, seconds=1.0)
        self.say("decided", 0.25, epoch=number)
        self.say("committed", 0.75, epoch=number, rows=rows, writers=4, commit_ms=750.0, recovery=False)
        self.say("completed", epoch=number, seconds=2.0)
        self.record(number)

    def record(self, number: int, **fields: Any) -> None:
        summary = {"outcome": "complete", "mode": "aligned", "read_ms": 200.0, "state_rows": 7, "state_bytes": 4096}
        self.say("checkpoint", epoch=number, **{**summary, "skew": 1.5, "waited_ms": 30.0, **fields})

    def samples(self) -> dict[Sample, float]:
        return parsed(self.metrics.render("")[0].decode())

    def __getitem__(self, name: str) -> float | None:
        """The one sample of this name."""
        found = {labels: value for (one, labels), value in self.samples().items() if one == name}
        assert len(found) <= 1, found
        return next(iter(found.values()), None)

    def of(self, name: str, **labels: str) -> float | None:
        wanted = {JOB_LABEL: "payments", **labels}
        return self.samples().get((name, tuple(sorted(wanted.items()))))


def parsed(text: str) -> dict[Sample, float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.delenv("PENSTOCK_EVENTS", raising=False)
    return Run()


# Names


def test_the_names_are_those_that_others_rely_on() -> None:
    assert {name: (family.kind, family.labels) for name, family in FAMILIES.items()} == NAMES


@pytest.mark.parametrize("name", FAMILIES)
def test_names_follow_prometheus_s_rules(name: str) -> None:
    family = FAMILIES[name]
    assert re.fullmatch(r"penstock_[a-z_]+", name)
    assert name.endswith("_total") == (family.kind == "counter")
    assert not re.search(r"_(ms|millis|milliseconds|kb|mb|minutes)(_|$)", name), "base units are seconds and bytes"
    assert family.help.endswith(".")
    assert not {"le", "quantile", "job", "instance", JOB_LABEL} & set(family.labels)


def test_the_page_has_every_name_with_its_kind_and_labels() -> None:
    rows = re.findall(r"^\| `(penstock_\w+)` \| (\w+) \| ([^|]*) \|", PAGE.read_text(encoding="utf-8"), re.M)
    assert {name: (kind, tuple(re.findall(r"`(\w+)`", labels))) for name, kind, labels in rows} == NAMES


# What they count


def test_complete_epochs(run: Run) -> None:
    run.say("started")
    assert run["penstock_epochs_completed_total"] == 0  # there before the first, so that a rate sees it
    for number in range(3):
        run.epoch(number)
    assert run["penstock_epochs_completed_total"] == 3
    assert run["penstock_epochs_failed_total"] == 0
    assert run["penstock_rows_total"] == 300
    assert run["penstock_last_completed_epoch"] == 2
    assert run["penstock_last_completed_timestamp_seconds"] == 1006.0
    assert run["penstock_epoch_opened_timestamp_seconds"] == 0
    assert run["penstock_generation"] == 3


def test_phases(run: Run) -> None:
    run.epoch(0)
    run.epoch(1)
    found = {phase: run.of("penstock_epoch_phase_seconds_sum", query="out", phase=phase) for phase in
             ("read", "prepare", "decide", "commit")}  # fmt: skip
    assert found == pytest.approx({"read": 0.4, "prepare": 1.6, "decide": 0.5, "commit": 1.5})
    assert run.of("penstock_epoch_seconds_sum", query="out") == pytest.approx(4.0)
    assert run.of("penstock_epoch_seconds_count", query="out") == 2
    assert run.of("penstock_epoch_seconds_bucket", query="out", le="1.0") == 0
    assert run.of("penstock_epoch_seconds_bucket", query="out", le="2.5") == 2
    bounds = [dict(labels)["le"] for (name, labels) in run.samples() if name == "penstock_epoch_seconds_bucket"]
    assert sorted(map(float, bounds)) == [*BUCKETS, float("inf")]


def test_phases_that_are_not_there_are_not_counted(run: Run) -> None:
    """At least once decides nothing; where reading was not measured, prepare is all of it."""
    run.say("opened", epoch=0)
    run.say("precommitted", 1.0, epoch=0, rows=5, seconds=1.0)
    run.say("committed", epoch=0, rows=5, writers=1, commit_ms=0.0, recovery=False)
    run.say("completed", epoch=0, seconds=1.0)
    run.record(0, read_ms=None)
    counted = {dict(labels)["phase"] for name, labels in run.samples() if name == "penstock_epoch_phase_seconds_count"}
    assert counted == {"prepare", "commit"}
    assert run.of("penstock_epoch_phase_seconds_sum", query="out", phase="prepare") == 1.0


def test_an_epoch_whose_record_never_comes_is_measured_all_the_same(run: Run) -> None:
    for number in range(20):
        run.say("opened", epoch=number)
        run.say("precommitted", 1.0, epoch=number, rows=1, seconds=1.0)
        run.say("completed", epoch=number, seconds=1.0)
    assert run["penstock_epochs_completed_total"] == 20
    assert run.of("penstock_epoch_seconds_count", query="out") == 4  # the newest wait for theirs


@pytest.mark.parametrize(
    ("events", "failed"),
    [
        ([("failed", {"error": "SystemUnavailable: gone"})], 1),
        ([("checkpoint_failed", {"error": "CheckpointExpired: late", "tolerated": True})], 1),
        # One that is not tolerated ends the epoch, which is told as well.
        ([("checkpoint_failed", {"error": "CheckpointExpired: late", "tolerated": False}),
          ("failed", {"error": "CheckpointExpired: late"})], 1),
        ([("failed", {"error": "JobStopped: it stops"})], 0),
    ],
)  # fmt: skip
def test_failed_epochs(run: Run, events: list[tuple[str, dict[str, Any]]], failed: int) -> None:
    run.say("started")
    run.say("opened", epoch=4)
    for name, fields in events:
        run.say(name, epoch=4, **fields)
    run.record(4, outcome="failed")
    assert run["penstock_epochs_failed_total"] == failed
    assert run["penstock_epochs_completed_total"] == 0
    assert run["penstock_epoch_seconds_count"] is None  # how long failures took is not how long epochs take
    assert run["penstock_state_rows"] is None


def test_transactions_open_and_in_doubt(run: Run) -> None:
    def now() -> tuple[float | None, float | None]:
        return run["penstock_transactions_open"], run["penstock_transactions_in_doubt"]

    run.say("started")
    run.say("opened", epoch=0)
    assert now() == (0, 0)
    run.say("precommitted", epoch=0, rows=10, writers=4, seconds=1.0)
    assert now() == (4, 0)
    run.say("decided", epoch=0)
    assert now() == (4, 4)
    run.say("failed", epoch=0, error="OutcomeUnknown: nobody answers")
    assert now() == (4, 4)  # decided, and nothing proven
    run.say("recovered", epoch=1, action="finished", seconds=0.5)
    assert now() == (0, 0)


def test_rows_that_were_dropped(run: Run) -> None:
    """At most once: the plan runs and counts, and what it counts is written nowhere."""
    run.say("opened", epoch=0)
    run.say("precommitted", epoch=0, rows=10, seconds=1.0)
    run.say("skipped", epoch=0, rows=10, error="why")
    run.say("completed", epoch=0, seconds=1.0)
    assert (run["penstock_rows_total"], run["penstock_rows_skipped_total"]) == (0, 10)
    assert run["penstock_epochs_skipped_total"] == 1


def test_the_in_flight_log(run: Run) -> None:
    logged = {"rows": 5, "behind": False, "seconds": 1.0}
    run.say("logged", epoch=0, sink="a", bytes=100, backlog=1, backlog_bytes=100, **logged)
    run.say("logged", epoch=1, sink="a", bytes=60, backlog=2, backlog_bytes=160, **logged)
    assert run.of("penstock_inflight_bytes", query="out", sink="a") == 160
    run.say("drain_waiting", sink="a", error="gone")
    assert run["penstock_sink_waiting"] == 1
    run.say("throttled", bytes=160, epochs=2)
    assert run["penstock_throttled"] == 1
    run.say("drained", epoch=0, sink="a", rows=5, writers=1, rewritten=0, bytes=100, backlog=1, seconds=0.1)
    assert (run["penstock_inflight_bytes"], run["penstock_inflight_epochs"]) == (60, 1)
    run.say("flowing", bytes=60, epochs=1, seconds=2.5)
    run.say("drained", epoch=1, sink="a", rows=5, writers=1, rewritten=0, bytes=60, backlog=0, seconds=0.1)
    assert (run["penstock_inflight_bytes"], run["penstock_inflight_epochs"]) == (0, 0)
    assert (run["penstock_throttled"], run["penstock_throttled_seconds_total"]) == (0, 2.5)
    assert run["penstock_sink_waiting"] == 0


def test_recoveries_restarts_savepoints_and_leftovers(run: Run) -> None:
    for action in ("none", "finished", "none"):
        run.say("recovered", epoch=1, action=action, seconds=0.5)
    assert run.of("penstock_recoveries_total", query="out", action="none") == 2
    assert run.of("penstock_recoveries_total", query="out", action="finished") == 1
    assert run.of("penstock_recovery_seconds_sum", query="out") == 1.5
    run.entry.restarts = 2
    run.say("savepoint", query=None, path="/sp/1")
    run.say("aborted", count=3)
    assert (run["penstock_restarts_total"], run["penstock_savepoints_total"]) == (2, 1)
    assert run["penstock_transactions_aborted_total"] == 3


def test_state_and_alignment(run: Run) -> None:
    run.epoch(0)
    assert (run["penstock_state_rows"], run["penstock_state_bytes"]) == (7, 4096)
    assert (run["penstock_alignment_skew_ratio"], run["penstock_alignment_wait_seconds"]) == (1.5, 0.03)
    run.record(1, state_bytes=None, skew=None)
    assert run["penstock_state_bytes"] == 4096  # not known anew


def test_lag_and_watermark_where_the_job_knows_them(run: Run) -> None:
    assert run["penstock_source_lag_rows"] is None
    partitions = [{"partition": 'orders-"0"\n', "lag": 12}, {"partition": "orders-1", "lag": None}]
    run.status = {"queries": {"out": {"epoch": 1, "watermark": 1_500, "sources": {"orders": partitions}}}}
    labels = {"query": "out", "source": "orders", "partition": 'orders-"0"\n'}
    assert run.of("penstock_source_lag_rows", **labels) == run["penstock_source_lag_rows"] == 12
    assert run["penstock_watermark_timestamp_seconds"] == 1.5


def test_positions_that_are_asked_for_count_more_than_the_status(run: Run) -> None:
    asked: list[dict[str, Any]] = [{"out": {"sources": {"orders": [{"partition": 0, "lag": 3}]}}}]
    registration: Any = SimpleNamespace(entry=run.entry)
    lifecycle: Any = SimpleNamespace(status=lambda: {"queries": {"out": {"watermark": 1}}})
    run.metrics = Metrics(run.view, registration, lifecycle, lambda: asked.pop())
    found = run.samples()
    lag = ((JOB_LABEL, "payments"), ("partition", "0"), ("query", "out"), ("source", "orders"))
    assert found["penstock_source_lag_rows", lag] == 3
    assert run["penstock_source_lag_rows"] is None  # they cannot be told now, which hides nothing else
    assert run["penstock_build_info"] == 1


def test_the_job_and_its_versions(run: Run) -> None:
    from penstock import __version__

    assert run.of("penstock_job_state", state="RUNNING") == 1
    assert run.of("penstock_job_state", state="FAILING") == 0
    assert run["penstock_job_start_timestamp_seconds"] == 5.0
    [labels] = [dict(labels) for name, labels in run.samples() if name == "penstock_build_info"]
    assert labels["version"] == __version__
    assert run["penstock_build_info"] == 1


def test_an_event_of_another_shape_disturbs_nobody(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    run.say("opened", epoch=0)
    run.events.emit("completed")  # no query, no epoch
    run.events.emit("logged", query="out")  # nothing else
    run.epoch(1)
    assert run["penstock_epochs_completed_total"] == 1
    assert caplog.text.count("an event listener failed") <= 2  # the view, and what reads it: each is reported once


def test_no_time_of_creation_and_openmetrics_where_it_is_asked_for(run: Run) -> None:
    run.epoch(0)
    text, kind = run.metrics.render("")
    assert kind.startswith("text/plain; version=0.0.4")
    assert b"_created" not in text
    text, kind = run.metrics.render("application/openmetrics-text; version=1.0.0")
    assert kind.startswith("application/openmetrics-text")
    assert text.endswith(b"# EOF\n")


# Who may read them


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("PENSTOCK_TOKEN", raising=False)


@pytest.fixture
def job(registry: None) -> Iterator[Served]:
    with served() as one:
        yield one


def scrape(job: Served, token: str | None = None, path: str = "/metrics") -> tuple[int, str]:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        with urllib.request.urlopen(
            urllib.request.Request(f"http://{job.serving.address}{path}", headers=headers), timeout=30
        ) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_a_served_job_is_scraped_with_its_token(job: Served) -> None:
    job.events.emit("opened", query="out", generation=3, epoch=0)
    job.events.emit("completed", query="out", generation=3, epoch=0, seconds=0.5)
    status, text = scrape(job, job.entry.token)
    assert status == 200
    found = parsed(text)
    labels = (("job_name", "payments"), ("query", "out"))
    assert found["penstock_epochs_completed_total", labels] == 1
    assert scrape(job, job.entry.token, "/v1/metrics")[0] == 200
    assert scrape(job)[0] == scrape(job, "wrong")[0] == 401


def test_open_reads_lets_scrapers_of_this_machine_in(registry: None) -> None:
    with served(open_reads=True) as job:
        assert scrape(job)[0] == 200


def test_open_reads_lets_no_scraper_in_from_elsewhere(registry: None) -> None:
    with served(open_reads=True, bind_address="0.0.0.0") as job:
        assert scrape(job)[0] == 401
        assert scrape(job, job.entry.token)[0] == 200
