"""What every process is told about telemetry: `[telemetry]` and `[log]` of the settings, and a part of a worker's spec."""

from __future__ import annotations

import re
from typing import Annotated, Literal, TypeAlias
from urllib.parse import urlsplit

from pydantic import Field, field_validator
from pydantic_core import PydanticCustomError

from tiltyard.identity.manifest import Frozen, Number

Names: TypeAlias = Literal["both", "current", "legacy"]
"""Which generation of OpenTelemetry's names attributes have."""
Content: TypeAlias = Literal["never", "unencrypted-and-never-erased"]
"""Whether words leave for the collector; the second value says what becomes of them there."""
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class TelemetrySettings(Frozen):
    """`[telemetry]`: where traces and evaluation results go; nowhere where no endpoint is named."""

    endpoint: str | None = Field(default=None, min_length=1)
    """Base URL of a collector that speaks OTLP over HTTP; `/v1/traces` and `/v1/logs` are added."""
    headers: dict[str, str] = Field(default_factory=dict)
    """By header, the environment variable that holds its value: secrets do not stand in a file."""
    sample_ratio: Annotated[Number, Field(ge=0, le=1)] | None = None
    """Share of the traces begun here that are recorded; `None`: as `OTEL_TRACES_SAMPLER` says, else all."""
    service_name: str | None = Field(default=None, min_length=1, max_length=255)
    """`None`: as `OTEL_SERVICE_NAME` says, else `tiltyard`."""
    names: Names = "both"
    content: Content = "never"
    evaluations: bool = Field(default=True, strict=True)
    """Whether `tiltyard up` and `serve` send judgments, results, votes and scores as they come into the log."""

    @field_validator("endpoint")
    @classmethod
    def endpoint_is_a_url(cls, value: str | None) -> str | None:
        """A base URL, without a signal's own path."""
        if value is None:
            return None
        parts = urlsplit(value)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise PydanticCustomError(
                "inconsistent",
                "{value} is no URL of a collector; write one such as http://127.0.0.1:4318",
                {"value": repr(value)},
            )
        if parts.path.rstrip("/").endswith(("/v1/traces", "/v1/logs", "/v1/metrics")):
            raise PydanticCustomError(
                "inconsistent", "write the collector's base URL; /v1/traces and /v1/logs are added to it"
            )
        return value.rstrip("/")

    @field_validator("headers")
    @classmethod
    def headers_name_variables(cls, value: dict[str, str]) -> dict[str, str]:
        """Names of headers and of environment variables, never a secret."""
        for header, variable in value.items():
            if not _HEADER.fullmatch(header):
                raise PydanticCustomError(
                    "inconsistent", "{header} is no name of a header", {"header": repr(header)}
                )
            if not _VARIABLE.fullmatch(variable):
                raise PydanticCustomError(
                    "inconsistent",
                    "{header} must name the environment variable that holds its value, such as COLLECTOR_KEY; "
                    "what stands there now is no name of one",
                    {"header": header},
                )
        return value


class LogSettings(Frozen):
    """`[log]`: how every process writes what it has to say."""

    format: Literal["text", "json"] = "text"
    """`json`: one JSON object a line, with the ids of trace and span."""
    level: Literal["debug", "info", "warning", "error"] = "warning"
    """What is less urgent is not written, but for what a process says when it starts and ends; `info` has a line for each generation."""
