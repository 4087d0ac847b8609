"""Spans on their way to a collector, by OpenTelemetry's SDK; the only file that loads it for traces (`tiltyard[otel]`).

Spans wait in memory and are sent by a thread of the SDK's; a collector that is away costs spans, never an answer.
OpenTelemetry's own variables hold wherever the settings say nothing (`OTEL_EXPORTER_OTLP_*`, `OTEL_TRACES_SAMPLER`, `OTEL_BSP_*`,
`OTEL_RESOURCE_ATTRIBUTES`, `OTEL_SERVICE_NAME`).
"""

from __future__ import annotations

import logging
import os
import threading
from typing import Final

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    TraceState,
    set_span_in_context,
)
from opentelemetry.trace import Span as OtelSpan

from tiltyard import __version__
from tiltyard.telemetry.genai import spelled
from tiltyard.telemetry.trace_context import TraceParent
from tiltyard.telemetry.tracing import Attributes, Kind, Span, header_values
from tiltyard.wire.telemetry import Names, TelemetrySettings

CLOSE_WITHIN_S: Final = 3.0
"""How long the end of a process waits for the collector."""
KINDS: Final = {"internal": SpanKind.INTERNAL, "server": SpanKind.SERVER, "client": SpanKind.CLIENT}


def resource_of(settings: TelemetrySettings, *, process: str, instance: str) -> Resource:
    """Which process speaks: workers are a service of their own, `<name>-worker`."""
    name = settings.service_name or os.environ.get("OTEL_SERVICE_NAME") or "tiltyard"
    return Resource.create(
        {
            "service.name": name if process == "gateway" else f"{name}-{process}",
            "service.version": __version__,
            "service.instance.id": instance,
        }
    )


class OtelTracing:
    """Tracing of one process."""

    recording = True

    def __init__(self, settings: TelemetrySettings, *, process: str, instance: str) -> None:
        self.content = settings.content != "never"
        self._names = settings.names
        logging.getLogger("opentelemetry.exporter.otlp").setLevel(logging.ERROR)  # it warns of every try
        ratio = settings.sample_ratio
        self._provider = TracerProvider(
            sampler=None if ratio is None else ParentBased(TraceIdRatioBased(ratio)),
            resource=resource_of(settings, process=process, instance=instance),
            shutdown_on_exit=False,  # `close` does it, and not for ever
        )
        self._exporter = OTLPSpanExporter(
            endpoint=None if settings.endpoint is None else f"{settings.endpoint}/v1/traces",
            headers=header_values(settings) or None,
        )
        self._provider.add_span_processor(BatchSpanProcessor(self._exporter))
        self._tracer = self._provider.get_tracer("tiltyard", __version__)

    def begin(
        self,
        name: str,
        *,
        parent: TraceParent | None,
        kind: Kind = "internal",
        attributes: Attributes | None = None,
        at_ns: int | None = None,
    ) -> Span:
        """Begin a span below `parent`, or a trace of its own."""
        below = None if parent is None else set_span_in_context(NonRecordingSpan(context_of(parent)))
        span = self._tracer.start_span(
            name,
            context=below,
            kind=KINDS[kind],
            attributes=spelled(attributes or {}, self._names),
            start_time=at_ns,
        )
        return _Traced(span, self._names, "" if parent is None else parent.tracestate)

    def close(self) -> None:
        """Send what is waiting, for a few seconds at most."""
        ending = threading.Thread(target=self._provider.shutdown, name="tiltyard-traces-end", daemon=True)
        ending.start()
        ending.join(CLOSE_WITHIN_S)
        if ending.is_alive():
            # It would go on trying in a process that ends.
            self._exporter.shutdown()  # type: ignore[no-untyped-call]
            ending.join(1.0)


class _Traced:
    """A span of OpenTelemetry's."""

    def __init__(self, span: OtelSpan, names: Names, tracestate: str) -> None:
        self._span = span
        self._names = names
        context = span.get_span_context()
        flags = f"{int(context.trace_flags):02x}"
        self.trace: TraceParent | None = TraceParent(
            f"00-{context.trace_id:032x}-{context.span_id:016x}-{flags}", tracestate
        )
        self.recording = span.is_recording()

    def set(self, attributes: Attributes) -> None:
        """Add attributes."""
        self._span.set_attributes(spelled(attributes, self._names))

    def rename(self, name: str) -> None:
        """Give it a better name."""
        self._span.update_name(name)

    def end(self, *, error: str | None = None, at_ns: int | None = None) -> None:
        """End it."""
        if error is not None:
            self._span.set_attribute("error.type", error)
            self._span.set_status(Status(StatusCode.ERROR))
        self._span.end(at_ns)


def context_of(trace: TraceParent) -> SpanContext:
    """A trace context in OpenTelemetry's form."""
    return SpanContext(
        int(trace.trace_id, 16),
        int(trace.span_id, 16),
        is_remote=True,
        trace_flags=TraceFlags(TraceFlags.SAMPLED if trace.sampled else TraceFlags.DEFAULT),
        trace_state=TraceState.from_header([trace.tracestate]) if trace.tracestate else None,
    )
