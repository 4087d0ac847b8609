"""Everything around the answers: errors, hosts, limits, health, models, metrics, the schema."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Iterator

import httpx2
import openai
import pytest
from gateway_stage import Stage
from jsonschema import Draft202012Validator
from openai import OpenAI
from prometheus_client.parser import text_string_to_metric_families
from starlette.types import Message

from tiltyard.client import ModelClient
from tiltyard.events.schema import GenerationFinished
from tiltyard.fleet.registry import Registry
from tiltyard.gateway.app import create_gateway
from tiltyard.gateway.body import MAX_BODY_BYTES
from tiltyard.router.router import Router

CHAT = "/v1/chat/completions"
OK = {"model": "chat", "messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture
def client(stage: Stage) -> Iterator[OpenAI]:
    with OpenAI(base_url=stage.url + "/v1", api_key="any") as client:
        yield client


def error_of(response: httpx2.Response) -> dict[str, str | None]:
    body = response.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    error: dict[str, str | None] = body["error"]
    return error


@pytest.mark.parametrize(
    ("body", "status", "code", "param"),
    [
        ({**OK, "temprature": 1}, 400, "unknown_parameter", "temprature"),
        ({**OK, "tools": [{"type": "function"}]}, 400, "missing_required_parameter", "tools[0].function"),
        ({**OK, "temperature": 3}, 400, "invalid_value", "temperature"),
        ({"model": "chat"}, 400, "missing_required_parameter", "messages"),
        ({**OK, "model": "gpt-9"}, 404, "model_not_found", "model"),
    ],
)
def test_a_bad_request_names_its_field_in_openais_shape(
    stage: Stage, body: dict[str, object], status: int, code: str, param: str
) -> None:
    response = httpx2.post(stage.url + CHAT, json=body)
    error = error_of(response)
    assert (response.status_code, error["code"], error["param"]) == (status, code, param)
    assert error["type"] == "invalid_request_error"
    assert param in str(error["message"])
    assert response.headers["x-request-id"]


def test_the_openai_package_sees_the_field_it_got_wrong(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(
            model="chat", messages=[{"role": "user", "content": "x"}], extra_body={"guided_json": {}}
        )
    assert (caught.value.param, caught.value.code) == ("guided_json", "unsupported_parameter")
    with pytest.raises(openai.NotFoundError, match="available: chat, plain, warm"):
        client.chat.completions.create(model="gpt-9", messages=[{"role": "user", "content": "x"}])


def test_what_is_not_json_is_refused_with_the_place(stage: Stage) -> None:
    response = httpx2.post(stage.url + CHAT, content=b'{"model": "chat",}')
    assert (response.status_code, error_of(response)["code"]) == (400, "invalid_json")
    assert "column 17" in str(error_of(response)["message"])


@pytest.mark.parametrize("chunked", [True, False])
def test_a_body_over_the_limit_is_refused_with_the_limit(stage: Stage, chunked: bool) -> None:
    data = b" " * (MAX_BODY_BYTES + 1)
    with httpx2.Client() as client:
        response = client.post(stage.url + CHAT, content=iter([data]) if chunked else data)
    assert (response.status_code, error_of(response)["code"]) == (413, "body_too_large")
    assert "4,194,304" in str(error_of(response)["message"])


def test_a_wrong_path_and_a_wrong_method_answer_in_the_same_shape(stage: Stage) -> None:
    response = httpx2.get(stage.url + "/v1/nothing")
    assert (response.status_code, error_of(response)["code"]) == (404, "unknown_url")
    response = httpx2.get(stage.url + CHAT)
    assert (response.status_code, error_of(response)["code"]) == (405, "method_not_allowed")
    assert response.headers["allow"] == "POST"


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({"host": "evil.example"}, "host_refused"),
        ({"host": "127.0.0.1.evil.example:8000"}, "host_refused"),
        ({"host": ""}, "host_refused"),
        ({"host": "[::1"}, "host_refused"),
        ({"host": "[::1]x"}, "host_refused"),
        ({"origin": "http://["}, "origin_refused"),
        ({"origin": "https://evil.example"}, "origin_refused"),
        ({"origin": "null"}, "origin_refused"),
        ({"origin": "file://127.0.0.1"}, "origin_refused"),
    ],
)
def test_foreign_hosts_and_origins_are_refused(stage: Stage, headers: dict[str, str], code: str) -> None:
    response = httpx2.post(stage.url + CHAT, json=OK, headers=headers)
    assert (response.status_code, error_of(response)["code"]) == (403, code)


@pytest.mark.parametrize(
    "headers", [{"host": "LOCALHOST:1"}, {"host": "[::1]:1"}, {"origin": "http://localhost:3"}]
)
def test_our_own_hosts_and_origins_are_served(stage: Stage, headers: dict[str, str]) -> None:
    assert httpx2.post(stage.url + CHAT, json=OK, headers=headers).status_code == 200


def test_a_request_id_is_kept_if_it_is_harmless_and_made_otherwise(stage: Stage) -> None:
    kept = httpx2.get(stage.url + "/health", headers={"x-request-id": "req-42"}).headers["x-request-id"]
    made = httpx2.get(stage.url + "/health", headers={"x-request-id": "a" * 999}).headers["x-request-id"]
    assert kept == "req-42"
    assert len(made) == 36


def test_a_half_sent_request_leaves_no_trace(stage: Stage) -> None:
    host, port = stage.url.removeprefix("http://").split(":")
    before = stage.log.last_sequence()
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 99\r\n\r\n{"
        )
    assert httpx2.get(stage.url + "/health").status_code == 200
    assert stage.log.last_sequence() == before


async def test_a_client_that_hangs_up_while_it_sends_is_no_unexpected_error(stage: Stage) -> None:
    app = create_gateway(router=Router(Registry()), log=stage.log)
    heard = iter([{"type": "http.request", "body": b"{", "more_body": True}, {"type": "http.disconnect"}])

    async def receive() -> Message:
        return next(heard)

    async def send(_message: Message) -> None:
        """Nobody is there."""

    scope = {
        "type": "http", "method": "POST", "path": CHAT, "query_string": b"", "headers": [(b"host", b"localhost")],
    }  # fmt: skip
    await app(scope, receive, send)  # raised ClientDisconnect, which the server logs with a traceback


def test_models_are_listed_with_exactly_what_they_mean(stage: Stage, client: OpenAI) -> None:
    models = list(client.models.list())
    assert [model.id for model in models] == ["chat", "plain", "warm"]
    assert models[0].owned_by == "testers"
    shown = client.models.retrieve("chat").model_dump()["tiltyard"]
    assert shown["identity"] == "plain"
    assert shown["behaviour"] == stage.workers[0].identities["plain"].behaviour
    assert (shown["available"], shown["max_context_tokens"]) == (True, 2048)
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-9")


def test_health_ready_and_the_way_there(stage: Stage) -> None:
    assert httpx2.get(stage.url + "/health").json() == {"status": "ok"}
    ready = httpx2.get(stage.url + "/ready")
    assert (ready.status_code, ready.json()["missing"]) == (200, [])
    stage.registry.failed("stand-in-0", "test", gone=True)
    try:
        ready = httpx2.get(stage.url + "/ready")
        assert (ready.status_code, ready.json()["missing"]) == (503, ["plain", "warm"])
        assert ready.json()["workers"] == {
            "stand-in-0": {"alive": False, "note": "its circuit is open: test"}
        }
        response = httpx2.post(stage.url + CHAT, json=OK)
        assert (response.status_code, error_of(response)["code"]) == (503, "unavailable")
        assert response.headers["retry-after"] == "2"
    finally:
        stage.registry.succeeded("stand-in-0")


def metric(stage: Stage, name: str, **labels: str) -> float:
    text = httpx2.get(stage.url + "/metrics").text
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == name and all(sample.labels.get(k) == v for k, v in labels.items()):
                return sample.value
    return 0.0


def test_metrics_count_what_was_answered(stage: Stage) -> None:
    labels = {"endpoint": "chat.completions", "identity": "plain", "outcome": "stop"}
    before = metric(stage, "tiltyard_generations_total", **labels)
    refused = metric(stage, "tiltyard_errors_total", code="unknown_parameter")
    tokens = metric(stage, "tiltyard_cached_prompt_tokens_total", identity="plain")
    httpx2.post(stage.url + CHAT, json=OK)
    httpx2.post(stage.url + CHAT, json={**OK, "x": 1})
    assert metric(stage, "tiltyard_generations_total", **labels) == before + 1
    assert metric(stage, "tiltyard_errors_total", code="unknown_parameter") == refused + 1
    assert metric(stage, "tiltyard_cached_prompt_tokens_total", identity="plain") == tokens + 4
    assert metric(stage, "tiltyard_worker_up", worker="stand-in-0") == 1
    assert metric(stage, "tiltyard_worker_unfinished_tokens", worker="stand-in-0") == 0
    assert metric(stage, "tiltyard_generations_in_flight", identity="plain") == 0


def test_the_metrics_do_not_tell_who_answers_a_battle(stage: Stage) -> None:
    def named() -> list[str]:
        lines = httpx2.get(stage.url + "/metrics").text.splitlines()
        return [line for line in lines if any(name in line for name in ("plain", "warm", "stand-in-0"))]

    blind = {"endpoint": "chat.completions", "identity": "blind", "outcome": "cancelled"}
    ended = metric(stage, "tiltyard_generations_total", **blind)
    before = named()
    messages = [{"role": "user", "content": "!count 100000"}]

    async def battle() -> None:
        async with ModelClient(stage.url, blind=True) as client, client.stream_chat("warm", messages) as side:
            await anext(aiter(side))
            assert named() == before
            assert metric(stage, "tiltyard_generations_in_flight", identity="blind") == 1
            assert metric(stage, "tiltyard_worker_unfinished_tokens", worker="blind") > 0
            assert side.identity == stage.workers[0].identities["warm"].behaviour

    first = stage.log.last_sequence()
    asyncio.run(battle())
    while metric(stage, "tiltyard_generations_total", **blind) == ended or stage.log.last_sequence() == first:
        pass  # the gateway notices that its client has gone, and writes it down
    assert named() == before
    (event,) = stage.log.read(after=first)
    assert isinstance(event.data, GenerationFinished)
    assert event.data.identity == "warm"


def test_the_schema_describes_the_requests(stage: Stage) -> None:
    schema = httpx2.get(stage.url + "/openapi.json").json()
    assert {CHAT, "/v1/completions", "/v1/models", "/health", "/ready", "/metrics"} <= set(schema["paths"])
    body = schema["paths"][CHAT]["post"]["requestBody"]["content"]["application/json"]["schema"]
    validator = Draft202012Validator({**body, "components": schema["components"]})
    validator.validate(OK)
    assert not validator.is_valid({**OK, "temperature": 3})
    assert not validator.is_valid({**OK, "unknown": 1})
    headers = {parameter["name"] for parameter in schema["paths"][CHAT]["post"]["parameters"]}
    assert headers == {
        "idempotency-key",
        "last-event-id",
        "x-tiltyard-channel",
        "x-tiltyard-class",
        "x-tiltyard-deadline-ms",
        "x-tiltyard-group",
        "x-tiltyard-queue-deadline-ms",
        "x-tiltyard-resume-ms",
        "x-tiltyard-session",
        "x-tiltyard-speculation",
        "x-tiltyard-unknown-fields",
    }
    # Every reference leads somewhere.
    names = re.findall(r'"#/components/schemas/([^"]+)"', httpx2.get(stage.url + "/openapi.json").text)
    assert names
    assert set(names) <= set(schema["components"]["schemas"])
