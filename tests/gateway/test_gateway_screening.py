"""What a tenant's terms say about personal data holds for what leaves the gateway, not only for what it writes."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import httpx2
import orjson
import pytest
from gateway_stage import staged

from tiltyard.events.log import EventLog
from tiltyard.events.schema import GenerationFinished
from tiltyard.router.tenants import TenantTerms

REDACTING = {"default": TenantTerms(personal_data="redact")}


class Screened(NamedTuple):
    text: str
    counts: dict[str, int]


def screen(text: str) -> Screened:
    return Screened(text.replace("Ann", "[name]"), {"name": text.count("Ann")})


def test_a_worker_is_sent_what_was_screened_and_so_is_the_vault(tmp_path: Path) -> None:
    with (
        EventLog.open(tmp_path / "log.db", keys=tmp_path / "keys.db") as log,
        staged(log, tmp_path, tenants=REDACTING, screens=lambda policy: screen) as stage,
    ):
        body = {"model": "chat", "messages": [{"role": "user", "content": "Ann asks"}]}
        answer = httpx2.post(stage.url + "/v1/chat/completions", json=body).json()
        assert answer["choices"][0]["message"]["content"] == "[name] asks"
        assert b"Ann" not in orjson.dumps(stage.workers[0].bodies)
        (event,) = [e.data for e in log.read() if isinstance(e.data, GenerationFinished)]
        assert event.prompt is not None
        assert b"Ann" not in log.own_words("test").read(event.prompt)


TOOL = {
    "type": "function",
    "function": {
        "name": "write",
        "description": "Writes to Ann",
        "parameters": {"type": "object", "properties": {"Ann": {"enum": ["Ann", "Bob"]}}},
    },
}


@pytest.mark.parametrize(
    ("path", "more"),
    [
        ("chat/completions", {"tools": [TOOL]}),
        ("chat/completions", {"stop": ["Ann"], "bad_words": ["Ann"]}),
        (
            "chat/completions",
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "Ann", "description": "Ann", "schema": {"const": ["Ann"]}},
                }
            },
        ),
        ("chat/completions", {"structured_outputs": {"choice": ["Ann", "Bob"]}}),
        (
            "chat/completions",
            {
                "messages": [
                    {"role": "user", "content": "x"},
                    {
                        "role": "assistant",
                        "tool_calls": [{"id": "Ann", "function": {"name": "f", "arguments": "{}"}}],
                    },
                    {"role": "tool", "tool_call_id": "Ann", "content": "x"},
                ]
            },
        ),
        ("responses", {"metadata": {"Ann": "Ann"}, "tools": [{**TOOL["function"], "type": "function"}]}),  # type: ignore[dict-item]
    ],
    ids=["tools", "stops", "schema", "choice", "call ids", "metadata"],
)
def test_no_part_of_a_request_is_left_out(tmp_path: Path, path: str, more: dict[str, object]) -> None:
    with (
        EventLog.open(tmp_path / "log.db", keys=tmp_path / "keys.db") as log,
        staged(log, tmp_path, tenants=REDACTING, screens=lambda policy: screen) as stage,
    ):
        asked = {"input": "x"} if path == "responses" else {"messages": [{"role": "user", "content": "x"}]}
        reply = httpx2.post(f"{stage.url}/v1/{path}", json={"model": "chat", **asked, **more})
        assert reply.status_code == 200, reply.text
        assert b"Ann" not in orjson.dumps(stage.workers[0].bodies)
        assert b"[name]" in orjson.dumps(stage.workers[0].bodies) or path == "responses"
        (event,) = [e.data for e in log.read() if isinstance(e.data, GenerationFinished)]
        assert event.prompt is not None
        assert b"Ann" not in log.own_words("test").read(event.prompt)
        assert "Ann" not in event.model_dump_json()


@pytest.mark.parametrize("form", ["regex", "grammar"])
def test_what_cannot_be_redacted_without_meaning_something_else_is_refused(tmp_path: Path, form: str) -> None:
    with (
        EventLog.open(tmp_path / "log.db", keys=tmp_path / "keys.db") as log,
        staged(log, tmp_path, tenants=REDACTING, screens=lambda policy: screen) as stage,
    ):
        asked = {"type": form, form: 'start: "Ann"' if form == "grammar" else "Ann|Bob"}
        body = {"model": "chat", "messages": [{"role": "user", "content": "x"}], "response_format": asked}
        reply = httpx2.post(f"{stage.url}/v1/chat/completions", json=body)
        assert reply.status_code == 400
        assert reply.json()["error"]["param"] == f"response_format.{form}"


def test_texts_are_screened_before_they_become_vectors(tmp_path: Path) -> None:
    with (
        EventLog.open(tmp_path / "log.db", keys=tmp_path / "keys.db") as log,
        staged(log, tmp_path, tenants=REDACTING, screens=lambda policy: screen) as stage,
    ):
        httpx2.post(stage.url + "/v1/embeddings", json={"model": "chat", "input": ["Ann asks", "Bob"]})
        assert stage.workers[0].bodies[-1]["input"] == ["[name] asks", "Bob"]
        asked = len(stage.workers[0].bodies)
        refused = httpx2.post(stage.url + "/v1/embeddings", json={"model": "chat", "input": [[1, 2]]})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "input")
        assert len(stage.workers[0].bodies) == asked
