"""Tracing without a gateway: what the settings and OpenTelemetry's own variables do, and what happens when things are missing."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from otlp_collector import SpanSeen, collector
from tiltyard.cli.settings import parse
from tiltyard.errors import ConfigurationError
from tiltyard.telemetry.trace_context import TraceParent, read_trace
from tiltyard.telemetry.tracing import NO_TRACING, Tracing, open_tracing
from tiltyard.wire.telemetry import TelemetrySettings

# The W3C's own example.
PARENT = TraceParent("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
BASE = "[models]\n[identities]\n"


@pytest.fixture(autouse=True)
def no_variables_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)


def opened(**settings: object) -> Tracing:
    return open_tracing(TelemetrySettings.model_validate(settings), process="worker", instance="w0")


def spans_of(tracing: Tracing, parent: TraceParent | None = None, **attributes: str) -> None:
    tracing.begin("one", parent=parent, attributes=attributes).end()
    tracing.close()


def sent(parent: TraceParent | None = None, **settings: object) -> list[SpanSeen]:
    with collector() as at:
        spans_of(opened(endpoint=at.url, **settings), parent, **{"gen_ai.provider.name": "x"})
        return at.spans


@pytest.mark.parametrize(("names", "said"), [
    ("both", {"gen_ai.provider.name": "x", "gen_ai.system": "x"}),
    ("current", {"gen_ai.provider.name": "x"}),
    ("legacy", {"gen_ai.system": "x"}),
])  # fmt: skip
def test_attributes_have_the_generation_of_names_that_the_settings_ask_for(
    names: str, said: dict[str, str]
) -> None:
    (span,) = sent(names=names)
    assert span.attributes == said


def test_a_worker_is_a_service_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "of the environment")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=staging")
    (span,) = sent()
    assert span.resource["service.name"] == "of the environment-worker"
    assert span.resource["service.instance.id"] == "w0"
    assert span.resource["deployment.environment.name"] == "staging"
    (span,) = sent(service_name="yard")
    assert span.resource["service.name"] == "yard-worker"


def test_the_share_is_drawn_for_new_traces_and_whoever_began_a_trace_decides_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert sent(sample_ratio=0.0) == []
    assert len(sent(PARENT, sample_ratio=0.0)) == 1
    assert sent(PARENT._replace(traceparent=PARENT.traceparent[:-2] + "00")) == []
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")
    assert sent() == []


def test_headers_come_from_the_environment_and_one_that_is_not_there_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with collector() as at:
        settings = {"endpoint": at.url, "headers": {"x-key": "COLLECTOR_KEY"}}
        with pytest.raises(
            ConfigurationError, match=r"telemetry\.headers\.x-key: .*COLLECTOR_KEY is not set"
        ):
            opened(**settings)
        monkeypatch.setenv("COLLECTOR_KEY", "s3cret")
        spans_of(opened(**settings))
        assert at.headers[0]["x-key"] == "s3cret"


def test_opentelemetrys_own_variables_name_a_collector_and_switch_it_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert opened() is NO_TRACING
    with collector() as at:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", at.url)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-own=1")
        spans_of(opened())
        assert [span.name for span in at.spans] == ["one"]
        assert at.headers[0]["x-own"] == "1"
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "none")
    assert opened() is NO_TRACING
    monkeypatch.delenv("OTEL_TRACES_EXPORTER")
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    assert opened(endpoint="http://127.0.0.1:4318") is NO_TRACING


def test_without_the_extra_a_collector_in_the_settings_says_what_to_install_and_one_of_the_environment_is_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, "tiltyard.telemetry.otel", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(ConfigurationError, match=r"install tiltyard\[otel\]"):
        opened(endpoint="http://127.0.0.1:4318")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4318")
    assert opened() is NO_TRACING


def test_nothing_of_opentelemetry_is_loaded_without_a_collector() -> None:
    source = Path(__file__).parents[2] / "src" / "tiltyard"
    with_it = {"telemetry/otel.py", "telemetry/otel_evaluations.py"}
    imports = re.compile(r"^\s*(?:from|import) (opentelemetry|tiltyard\.telemetry\.otel)", re.MULTILINE)
    found = {
        str(path.relative_to(source))
        for path in source.rglob("*.py")
        if imports.search(path.read_text(encoding="utf-8"))
    }
    assert found == with_it  # and these two are loaded by name, where there is a collector


def test_a_collector_that_is_away_costs_spans_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tiltyard.telemetry.otel.CLOSE_WITHIN_S", 0.1)
    with collector() as at:
        url = at.url
    spans_of(opened(endpoint=url))  # returns


@pytest.mark.parametrize(("text", "said"), [
    ('endpoint = "127.0.0.1:4318"', "telemetry.endpoint: '127.0.0.1:4318' is no URL of a collector; write one such as http://127.0.0.1:4318"),
    ('endpoint = "http://c:4318/v1/traces"', "telemetry.endpoint: write the collector's base URL; /v1/traces and /v1/logs are added to it"),
    ("endpoint = 5", "telemetry.endpoint: this is 5; it must be text in quotes"),
    ('headers = { "a b" = "X" }', "telemetry.headers: 'a b' is no name of a header"),
    ('headers = { x-key = "s3cret-value" }', "telemetry.headers: x-key must name the environment variable that holds its value, "
     "such as COLLECTOR_KEY; what stands there now is no name of one"),
    ("sample_ratio = 1.5", "telemetry.sample_ratio: this is 1.5; it must be at most 1"),
    ('content = "yes"', "telemetry.content: this is 'yes'; it must be 'never' or 'unencrypted-and-never-erased'"),
    ('names = "new"', "telemetry.names: this is 'new'; it must be 'both', 'current' or 'legacy'"),
    ("endpiont = 1", "telemetry.endpiont: there is no key endpiont here; known: endpoint, headers, sample_ratio, service_name, "
     "names, content, evaluations"),
    ('level = "info"\n[log]\nformat = "xml"', "telemetry.level: there is no key level here; known: endpoint, headers, sample_ratio, "
     "service_name, names, content, evaluations"),
    ('[log]\nformat = "xml"', "log.format: this is 'xml'; it must be 'text' or 'json'"),
])  # fmt: skip
def test_a_mistake_in_the_settings_names_the_key_and_what_should_stand_there(text: str, said: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        parse(f"{BASE}[telemetry]\n{text}", "there.toml")
    assert refused.value.message == f"there.toml: {said}"
    assert "s3cret" not in refused.value.message


@pytest.mark.parametrize("value", [
    "", "00-0-0-0", PARENT.traceparent.upper(), "ff" + PARENT.traceparent[2:],
    f"00-{'0' * 32}-00f067aa0ba902b7-01", f"00-{'1' * 32}-{'0' * 16}-01", PARENT.traceparent + "-x",
])  # fmt: skip
def test_a_malformed_traceparent_is_none(value: str) -> None:
    assert read_trace(value) is None
