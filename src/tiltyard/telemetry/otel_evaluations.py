"""Evaluation results on their way to a collector: log records with the name of an event, by OpenTelemetry's SDK."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.sdk._logs import LoggerProvider, ReadableLogRecord
from opentelemetry.sdk._logs.export import (
    LogRecordExporter,
    LogRecordExportResult,
    SimpleLogRecordProcessor,
)
from opentelemetry.trace import NonRecordingSpan, set_span_in_context

from tiltyard import __version__
from tiltyard.telemetry import genai
from tiltyard.telemetry.evaluations import EvaluationResult
from tiltyard.telemetry.otel import context_of, resource_of
from tiltyard.telemetry.tracing import header_values
from tiltyard.wire.telemetry import TelemetrySettings

EVENT_NAME_BEFORE = "event.name"
"""Where the name of an event stood before log records had a place for it."""


class OtelEvaluations:
    """Sends results, and says whether the collector took them."""

    def __init__(self, settings: TelemetrySettings, *, instance: str) -> None:
        self._names = settings.names
        self._exporter = OTLPLogExporter(
            endpoint=None if settings.endpoint is None else f"{settings.endpoint}/v1/logs",
            headers=header_values(settings) or None,
        )
        self._batch = _Batch()
        provider = LoggerProvider(
            resource=resource_of(settings, process="gateway", instance=instance), shutdown_on_exit=False
        )
        provider.add_log_record_processor(SimpleLogRecordProcessor(self._batch))
        self._logger = provider.get_logger("tiltyard", __version__)

    def send(self, results: Iterable[EvaluationResult]) -> bool:
        """Send results in one request; whether the collector took them all. Blocks."""
        now_ns = time.time_ns()
        for result in results:
            attributes = genai.spelled(result.attributes, self._names)
            if self._names != "current":
                attributes[EVENT_NAME_BEFORE] = genai.EVALUATION
            trace = result.trace
            self._logger.emit(
                LogRecord(
                    timestamp=result.event.time_us * 1000,
                    observed_timestamp=now_ns,
                    context=None
                    if trace is None
                    else set_span_in_context(NonRecordingSpan(context_of(trace))),
                    severity_number=SeverityNumber.INFO,
                    attributes=attributes,
                    event_name=genai.EVALUATION,
                )
            )
        batch = self._batch.take()
        return not batch or self._exporter.export(batch) is LogRecordExportResult.SUCCESS

    def close(self) -> None:
        """Give up a request that is under way."""
        self._exporter.shutdown()  # type: ignore[no-untyped-call]


class _Batch(LogRecordExporter):
    """Keeps records until they are sent: the exporter's own answer tells whether they were."""

    def __init__(self) -> None:
        self._records: list[ReadableLogRecord] = []

    def export(self, batch: Sequence[ReadableLogRecord]) -> LogRecordExportResult:
        """Keep them."""
        self._records += batch
        return LogRecordExportResult.SUCCESS

    def take(self) -> list[ReadableLogRecord]:
        """Give them out."""
        taken, self._records = self._records, []
        return taken

    def shutdown(self) -> None:
        """Nothing."""

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Nothing waits that `take` would not give out."""
        return True
