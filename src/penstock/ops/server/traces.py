"""Epochs as OpenTelemetry traces: a span for each attempt, with a child for each phase. They go to the exporters that
OpenTelemetry's variables name, or to the program's tracer provider; without either, OpenTelemetry is not imported.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Tracer

    from penstock.ops.server.run_view import Attempt, RunView

log = logging.getLogger("penstock")

_END_SECONDS = 5.0  # to send what is buffered; a collector that is down delays the job's end no longer
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")


def trace(tracer: Tracer, job: str, run: str, attempt: Attempt) -> None:
    """Make the spans of one attempt, see `RunView.on_attempt`."""
    from opentelemetry.context import Context
    from opentelemetry.trace import Status, StatusCode, set_span_in_context

    common: dict[str, str | int] = {"penstock.job": job, "penstock.run": run, "penstock.query": attempt.query}
    common |= {"penstock.epoch": attempt.epoch, "penstock.generation": attempt.generation or 0}
    more: dict[str, str | int] = {"penstock.rows": attempt.rows, "penstock.writers": attempt.writers}
    if attempt.mode is not None:
        more["penstock.mode"] = attempt.mode
    # Each epoch is a trace of its own: the thread that emits its events may be inside another trace.
    whole = tracer.start_span(
        "epoch", context=Context(), start_time=_nanoseconds(attempt.opened), attributes={**common, **more}
    )
    inside = set_span_in_context(whole, Context())
    for name, begin, end in attempt.phases():
        span = tracer.start_span(name, context=inside, start_time=_nanoseconds(begin), attributes=common)
        span.end(_nanoseconds(end))
    if attempt.error is not None:
        whole.set_status(Status(StatusCode.ERROR, attempt.error))
    whole.end(_nanoseconds(attempt.ended))


def follow(job: str, run: str, view: RunView) -> Callable[[], None]:
    """Trace the job's epochs, if anything is configured to take traces. Call the result after `view.close`: it sends
    what is buffered, within seconds. No failure here stops a job."""
    try:
        provider, is_ours = _provider(job)
    except ImportError as error:
        log.warning("epochs are not traced, though OTEL_* variables ask for it: %s; install penstock[otel]", error)
        return lambda: None
    except Exception as error:
        log.warning("epochs are not traced: %s: %s", type(error).__name__, error)
        return lambda: None
    if provider is None:
        return lambda: None
    view.on_attempt(partial(trace, provider.get_tracer("penstock"), job, run))

    def end() -> None:
        finish = provider.shutdown if is_ours else provider.force_flush
        thread = threading.Thread(target=finish, name="penstock-traces", daemon=True)
        thread.start()
        thread.join(_END_SECONDS)

    return end


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1_000_000_000)


def _provider(job: str) -> tuple[TracerProvider | None, bool]:
    """What takes spans, and whether it is ours to shut down."""
    if os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return None, False
    if "opentelemetry.sdk.trace" in sys.modules:  # only then can the program have set one
        from opentelemetry import trace
        from opentelemetry.sdk.trace import TracerProvider

        provider = trace.get_tracer_provider()
        if isinstance(provider, TracerProvider):
            return provider, False
    exporters = _exporters()
    return (_new_provider(job, exporters), True) if exporters else (None, False)


def _exporters() -> list[str]:
    """Those that the environment names. OpenTelemetry's default is OTLP; a job sends nothing unless configured."""
    named = os.environ.get("OTEL_TRACES_EXPORTER", "").strip().lower()
    if not named:
        return ["otlp"] if any(os.environ.get(name, "").strip() for name in _ENDPOINTS) else []
    return [name for part in named.split(",") if (name := part.strip()) and name != "none"]


def _new_provider(job: str, exporters: list[str]) -> TracerProvider:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    is_named = os.environ.get("OTEL_SERVICE_NAME") or "service.name=" in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    provider = TracerProvider(resource=Resource.create({} if is_named else {"service.name": job}))
    for name in exporters:
        provider.add_span_processor(BatchSpanProcessor(_exporter(name)))
    return provider


def _exporter(name: str) -> Any:
    if name == "console":
        from opentelemetry.sdk.trace.export import ConsoleSpanExporter

        return ConsoleSpanExporter()
    if name != "otlp":
        raise ValueError(f"OTEL_TRACES_EXPORTER={name} is neither otlp, console nor none")
    protocol = next((value for key in _PROTOCOLS if (value := os.environ.get(key, "").strip())), "http/protobuf")
    if protocol != "http/protobuf":
        raise ValueError(f"traces are sent by http/protobuf, and {protocol} is asked for")
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    return OTLPSpanExporter()
