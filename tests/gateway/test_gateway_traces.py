"""The gateway's spans, as a collector gets them; names by semantic-conventions-genai 0.1.0 and, legacy, semantic-conventions 1.36."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
from gateway_stage import Stage, staged

from otlp_collector import SpanSeen, collector
from tiltyard.cli.screening import screens
from tiltyard.cli.settings import load_settings
from tiltyard.events.log import EventLog
from tiltyard.events.schema import GenerationFinished
from tiltyard.gateway.keyring import KeyRing
from tiltyard.router.tenants import TenantTerms
from tiltyard.telemetry.otel import OtelTracing
from tiltyard.wire.telemetry import TelemetrySettings

# The W3C's own example.
TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT = {"traceparent": f"00-{TRACE}-{SPAN}-01", "tracestate": "vendor=1"}
CONTENT = ("gen_ai.input.messages", "gen_ai.output.messages", "gen_ai.prompt", "gen_ai.completion")


class Traced:
    """A gateway with a collector; `spans` ends it."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage

    def ask(
        self, words: str = "hello", headers: dict[str, str] | None = None, **more: Any
    ) -> httpx2.Response:
        body = {"model": "chat", "messages": [{"role": "user", "content": words}], "seed": 7, **more}
        return httpx2.post(f"{self.stage.url}/v1/chat/completions", json=body, headers=headers or {})


@contextmanager
def traced(tmp_path: Path, seen: list[SpanSeen], workers: int = 1, **more: Any) -> Iterator[Traced]:
    """Ask inside the block; after it `seen` has the spans."""
    gateway = {name: more.pop(name) for name in ("tenants", "screens") if name in more}
    with collector() as at, EventLog.open(tmp_path / "log.db", keys=tmp_path / "keys.db") as log:
        settings = TelemetrySettings(endpoint=at.url, **more)
        tracing = OtelTracing(settings, process="gateway", instance="here")
        with staged(log, tmp_path, workers, tracing=tracing, **gateway) as stage:
            yield Traced(stage)
        tracing.close()
        seen += at.spans


def named(seen: list[SpanSeen], name: str) -> SpanSeen:
    (found,) = [span for span in seen if span.name == name]
    return found


def test_a_request_is_four_spans_below_its_clients_and_its_event_names_the_generations(
    tmp_path: Path,
) -> None:
    seen: list[SpanSeen] = []
    with traced(tmp_path, seen) as yard:
        answer = yard.ask(headers=PARENT)
        stored = yard.stage.log.find(GenerationFinished, subject=answer.json()["id"])
        (handed_on,) = yard.stage.workers[0].traces
    door, chat, choice, ask = (
        named(seen, name)
        for name in ("POST /v1/chat/completions", "chat chat", "choose worker", "ask stand-in-0")
    )
    assert len(seen) == 4
    assert {span.trace for span in seen} == {TRACE}
    assert [door.parent, chat.parent, choice.parent, ask.parent] == [SPAN, door.id, chat.id, chat.id]
    assert (door.kind, chat.kind, ask.kind) == (2, 1, 3)  # server, internal, client
    assert stored is not None
    assert stored.traceparent == f"00-{TRACE}-{chat.id}-01"
    assert handed_on == {"traceparent": f"00-{TRACE}-{ask.id}-01", "tracestate": "vendor=1"}
    assert all(span.begin_ns <= span.end_ns for span in seen)
    assert chat.resource["service.name"] == "tiltyard"
    assert chat.resource["service.instance.id"] == "here"


def test_the_generations_span_has_the_names_of_the_conventions_current_and_legacy(tmp_path: Path) -> None:
    seen: list[SpanSeen] = []
    with traced(tmp_path, seen) as yard:
        answer = yard.ask(temperature=0.5, max_tokens=8, top_k=3).json()
    attributes = named(seen, "chat chat").attributes
    usage, first_s = answer["usage"], attributes.pop("gen_ai.response.time_to_first_chunk")
    assert isinstance(first_s, float)
    for own in ("tiltyard.behaviour", "tiltyard.deployment"):
        assert str(attributes.pop(own)).startswith("sha256:")
    assert attributes == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "tiltyard",
        "gen_ai.system": "tiltyard",
        "gen_ai.request.model": "chat",
        "gen_ai.request.stream": False,
        "gen_ai.request.choice.count": 1,
        "gen_ai.request.seed": 7,
        "gen_ai.openai.request.seed": 7,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 0.9,
        "gen_ai.request.top_k": 3,
        "gen_ai.request.max_tokens": 8,
        "gen_ai.request.frequency_penalty": 0.0,
        "gen_ai.request.presence_penalty": 0.0,
        "gen_ai.output.type": "text",
        "gen_ai.openai.request.response_format": "text",
        "gen_ai.response.id": answer["id"],
        "gen_ai.response.model": "plain",
        "gen_ai.response.finish_reasons": ["stop"],
        "gen_ai.usage.input_tokens": usage["prompt_tokens"],
        "gen_ai.usage.prompt_tokens": usage["prompt_tokens"],
        "gen_ai.usage.output_tokens": usage["completion_tokens"],
        "gen_ai.usage.completion_tokens": usage["completion_tokens"],
        "gen_ai.usage.cache_read.input_tokens": usage["prompt_tokens_details"]["cached_tokens"],
        "tiltyard.endpoint": "chat.completions",
        "tiltyard.worker": "stand-in-0",
        "tiltyard.class": "interactive",
        "tiltyard.tenant": "default",
    }


