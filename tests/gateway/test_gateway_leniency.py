"""The switch that drops unknown fields instead of refusing them, and says which."""

from __future__ import annotations

from pathlib import Path

import httpx2
import pytest
from gateway_stage import ALIASES, Stage, served

from tiltyard.events.log import EventLog
from tiltyard.gateway.app import create_gateway
from tiltyard.router.router import Router

DROP = {"x-tiltyard-unknown-fields": "drop"}
CHAT = {"model": "chat", "messages": [{"role": "user", "content": "hi"}]}


@pytest.mark.parametrize(
    ("path", "body", "dropped"),
    [
        ("/v1/chat/completions", {**CHAT, "foo": 1, "guided_json": {}}, "foo, guided_json"),
        (
            "/v1/chat/completions",
            {"model": "chat", "messages": [{"role": "user", "content": "hi", "name": "Eva", "a b": 1}]},
            "messages[0].a%20b, messages[0].name",
        ),
        ("/v1/completions", {"model": "chat", "prompt": "hi", "best_of": 3}, "best_of"),
        ("/v1/responses", {"model": "chat", "input": "hi", "background": True, "x": None}, "x, background"),
        ("/v1/messages", {**CHAT, "max_tokens": 9, "thinking": {"type": "enabled"}}, "thinking"),
    ],
)
def test_fields_that_are_dropped_on_demand_are_listed(
    stage: Stage, path: str, body: dict[str, object], dropped: str
) -> None:
    """vLLM #53975: `guided_json` was ignored silently."""
    refused = httpx2.post(stage.url + path, json=body)
    assert refused.status_code == 400
    lenient = httpx2.post(stage.url + path, json=body, headers=DROP)
    assert lenient.status_code == 200, lenient.text
    assert sorted(lenient.headers["x-tiltyard-dropped-fields"].split(", ")) == sorted(dropped.split(", "))
    assert "hi" in lenient.text


def test_a_stream_lists_them_in_its_head(stage: Stage) -> None:
    answer = httpx2.post(
        stage.url + "/v1/chat/completions", json={**CHAT, "stream": True, "foo": 1}, headers=DROP
    )
    assert answer.headers["x-tiltyard-dropped-fields"] == "foo"
    assert answer.text.endswith("data: [DONE]\n\n")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": 3, "foo": 1}, "temperature"),
        ({"messages": [{"role": "poet", "content": "hi"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content"),
        ({f"f{i}": 1 for i in range(65)}, "f64"),
    ],
)
def test_what_is_no_unknown_field_stays_refused(stage: Stage, fields: dict[str, object], param: str) -> None:
    answer = httpx2.post(stage.url + "/v1/chat/completions", json={**CHAT, **fields}, headers=DROP)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


def test_nothing_is_said_where_nothing_was_dropped(stage: Stage) -> None:
    answer = httpx2.post(stage.url + "/v1/chat/completions", json=CHAT, headers=DROP)
    assert "x-tiltyard-dropped-fields" not in answer.headers


def test_the_switch_is_on_or_off(stage: Stage) -> None:
    answer = httpx2.post(
        stage.url + "/v1/chat/completions", json=CHAT, headers={"x-tiltyard-unknown-fields": "maybe"}
    )
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "x-tiltyard-unknown-fields")


def test_a_server_can_be_lenient_and_a_request_strict(stage: Stage, tmp_path: Path) -> None:
    with EventLog.open(tmp_path / "log.db", keys=tmp_path / "keys.db") as log:
        app = create_gateway(router=Router(stage.registry, ALIASES), log=log, unknown_fields="drop")
        with served(app) as url:
            body = {**CHAT, "foo": 1}
            lenient = httpx2.post(url + "/v1/chat/completions", json=body)
            strict = httpx2.post(
                url + "/v1/chat/completions", json=body, headers={"x-tiltyard-unknown-fields": "refuse"}
            )
    assert (lenient.status_code, lenient.headers["x-tiltyard-dropped-fields"]) == (200, "foo")
    assert (strict.status_code, strict.json()["error"]["param"]) == (400, "foo")
