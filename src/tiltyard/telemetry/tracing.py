"""How the rest of tiltyard tells what it does to a trace, without knowing OpenTelemetry.

`begin` starts a span below a trace context and gives the context below which the next hop's spans stand. Without a
collector, `NO_TRACING` passes what a client brought on as it came, and nothing of OpenTelemetry is loaded.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Literal, Protocol, TypeAlias

from tiltyard.errors import ConfigurationError
from tiltyard.telemetry.trace_context import TraceParent
from tiltyard.wire.telemetry import TelemetrySettings

Attribute: TypeAlias = str | bool | int | float | Sequence[str]
Attributes: TypeAlias = Mapping[str, Attribute]
Kind: TypeAlias = Literal["internal", "server", "client"]

Signal: TypeAlias = Literal["TRACES", "LOGS"]
"""As OpenTelemetry's variables name them; evaluation results are logs."""
CANCELLED = "cancelled"
"""`error.type` of what nobody waited for any more."""


class Span(Protocol):
    """Something that began and will end."""

    @property
    def recording(self) -> bool:
        """Whether anybody will see it; attributes that cost something to make are made only then."""

    @property
    def trace(self) -> TraceParent | None:
        """The context for what happens because of it."""

    def set(self, attributes: Attributes) -> None:
        """Add attributes."""

    def rename(self, name: str) -> None:
        """Give it a better name, known only later."""

    def end(self, *, error: str | None = None, at_ns: int | None = None) -> None:
        """End it, now or at a moment (nanoseconds since 1970); `error` is the code of what went wrong. Once."""


class Tracing(Protocol):
    """Where spans go."""

    @property
    def recording(self) -> bool:
        """Whether they go anywhere."""

    @property
    def content(self) -> bool:
        """Whether words may be attributes, where a tenant's terms allow it."""

    def begin(
        self,
        name: str,
        *,
        parent: TraceParent | None,
        kind: Kind = "internal",
        attributes: Attributes | None = None,
        at_ns: int | None = None,
    ) -> Span:
        """Begin a span, now or at a moment (nanoseconds since 1970)."""

    def close(self) -> None:
        """Send what is waiting, for a few seconds at most. Blocks."""


class Untraced:
    """A span that nobody sees."""

    recording = False

    def __init__(self, trace: TraceParent | None) -> None:
        self.trace = trace

    def set(self, attributes: Attributes) -> None:
        """Nothing."""

    def rename(self, name: str) -> None:
        """Nothing."""

    def end(self, *, error: str | None = None, at_ns: int | None = None) -> None:
        """Nothing."""


class NoTracing:
    """No spans; contexts are passed on."""

    recording = False
    content = False

    def begin(
        self,
        name: str,
        *,
        parent: TraceParent | None,
        kind: Kind = "internal",
        attributes: Attributes | None = None,
        at_ns: int | None = None,
    ) -> Span:
        """What belongs to the parent's trace belongs to it still."""
        return Untraced(parent)

    def close(self) -> None:
        """Nothing."""


NO_TRACING: Tracing = NoTracing()


def is_on(settings: TelemetrySettings, signal: Signal) -> bool:
    """Whether there is a collector for a signal: of the settings, or of OpenTelemetry's own variables, which can also say no."""
    environment = os.environ
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    if environment.get(f"OTEL_{signal}_EXPORTER", "").strip().lower() == "none":
        return False
    named = ("OTEL_EXPORTER_OTLP_ENDPOINT", f"OTEL_EXPORTER_OTLP_{signal}_ENDPOINT")
    return settings.endpoint is not None or any(environment.get(name) for name in named)


def open_tracing(settings: TelemetrySettings, *, process: str, instance: str) -> Tracing:
    """Tracing as the settings and OpenTelemetry's variables say; `process` is `gateway` or `worker`, `instance` its name.

    Raises `ConfigurationError` where the extra is not installed or a header's variable is not set. Where only the
    environment names a collector and the extra is missing, there is no tracing: the variable may be meant for others.
    """
    if not is_on(settings, "TRACES"):
        return NO_TRACING
    module = load_extra("tiltyard.telemetry.otel", settings)
    if module is None:
        return NO_TRACING
    tracing: Tracing = module.OtelTracing(settings, process=process, instance=instance)
    return tracing


def load_extra(module: str, settings: TelemetrySettings) -> ModuleType | None:
    """A module that needs `tiltyard[otel]`; `None` where that is missing and only the environment asks for it.

    Raises `ConfigurationError` where the settings name a collector and the extra is missing.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if settings.endpoint is None:
            return None
        raise ConfigurationError(
            f"telemetry.endpoint needs the package {error.name}; install tiltyard[otel], or take the key out",
            param="telemetry.endpoint",
        ) from None


def header_values(settings: TelemetrySettings) -> dict[str, str]:
    """The headers of every export; raises `ConfigurationError` for a variable that is not set."""
    values: dict[str, str] = {}
    for header, variable in settings.headers.items():
        if not (value := os.environ.get(variable)):
            raise ConfigurationError(
                f"telemetry.headers.{header}: the environment variable {variable} is not set; set it, or take the header out",
                param=f"telemetry.headers.{header}",
            )
        values[header] = value
    return values
