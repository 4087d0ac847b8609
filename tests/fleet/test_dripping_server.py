"""Servers that would keep a gateway busy with themselves: one that answers a byte at a time, one that lists too much."""

from __future__ import annotations

import asyncio

import pytest

from tiltyard.errors import ConfigurationError
from tiltyard.fleet import registry as registry_module
from tiltyard.fleet.registry import Registry
from tiltyard.worker.adapters.declared import MOST_MODELS, names_of
from tiltyard.worker.adapters.facts import EngineFacts, EngineLoad, ServedModel


async def test_a_server_that_drips_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry_module, "ASK_WHOLE_S", 0.3)

    async def drip(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 1000000\r\n\r\n")
        try:
            while not writer.is_closing():
                writer.write(b" ")
                await writer.drain()
                await asyncio.sleep(0.02)
        except ConnectionError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(drip, "127.0.0.1", 0)
    registry = Registry()
    try:
        port = server.sockets[0].getsockname()[1]
        registry.add("dripping", f"http://127.0.0.1:{port}", (), None)
        async with asyncio.timeout(60):
            await registry.refresh()
        worker = registry.worker("dripping")
        assert worker is not None
        assert worker.lease.unanswered == 1
        assert worker.note == "does not answer: TimeoutError"
    finally:
        await registry.aclose()
        server.close()


def test_of_a_server_with_thousands_of_models_those_that_are_named_are_taken() -> None:
    models = tuple(ServedModel(f"m{number}", None) for number in range(20_000))
    facts = EngineFacts("openai", "1", models, EngineLoad(), healthy=True)
    with pytest.raises(
        ConfigurationError, match=f"lists 20,000 models; at most {MOST_MODELS} are taken unasked"
    ):
        names_of(facts)
    assert names_of(facts, {"plum": "m7"}) == {"plum": "m7"}
