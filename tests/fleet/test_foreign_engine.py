"""How often an engine of another kind is asked what."""

from __future__ import annotations

import json
from pathlib import Path

import httpx2
import pytest

from tiltyard.fleet.foreign import SETTLED_S, ForeignEngine
from tiltyard.fleet.registry import STUCK_AFTER_MS, Registry

REPLIES = Path(__file__).parents[1] / "worker" / "replies"
ALL = {"/v1/models", "/version", "/metrics", "/health"}


class Server:
    """A recorded vLLM behind the client's transport."""

    def __init__(self) -> None:
        self.replies = json.loads((REPLIES / "vllm-0.32.0.json").read_text(encoding="utf-8"))
        self.asked: list[str] = []
        self.up = True
        self.http = httpx2.AsyncClient(transport=httpx2.MockTransport(self.answer))

    def answer(self, request: httpx2.Request) -> httpx2.Response:
        self.asked.append(request.url.path)
        if not self.up:
            raise httpx2.ConnectError("refused", request=request)
        reply = self.replies[request.url.path]
        return httpx2.Response(reply["status"], text=reply["text"])

    async def paths(self, engine: ForeignEngine, now_s: float) -> set[str]:
        self.asked.clear()
        await engine.ask(self.http, "w", "http://there", now_s)
        assert len(self.asked) == len(set(self.asked))
        return set(self.asked)


async def test_each_second_only_load_and_health_are_asked_and_the_rest_now_and_then() -> None:
    """llm-d-router's `docs/operations.md`: scraping a hundred pods took seven and a half cores."""
    server, engine = Server(), ForeignEngine("vllm", {"it": "tiny"})
    assert await server.paths(engine, 100.0) == ALL
    assert await server.paths(engine, 101.0) == {"/metrics", "/health"}
    assert await server.paths(engine, 101.5 + SETTLED_S) == ALL


async def test_after_a_silence_everything_is_asked_again() -> None:
    server, engine = Server(), ForeignEngine("vllm", {"it": "tiny"})
    await server.paths(engine, 100.0)
    server.up = False
    with pytest.raises(httpx2.ConnectError):
        await engine.ask(server.http, "w", "http://there", 101.0)
    server.up = True
    assert await server.paths(engine, 102.0) == ALL


async def test_an_engine_whose_tokens_stand_still_with_requests_running_is_hung() -> None:
    """vLLM #39863: /health went on saying 200."""
    server, engine = Server(), ForeignEngine("vllm", {"it": "tiny"})
    server.replies["/metrics"] = server.replies["/metrics under load"]
    registry = Registry()
    registry.add("w", "http://there", ["it"], engine)
    (worker,) = registry.workers
    for now_s, hung in ((100.0, False), (101.0, False), (100.5 + STUCK_AFTER_MS / 1e3, True)):
        status = await engine.ask(server.http, "w", "http://there", now_s)
        registry._observe(worker, status)
        assert worker.stuck is hung
    assert not worker.alive
    assert worker.silent_s > 0
    await registry.aclose()