def test_a_failure_is_told_by_its_code_and_a_second_worker_is_a_second_span(tmp_path: Path) -> None:
    seen: list[SpanSeen] = []
    with traced(tmp_path, seen, workers=2) as yard:
        first, second = yard.stage.workers
        first.state = second.state = "draining"
        assert yard.ask().status_code == 503
        assert yard.ask("!refuse").status_code == 400
        assert yard.ask(model="nobody").status_code == 404
    asked = [span for span in seen if span.name.startswith("ask ")]
    told = ["unavailable", "unavailable", "context_length_exceeded"]
    assert [span.attributes["error.type"] for span in asked] == told
    assert {span.name for span in asked[:2]} == {"ask stand-in-0", "ask stand-in-1"}
    chats = [span for span in seen if span.name == "chat chat"]
    assert [(span.error, span.attributes["error.type"]) for span in chats] == [
        (True, code) for code in told[1:]
    ]
    doors = [span for span in seen if span.name == "POST /v1/chat/completions"]
    assert {span.attributes["http.response.status_code"] for span in doors} == {400, 404, 503}


def test_a_trace_that_its_client_does_not_record_is_not_recorded_and_passed_on(tmp_path: Path) -> None:
    seen: list[SpanSeen] = []
    with traced(tmp_path, seen) as yard:
        yard.ask(headers={"traceparent": f"00-{TRACE}-{SPAN}-00"})
        (handed_on,) = yard.stage.workers[0].traces
    assert seen == []
    assert handed_on["traceparent"].startswith(f"00-{TRACE}-")
    assert handed_on["traceparent"].endswith("-00")


def test_words_stay_here_unless_the_settings_name_what_becomes_of_them(tmp_path: Path) -> None:
    seen: list[SpanSeen] = []
    with traced(tmp_path, seen) as yard:
        yard.ask("the words of a person")
    assert "the words" not in repr(seen)
    assert not [name for span in seen for name in span.attributes if name in CONTENT]


def test_words_that_may_leave_are_those_that_the_tenants_terms_leave(tmp_path: Path) -> None:
    terms = {
        "keeping": TenantTerms(),
        "redacting": TenantTerms(personal_data="redact"),
        "tagging": TenantTerms(personal_data="tag"),
        "silent": TenantTerms(keep_content=False),
    }
    said = "I am ann@example.com."
    seen: list[SpanSeen] = []
    yard_settings = {
        "content": "unencrypted-and-never-erased",
        "tenants": terms,
        "screens": screens(load_settings(None, data_dir=tmp_path)),
    }
    ids: dict[str, str] = {}
    with traced(tmp_path, seen, **yard_settings) as yard:
        ring = KeyRing(yard.stage.log)
        keys = {name: ring.issue(name, ["inference"]).secret for name in terms}
        research = ring.issue("keeping", ["inference", "evaluate"], credential="research").secret
        for name, key in keys.items():
            ids[name] = yard.ask(said, {"x-api-key": key}).json()["id"]
        blind = {"x-api-key": research, "x-tiltyard-blind": "1"}
        ids["of the arena"] = yard.ask(said, blind).json()["id"]
        ids["tagging, nothing found"] = yard.ask("Hello", {"x-api-key": keys["tagging"]}).json()["id"]
    by_id = {str(span.attributes.get("gen_ai.response.id")): span.attributes for span in seen}
    words = {
        name: None
        if CONTENT[0] not in by_id[id_]
        else json.loads(str(by_id[id_][CONTENT[0]]))[0]["parts"][0]["content"]
        for name, id_ in ids.items()
    }
    assert words == {
        "keeping": said,
        "redacting": "I am [EMAIL_1].",
        "tagging": None,
        "silent": None,
        "of the arena": None,
        "tagging, nothing found": "Hello",
    }
    output = json.loads(str(by_id[ids["keeping"]]["gen_ai.output.messages"]))
    assert output == [
        {"role": "assistant", "parts": [{"type": "text", "content": said}], "finish_reason": "stop"}
    ]


def test_embeddings_are_a_span_that_says_what_they_cost_and_a_made_up_model_names_none(
    tmp_path: Path,
) -> None:
    seen: list[SpanSeen] = []
    with traced(tmp_path, seen) as yard:
        at = f"{yard.stage.url}/v1/embeddings"
        used = httpx2.post(at, json={"model": "chat", "input": ["a", "b"]}).json()["usage"]["prompt_tokens"]
        assert httpx2.post(at, json={"model": "made up", "input": "a"}).status_code == 404
    fine, wrong = named(seen, "embeddings chat"), named(seen, "embeddings")
    assert fine.attributes == {
        "gen_ai.operation.name": "embeddings",
        "gen_ai.provider.name": "tiltyard",
        "gen_ai.system": "tiltyard",
        "gen_ai.request.model": "chat",
        "gen_ai.response.model": "plain",
        "gen_ai.usage.input_tokens": used,
        "gen_ai.usage.prompt_tokens": used,
    }
    assert wrong.attributes["error.type"] == "model_not_found"
