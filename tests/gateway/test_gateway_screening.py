"""What a tenant's terms say about personal data holds for what leaves the gateway, not only for what it writes."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import httpx2
import orjson
from gateway_stage import staged

from tiltyard.events.log import EventLog
from tiltyard.events.schema import GenerationFinished
from tiltyard.router.tenants import TenantTerms


class Screened(NamedTuple):
    text: str
    counts: dict[str, int]


def screen(text: str) -> Screened:
    return Screened(text.replace("Ann", "[name]"), {"name": text.count("Ann")})


def test_a_worker_is_sent_what_was_screened_and_so_is_the_vault(tmp_path: Path) -> None:
    terms = {"default": TenantTerms(personal_data="redact")}
    with (
        EventLog.open(tmp_path / "log.db", keys=tmp_path / "keys.db") as log,
        staged(log, tmp_path, tenants=terms, screens=lambda policy: screen) as stage,
    ):
        body = {"model": "chat", "messages": [{"role": "user", "content": "Ann asks"}]}
        answer = httpx2.post(stage.url + "/v1/chat/completions", json=body).json()
        assert answer["choices"][0]["message"]["content"] == "[name] asks"
        assert b"Ann" not in orjson.dumps(stage.workers[0].bodies)
        (event,) = [e.data for e in log.read() if isinstance(e.data, GenerationFinished)]
        assert event.prompt is not None
        assert b"Ann" not in log.own_words("test").read(event.prompt)
