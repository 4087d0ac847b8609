"""Conversations over several real workers: each goes on where its blocks are, and where one is gone, anywhere."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from itertools import pairwise
from pathlib import Path

import httpx2
import uvicorn

from tiltyard.events.log import EventLog
from tiltyard.events.schema import GenerationFinished
from tiltyard.fleet.launcher import LocalLauncher
from tiltyard.fleet.registry import Registry
from tiltyard.gateway.app import create_gateway
from tiltyard.identity.declaration import IdentityDeclaration
from tiltyard.identity.manifest import DefaultSampling
from tiltyard.router.router import Router
from tiltyard.wire.worker import WorkerSpec

CONVERSATIONS, TURNS = 4, 3


def spec(shared_data: Path, directory: Path) -> WorkerSpec:
    return WorkerSpec(
        worker="tales",
        port=0,
        ready_file=str(directory / "tales.ready"),
        model_path=str(shared_data / "serving/gguf/stories260K/stories260K.gguf"),
        identities={
            "tales": IdentityDeclaration(
                model="m", chat_template="off", sampling=DefaultSampling(temperature=0.0, max_tokens=12)
            )
        },
        threads=1,
        kv_memory_bytes=16 << 20,
        identity_store=str(directory / "identities"),
    )


async def test_a_conversation_goes_on_where_its_blocks_are_and_elsewhere_when_that_worker_dies(
    shared_data: Path, tmp_path: Path
) -> None:
    with EventLog.open(tmp_path / "log.db", keys=tmp_path / "keys.db") as log:
        registry = Registry()
        launcher = LocalLauncher(registry, run_directory=tmp_path / "run")
        await launcher.start([spec(shared_data, tmp_path)], 2)
        server = uvicorn.Server(
            uvicorn.Config(create_gateway(router=Router(registry), log=log), port=0, log_level="warning")
        )
        serving = asyncio.create_task(server.serve())
        while not server.started:  # noqa: ASYNC110 - uvicorn has no event for it
            await asyncio.sleep(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        try:
            async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as http:
                told = [
                    [{"role": "user", "content": f"Tale {number}. " + "Once there was a little dog. " * 8}]
                    for number in range(CONVERSATIONS)
                ]
                events: list[list[GenerationFinished]] = [[] for _ in told]

                async def turn(number: int) -> None:
                    answer = await http.post(
                        "/v1/chat/completions", json={"model": "tales", "messages": told[number]}
                    )
                    body = answer.json()
                    assert answer.status_code == 200, body
                    told[number] += [body["choices"][0]["message"], {"role": "user", "content": "And then?"}]
                    event = log.generation(body["id"])
                    assert isinstance(event, GenerationFinished)
                    events[number].append(event)

                for _ in range(TURNS):
                    for number in range(CONVERSATIONS):
                        await turn(number)
                for turns in events:
                    assert len({event.worker for event in turns}) == 1
                    for before, after in pairwise(turns):
                        assert after.cached_tokens >= before.prompt_tokens // 32 * 32 > 0
                assert len({turns[0].worker for turns in events}) == 2  # and they are spread
                name = events[0][0].worker
                ready = tmp_path / f"{name}.ready"
                os.kill(int(json.loads(ready.read_bytes())["pid"]), signal.SIGKILL)
                await turn(0)
                assert events[0][-1].worker != name
                assert events[0][-1].error is None
        finally:
            server.should_exit = True
            await serving
            await launcher.stop(drain_s=0)
            await registry.aclose()
