"""An epoch as a trace: what it consists of, and when anything is traced at all."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from penstock.events import Events
from penstock.ops.server import traces
from penstock.ops.server.run_view import RunView

trace = pytest.importorskip("opentelemetry.sdk.trace", reason="the extra otel is not installed")

from opentelemetry.sdk.trace.export import SimpleSpanProcessor  # noqa: E402
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter  # noqa: E402

SECOND = 1_000_000_000


@pytest.fixture(autouse=True)
def nothing_is_configured(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OTEL_SDK_DISABLED", "OTEL_TRACES_EXPORTER", "OTEL_EXPORTER_OTLP_ENDPOINT", "PENSTOCK_EVENTS",
                 "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_SERVICE_NAME", "OTEL_RESOURCE_ATTRIBUTES",
                 "OTEL_EXPORTER_OTLP_PROTOCOL", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"):  # fmt: skip
        monkeypatch.delenv(name, raising=False)


class Traced:
    """Epochs of a job at a clock of its own, and the spans they became."""

    def __init__(self) -> None:
        self.now = 1000.0
        self._exporter = InMemorySpanExporter()
        provider = trace.TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.view = RunView()
        self.view.on_attempt(partial(traces.trace, provider.get_tracer("test"), "payments", "a" * 32))
        self.events = Events(now=lambda: self.now)
        self.events.listen(self.view.on_event)

    def say(self, event: str, after: float = 0.0, **fields: Any) -> None:
        self.now += after
        self.events.emit(event, **{"query": "out", "generation": 3, "epoch": 12, **fields})

    def prepare(self) -> None:
        self.say("opened")
        self.say("precommitted", 1.0, rows=100, writers=4, seconds=1.0)

    def complete(self) -> None:
        self.prepare()
        self.say("decided", 0.25)
        self.say("committed", 0.75, rows=100, writers=4, commit_ms=750.0, recovery=False)
        self.say("completed", seconds=2.0)

    def spans(self) -> dict[str, Any]:
        found = self._exporter.get_finished_spans()
        assert len({span.name for span in found}) == len(found)
        return {span.name: span for span in found}


@pytest.fixture
def traced() -> Traced:
    return Traced()


def times(span: Any) -> tuple[float, float]:
    """Seconds since the epoch's barrier."""
    return (span.start_time / SECOND - 1000, span.end_time / SECOND - 1000)


def test_a_complete_epoch(traced: Traced) -> None:
    traced.complete()
    assert traced.spans() == {}  # how long reading took comes with the record
    traced.say("checkpoint", outcome="complete", mode="aligned", read_ms=200.0)
    spans = traced.spans()
    assert {name: times(span) for name, span in spans.items()} == {
        "epoch": pytest.approx((0.0, 2.0)),
        "read": pytest.approx((0.0, 0.2)),
        "prepare": pytest.approx((0.2, 1.0)),
        "decide": pytest.approx((1.0, 1.25)),
        "commit": pytest.approx((1.25, 2.0)),
    }
    whole = spans.pop("epoch")
    assert whole.parent is None
    about = {"penstock.job": "payments", "penstock.run": "a" * 32, "penstock.query": "out", "penstock.epoch": 12,
             "penstock.generation": 3}  # fmt: skip
    assert dict(whole.attributes) == {
        **about, "penstock.rows": 100, "penstock.writers": 4, "penstock.mode": "aligned",
    }  # fmt: skip
    assert whole.status.is_ok or whole.status.is_unset
    for span in spans.values():
        assert span.parent.span_id == whole.context.span_id
        assert span.context.trace_id == whole.context.trace_id
        assert dict(span.attributes) == about


def test_an_epoch_that_failed(traced: Traced) -> None:
    traced.prepare()
    traced.say("failed", 0.5, error="PreCommitFailed: password=hunter2 was refused")
    spans = traced.spans()
    assert set(spans) == {"epoch", "prepare"}
    assert not spans["epoch"].status.is_ok
    assert spans["epoch"].status.description == "PreCommitFailed: password=*** was refused"
    assert times(spans["epoch"]) == pytest.approx((0.0, 1.5))
    traced.say("checkpoint", outcome="failed", mode="aligned", read_ms=None)
    assert len(traced.spans()) == 2


def test_an_epoch_without_a_record_is_traced_at_the_end(traced: Traced) -> None:
    traced.complete()
    traced.view.close(0)
    assert set(traced.spans()) == {"epoch", "prepare", "decide", "commit"}


def test_what_recovery_commits_is_no_phase(traced: Traced) -> None:
    traced.say("committed", rows=100, writers=4, commit_ms=1.0, recovery=True)
    traced.say("recovered", action="finished", seconds=0.1)
    traced.view.close(0)
    assert traced.spans() == {}


# When anything is traced


def followed() -> tuple[RunView, Callable[[], None]]:
    view = RunView()
    return view, traces.follow("payments", "a" * 32, view)


@pytest.mark.parametrize(
    ("environment", "exporters"),
    [
        ({}, []),
        ({"OTEL_TRACES_EXPORTER": "none"}, []),
        ({"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://here:4318"}, []),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://here:4318"}, ["otlp"]),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://here:4318/v1/traces"}, ["otlp"]),
        ({"OTEL_TRACES_EXPORTER": "otlp, console"}, ["otlp", "console"]),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": " "}, []),
    ],
)
def test_the_environment_says_where_to(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], exporters: list[str]
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert traces._exporters() == exporters


@pytest.fixture
def collected(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    exporter = InMemorySpanExporter()
    monkeypatch.setattr(traces, "_exporter", lambda name: exporter)
    return exporter


def test_a_job_is_followed_until_its_end(monkeypatch: pytest.MonkeyPatch, collected: InMemorySpanExporter) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://here:4318")
    view, end = followed()
    for name in ("opened", "completed"):
        view.on_event({"time": 1.0, "event": name, "query": "out", "generation": 1, "epoch": 0})
    view.close(0)
    end()
    [span] = collected.get_finished_spans()
    assert (span.name, span.resource.attributes["service.name"]) == ("epoch", "payments")


def test_a_service_s_name_that_was_given_stays(
    monkeypatch: pytest.MonkeyPatch, collected: InMemorySpanExporter
) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "orders-team")
    provider = traces._new_provider("payments", ["otlp"])
    assert provider.resource.attributes["service.name"] == "orders-team"
    provider.shutdown()


@pytest.mark.parametrize(
    "environment",
    [
        {"OTEL_SDK_DISABLED": "true", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://here:4318"},
        {"OTEL_TRACES_EXPORTER": "zipkin"},
        {"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"},
    ],
)
def test_what_cannot_be_traced_stops_no_job(monkeypatch: pytest.MonkeyPatch, environment: dict[str, str]) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    view, end = followed()
    view.on_event({"time": 1.0, "event": "opened", "query": "out", "generation": 1, "epoch": 0})
    end()


def test_a_missing_extra_is_said(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "otlp")
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.resources", None)
    followed()[1]()
    assert "penstock[otel]" in caplog.text


def test_nothing_is_imported_where_nothing_is_configured() -> None:
    code = (
        "import sys; from penstock.ops.server import run_view, traces\n"
        "traces.follow('payments', 'a', run_view.RunView())()\n"
        "assert not [name for name in sys.modules if name.startswith('opentelemetry')]"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
