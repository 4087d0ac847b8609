"""A collector for the tests: a real HTTP server that reads OTLP as OpenTelemetry's own schema says, and keeps what came."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

Value = str | bool | int | float | list[str]


class SpanSeen(NamedTuple):
    """One span as it was sent."""

    name: str
    trace: str
    id: str
    parent: str
    kind: int
    begin_ns: int
    end_ns: int
    error: bool
    attributes: dict[str, Value]
    resource: dict[str, Value]

    @property
    def service(self) -> Value:
        return self.resource["service.name"]


class EventSeen(NamedTuple):
    """One log record as it was sent."""

    name: str
    trace: str
    span: str
    time_ns: int
    attributes: dict[str, Value]


@dataclass
class Collector:
    """What came so far; `changed` is notified each time."""

    url: str = ""
    spans: list[SpanSeen] = field(default_factory=list)
    events: list[EventSeen] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    refuse: bool = False
    """Whether it answers 400, which no exporter tries again."""
    changed: threading.Condition = field(default_factory=threading.Condition)

    def wait_for(self, *names: str, timeout_s: float = 30.0) -> list[SpanSeen]:
        """Every span so far, once spans of all these names have come."""
        with self.changed:
            found = self.changed.wait_for(
                lambda: set(names) <= {span.name for span in self.spans}, timeout=timeout_s
            )
            assert found, sorted({span.name for span in self.spans})
            return list(self.spans)

    def wait_for_events(self, count: int, timeout_s: float = 30.0) -> list[EventSeen]:
        """Every event so far, once there are so many."""
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.events) >= count, timeout=timeout_s), self.events
            return list(self.events)

    def take(self, path: str, body: bytes) -> None:
        with self.changed:
            if path == "/v1/traces":
                self.spans += spans_in(ExportTraceServiceRequest.FromString(body))
            else:
                assert path == "/v1/logs"
                self.events += events_in(ExportLogsServiceRequest.FromString(body))
            self.changed.notify_all()


def spans_in(request: ExportTraceServiceRequest) -> Iterator[SpanSeen]:
    for of_resource in request.resource_spans:
        for scope in of_resource.scope_spans:
            for span in scope.spans:
                yield SpanSeen(
                    span.name,
                    span.trace_id.hex(),
                    span.span_id.hex(),
                    span.parent_span_id.hex(),
                    span.kind,
                    span.start_time_unix_nano,
                    span.end_time_unix_nano,
                    span.status.code == 2,
                    plain(span.attributes),
                    plain(of_resource.resource.attributes),
                )


def events_in(request: ExportLogsServiceRequest) -> Iterator[EventSeen]:
    for of_resource in request.resource_logs:
        for scope in of_resource.scope_logs:
            for record in scope.log_records:
                assert record.body.WhichOneof("value") is None
                yield EventSeen(
                    record.event_name,
                    record.trace_id.hex(),
                    record.span_id.hex(),
                    record.time_unix_nano,
                    plain(record.attributes),
                )


def plain(attributes: object) -> dict[str, Value]:
    return {pair.key: value_of(pair.value) for pair in attributes if isinstance(pair, KeyValue)}  # type: ignore[attr-defined]


def value_of(value: AnyValue) -> Value:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [one.string_value for one in value.array_value.values]
    found: Value = getattr(value, str(kind))
    return found


@contextmanager
def collector() -> Iterator[Collector]:
    """Serve on a free port for the length of the block."""
    seen = Collector()

    class Door(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            seen.headers.append({name.lower(): value for name, value in self.headers.items()})
            if not seen.refuse:
                seen.take(self.path, body)
            self.send_response(400 if seen.refuse else 200)
            self.send_header("content-type", "application/x-protobuf")
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Door)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    seen.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield seen
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)
