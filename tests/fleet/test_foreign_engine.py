"""How often an engine of another kind is asked what."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import httpx2
import pytest

from tiltyard.fleet.foreign import SETTLED_S, ForeignEngine
from tiltyard.fleet.registry import STUCK_AFTER_MS, Registry
from tiltyard.wire.worker import WorkerStatus

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


async def test_of_two_that_would_be_one_name_at_once_one_is_and_stays_it() -> None:
    server = Server()
    registry = Registry()

    async def recorded(_: WorkerStatus) -> None:
        await asyncio.sleep(0)

    registry.before_serving = recorded
    statuses = {}
    for name, version in (("a", "0.32.0"), ("b", "0.33.0")):
        server.replies["/version"]["text"] = json.dumps({"version": version})
        engine = ForeignEngine("vllm", {"it": "tiny"})
        registry.add(name, f"http://{name}", ["it"], engine)
        statuses[name] = await engine.ask(server.http, name, f"http://{name}", 100.0)
    a, b = registry.workers
    for _ in range(3):
        await asyncio.gather(*(registry._take(w, f"http://{w.name}", statuses[w.name]) for w in (b, a)))
        assert [worker.name for worker in registry.serving("it")] == ["b"]
        assert "would serve another model as it than b does" in a.note
    registry.remove("b")
    await registry._take(a, "http://a", statuses["a"])
    assert [worker.name for worker in registry.serving("it")] == ["a"]
    await registry._take(b, "http://b", statuses["b"])  # an answer that came too late
    assert [worker.name for worker in registry.workers] == ["a"]
    await registry.aclose()
