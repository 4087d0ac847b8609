"""The W3C trace context: which trace a request belongs to, read from headers and written to them (https://www.w3.org/TR/trace-context/)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextvars import ContextVar
from typing import NamedTuple

_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
_TRACESTATE = re.compile(r"[\x20-\x7e]{1,512}")


class TraceParent(NamedTuple):
    """The span that what happens now belongs to."""

    traceparent: str
    """`version-trace-parent-flags` in lower-case hexadecimal."""
    tracestate: str = ""
    """What other systems on the way know of the trace; passed on as it came."""

    @property
    def trace_id(self) -> str:
        """32 hexadecimal digits."""
        return self.traceparent[3:35]

    @property
    def span_id(self) -> str:
        """16 hexadecimal digits."""
        return self.traceparent[36:52]

    @property
    def sampled(self) -> bool:
        """Whether whoever began the trace records it."""
        return bool(int(self.traceparent[53:55], 16) & 1)

    @property
    def headers(self) -> dict[str, str]:
        """The headers by which the next hop learns of it."""
        state = {"tracestate": self.tracestate} if self.tracestate else {}
        return {"traceparent": self.traceparent, **state}


NO_HEADERS: Mapping[str, str] = {}
CURRENT: ContextVar[TraceParent | None] = ContextVar("tiltyard_trace", default=None)
"""What the current task works for: set around each request, inherited by the tasks that it starts, read by the log."""


def trace_of(headers: Mapping[str, str]) -> TraceParent | None:
    """The trace context that headers bring if it is well formed; the standard says to ignore it otherwise.

    >>> found = trace_of({"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"})
    >>> found.trace_id, found.span_id, found.sampled
    ('4bf92f3577b34da6a3ce929d0e0e4736', '00f067aa0ba902b7', True)
    """
    return read_trace(headers.get("traceparent", ""), headers.get("tracestate", ""))


def read_trace(traceparent: str, tracestate: str = "") -> TraceParent | None:
    """The same of the two headers' values, empty where there is none."""
    if not traceparent or not _TRACEPARENT.fullmatch(traceparent):
        return None
    return TraceParent(traceparent, tracestate if _TRACESTATE.fullmatch(tracestate) else "")


def traceparent_now() -> str | None:
    """What events say of the trace that the current task works for."""
    return traceparent_of(CURRENT.get())


def traceparent_of(trace: TraceParent | None) -> str | None:
    """The header's value, where there is a trace."""
    return None if trace is None else trace.traceparent


def headers_of(trace: TraceParent | None) -> Mapping[str, str]:
    """The headers of a trace context, none where there is none."""
    return NO_HEADERS if trace is None else trace.headers
