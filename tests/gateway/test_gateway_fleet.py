"""Engines of others behind the gateway: added by an event, asked in their words, recorded as what they are."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import orjson
import pytest
import uvicorn
from foreign_server import ForeignServer
from gateway_stage import served, worker_spec
from stand_in_worker import StandIn

from tiltyard.errors import ModelRejected
from tiltyard.events.log import EventLog
from tiltyard.events.schema import (
    EventData,
    GenerationFinished,
    IdentityRegistered,
    WorkerAdded,
    WorkerDrained,
    WorkerRemoved,
)
from tiltyard.fleet.breaker import FAILURES, FIRST_BACK_OFF_S
from tiltyard.fleet.membership import Membership
from tiltyard.fleet.records import FleetRecorder
from tiltyard.fleet.registry import Registry
from tiltyard.gateway.app import create_gateway
from tiltyard.identity.store import IdentityStore
from tiltyard.ops.replay import Replayer
from tiltyard.router.router import Router
from tiltyard.worker.host import HostSettings

PATIENCE_S = 20
VLLM, LLAMA = "vllm-0.32.0", "llama.cpp-2026.10"


@dataclass
class House:
    http: httpx2.AsyncClient
    log: EventLog
    router: Router

    @property
    def registry(self) -> Registry:
        return self.router.registry

    async def ask(self, model: str, **more: Any) -> httpx2.Response:
        body = {
            "model": model,
            "messages": [{"role": "user", "content": "the an in the"}],
            "max_tokens": 4,
            "seed": 5,
        }
        return await self.http.post("/v1/chat/completions", json={**body, **more})

    async def serving(self, identity: str, count: int) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while len(self.registry.serving(identity)) != count:  # noqa: ASYNC110 - the log is looked at
                await asyncio.sleep(0.01)

    def happened(self, kind: type[EventData]) -> list[Any]:
        return [event.data for event in self.log.read(types=(kind,))]

    async def tell(self, data: Any) -> None:
        await self.log.append(data, subject=data.worker, source="tiltyard/tests")


@asynccontextmanager
async def house(directory: Path, clock: Callable[[], float] = time.monotonic) -> AsyncIterator[House]:
    """A gateway without workers of its own, that follows its log."""
    with EventLog.open(directory / "log.db", keys=directory / "keys.db") as log:
        registry = Registry(clock=clock)
        registry.before_serving = FleetRecorder(log, IdentityStore(directory / "identities")).joined
        membership = Membership(registry)
        membership.look(log)
        router = Router(registry)
        server = uvicorn.Server(
            uvicorn.Config(create_gateway(router=router, log=log), port=0, log_level="warning")
        )
        tasks = [
            asyncio.create_task(work) for work in (server.serve(), registry.watch(0.1), membership.watch(log))
        ]
        try:
            while not server.started:  # noqa: ASYNC110 - uvicorn has no event for it
                await asyncio.sleep(0.01)
            port = server.servers[0].sockets[0].getsockname()[1]
            async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE_S) as http:
                yield House(http, log, router)
        finally:
            server.should_exit = True
            await tasks[0]
            for task in tasks[1:]:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await registry.aclose()


@asynccontextmanager
async def added(
    directory: Path,
    servers: Sequence[ForeignServer],
    *,
    engine: Any = "vllm",
    model: str = "tiny",
    key_env: str = "",
    clock: Callable[[], float] = time.monotonic,
) -> AsyncIterator[House]:
    """The same with servers that were added as w0, w1, ... and all serve `it`."""
    with ExitStack() as stack:
        urls = [stack.enter_context(served(server.app)) for server in servers]
        async with house(directory, clock) as running:
            for place, url in enumerate(urls):
                await running.tell(
                    WorkerAdded(
                        worker=f"w{place}",
                        url=url,
                        engine=engine,
                        identities={"it": model},
                        key_env=key_env,
                        by="t",
                    )
                )
            await running.serving("it", len(urls))
            yield running


async def test_an_added_engine_answers_in_its_words_and_is_recorded_as_declared(tmp_path: Path) -> None:
    server = ForeignServer(VLLM)
    async with added(tmp_path, [server]) as running:
        answer = await running.ask("it", temperature=0.5)
        assert answer.status_code == 200
        body = answer.json()
        assert (body["model"], body["choices"][0]["finish_reason"]) == ("it", "length")
        assert body["choices"][0]["message"]["content"] == "Q\b\x10P"
        assert {k: body["usage"][k] for k in ("prompt_tokens", "completion_tokens")} == {
            "prompt_tokens": 7, "completion_tokens": 4,
        }  # fmt: skip
        sent = server.asked[-1]
        assert {k: sent[k] for k in ("model", "seed", "temperature", "top_p", "top_k", "max_tokens")} == {
            "model": "tiny", "seed": 5, "temperature": 0.5, "top_p": 1.0, "top_k": 0, "max_tokens": 4,
        }  # fmt: skip
        assert sent["cache_salt"]
        assert not [name for name in server.headers[-1] if name.startswith("x-tiltyard")]
        (event,) = running.happened(GenerationFinished)
        (registered,) = running.happened(IdentityRegistered)
        assert event.behaviour == registered.behaviour == answer.headers["x-tiltyard-identity"]
        assert registered.behaviour_manifest.declared
        assert registered.behaviour_manifest.engine.version == "0.32.0"
        assert (event.worker, event.prompt_tokens, event.completion_tokens) == ("w0", 7, 4)
        assert event.sampling.temperature == 0.5
        assert event.time_to_first_token_ms is not None
        kept = orjson.loads(running.log.own_words("test").read(event.response))["choices"][0]
        assert kept["token_ids"] == [50, 198, 206, 49]
        assert running.router.loads.requests == 0
        kept_manifest = IdentityStore(tmp_path / "identities").get_behaviour(event.behaviour)
        assert kept_manifest == registered.behaviour_manifest
        replayer = Replayer(
            running.log,
            IdentityStore(tmp_path / "identities"),
            lambda _: tmp_path,
            settings=HostSettings(threads=1),
        )
        with pytest.raises(ModelRejected, match=r"answered by vllm 0\.32\.0, which promises no bits"):
            [*replayer.replay(event.generation)]
        (shown,) = (await running.http.get("/v1/fleet")).json()["data"]
        assert (shown["kind"], shown["version"], shown["state"]) == ("vllm", "0.32.0", "ready")
        assert (shown["verified"], shown["requests"], shown["unfinished_tokens"]) == (False, 0, 0)


async def test_what_was_added_survives_a_restart_until_it_is_removed(tmp_path: Path) -> None:
    with served(ForeignServer(LLAMA).app) as url:
        async with house(tmp_path) as running:
            await running.tell(
                WorkerAdded(
                    worker="w", url=url, engine="llama.cpp", identities={"tales": "stories"}, by="ann"
                )
            )
            await running.serving("tales", 1)
            assert (await running.ask("tales")).status_code == 200
        async with house(tmp_path) as running:
            await running.serving("tales", 1)
            await running.tell(WorkerDrained(worker="w", draining=True, by="ann"))
            await running.serving("tales", 0)
            refused = await running.ask("tales")
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "unavailable")
            assert "w: draining, as it was told" in refused.json()["error"]["message"]
        async with house(tmp_path) as running:
            async with asyncio.timeout(PATIENCE_S):
                while not running.registry.workers[0].identities:  # noqa: ASYNC110 - it is asked
                    await asyncio.sleep(0.01)
            assert not running.registry.serving("tales")  # a restart forgets no drain
            await running.tell(WorkerDrained(worker="w", draining=False, by="ann"))
            await running.serving("tales", 1)
            await running.tell(WorkerRemoved(worker="w", by="ann"))
            async with asyncio.timeout(PATIENCE_S):
                while running.registry.workers:  # noqa: ASYNC110 - the log is looked at
                    await asyncio.sleep(0.01)
            assert (await running.ask("tales")).status_code == 404


async def test_a_dead_engine_that_says_done_is_no_answer_and_another_is_asked(tmp_path: Path) -> None:
    """vLLM #57082: recorded from a real vLLM whose engine died: 200, an error frame, then `[DONE]`."""
    dead, well = ForeignServer(VLLM), ForeignServer(VLLM)
    dead.play = "chat, with a dead engine"
    now = 100.0
    async with added(tmp_path, [dead, well], clock=lambda: now) as running:
        for number in range(2 * FAILURES):
            answer = await running.ask("it", stream=bool(number % 2))
            assert answer.status_code == 200
            assert "Q" in answer.text
        # Each was asked once of the dead one at most, until its circuit opened; nothing was recorded twice.
        assert len(dead.asked) == FAILURES
        assert len(well.asked) == 2 * FAILURES
        events = running.happened(GenerationFinished)
        assert [event.worker for event in events] == ["w1"] * 2 * FAILURES
        states = {w["worker"]: w["state"] for w in (await running.http.get("/v1/fleet")).json()["data"]}
        assert states == {"w0": "tripped", "w1": "ready"}
        dead.play, now = "chat", now + FIRST_BACK_OFF_S
        for _ in range(2):
            assert (await running.ask("it")).status_code == 200
        assert len(dead.asked) == FAILURES + 1
        assert running.registry.workers[0].breaker.state(now) == "closed"
        assert running.router.loads.requests == 0


async def test_an_engine_that_never_ends_neither_holds_the_client_nor_its_money(tmp_path: Path) -> None:
    """It ignores `max_tokens`; and one that says that it is done, goes on, and does not close its stream."""
    server = ForeignServer(VLLM)
    piece = {"choices": [{"index": 0, "delta": {"content": "more"}, "token_ids": [7], "finish_reason": None}]}
    frame = f"data: {orjson.dumps(piece).decode()}\n\n"
    async with added(tmp_path, [server]) as running:
        server.replies["chat"] = {"status": 200, "text": frame * 100_000}
        answer = await running.ask("it", max_tokens=3)
        assert answer.json()["choices"][0]["message"]["content"] == "more" * 3
        assert answer.json()["choices"][0]["finish_reason"] == "length"
        assert answer.json()["usage"]["completion_tokens"] == 3
        end = frame.replace("null", '"stop"')
        server.replies["chat"] = {"status": 200, "text": frame + end + "data: [DONE]\n\n" + frame * 3}
        server.lingers_s = PATIENCE_S
        async with asyncio.timeout(PATIENCE_S / 2):
            answer = await running.ask("it", max_tokens=9)
        assert answer.json()["choices"][0]["message"]["content"] == "moremore"
        events = running.happened(GenerationFinished)
        assert [event.completion_tokens for event in events] == [3, 2]


async def test_the_only_engine_being_dead_is_said_with_its_own_words(tmp_path: Path) -> None:
    server = ForeignServer(VLLM)
    server.play = "chat, with a dead engine"
    async with added(tmp_path, [server]) as running:
        answer = await running.ask("it")
        assert answer.status_code == 502
        assert "EngineCore encountered an issue" in answer.json()["error"]["message"]
        streamed = await running.ask("it", stream=True)
        assert streamed.status_code == 502 or "[DONE]" not in streamed.text
        assert len(server.asked) == 2


async def test_a_clients_own_fault_goes_to_nobody_else_and_trips_nothing(tmp_path: Path) -> None:
    one, two = ForeignServer(VLLM), ForeignServer(VLLM)
    one.play = two.play = "too long"
    async with added(tmp_path, [one, two]) as running:
        for _ in range(FAILURES + 1):
            answer = await running.ask("it")
            assert (answer.status_code, answer.json()["error"]["code"]) == (400, "context_length_exceeded")
        assert len(one.asked) + len(two.asked) == FAILURES + 1
        assert len(running.registry.serving("it")) == 2
        refused = await running.ask("it", prompt_logprobs_last=1, prompt_logprobs=1)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "prompt_logprobs_last")
        assert len(one.asked) + len(two.asked) == FAILURES + 1


async def test_the_key_comes_from_the_environment_and_its_refusal_is_not_the_clients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPU_KEY", "open sesame")
    server = ForeignServer(VLLM, key="open sesame")
    async with added(tmp_path, [server], key_env="GPU_KEY") as running:
        assert (await running.ask("it")).status_code == 200
        assert server.headers[-1]["authorization"] == "Bearer open sesame"
        monkeypatch.setenv("GPU_KEY", "another")
        answer = await running.ask("it")
        assert (answer.status_code, answer.json()["error"]["code"]) == (502, "worker_refused_key")
        assert "open sesame" not in str([event.data for event in running.log.read()])


async def test_one_name_is_one_behaviour(tmp_path: Path) -> None:
    """A second server that would answer as something else gets no work under the name."""
    with served(ForeignServer(VLLM).app) as first, served(ForeignServer(LLAMA).app) as second:
        async with house(tmp_path) as running:
            await running.tell(
                WorkerAdded(worker="a", url=first, engine="vllm", identities={"it": "tiny"}, by="t")
            )
            await running.serving("it", 1)
            await running.tell(
                WorkerAdded(worker="b", url=second, engine="llama.cpp", identities={"it": "stories"}, by="t")
            )
            async with asyncio.timeout(PATIENCE_S):
                while "would serve another model" not in running.registry.workers[-1].note:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            assert [worker.name for worker in running.registry.serving("it")] == ["a"]


async def test_a_server_that_stops_answering_loses_its_lease(tmp_path: Path) -> None:
    server = ForeignServer(VLLM)
    async with added(tmp_path, [server]) as running:
        stand_in = StandIn(worker_spec("own", tmp_path))
        assert (await running.http.get("/ready")).json()["ready"]
        server.up = False
        await running.serving("it", 0)
        nothing = await running.http.get("/ready")
        assert (nothing.status_code, nothing.json()["missing"]) == (503, ["it"])
        with served(stand_in.app) as url:  # what is not ours to start does not turn balancers away
            running.registry.announce("own", url, await running.registry.ask(url))
            ready = await running.http.get("/ready")
            assert (ready.status_code, ready.json()["missing"]) == (200, ["it"])
            running.registry.remove("own")
        assert (await running.ask("it")).status_code == 503
        server.up = True
        await running.serving("it", 1)
        assert (await running.ask("it")).status_code == 200


async def test_other_doors_are_passed_on_where_the_engine_has_them(tmp_path: Path) -> None:
    server = ForeignServer(VLLM)
    server.replies["/tokenize"] = {"status": 200, "text": '{"count":1,"max_model_len":512,"tokens":[259]}'}
    vectors = {"object": "list", "model": "tiny", "data": [{"index": 0, "embedding": [0.6, 0.8]}]}
    server.replies["/v1/embeddings"] = {
        "status": 200, "text": orjson.dumps({**vectors, "usage": {"prompt_tokens": 3, "total_tokens": 3}}).decode(),
    }  # fmt: skip
    async with added(tmp_path, [server]) as running:
        counted = await running.http.post("/tokenize", json={"model": "it", "prompt": "the"})
        assert (counted.status_code, counted.json()["tokens"]) == (200, [259])
        assert server.asked[-1]["model"] == "tiny"
        embedded = await running.http.post("/v1/embeddings", json={"model": "it", "input": "the"})
        assert (embedded.status_code, embedded.json()["model"]) == (200, "it")
        assert not [name for name in server.headers[-1] if name.startswith("x-tiltyard")]
        body = {"model": "it", "messages": [{"role": "user", "content": "x"}]}
        refused = await running.http.post("/render", json=body)
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "unsupported_parameter")
        server.replies["/v1/embeddings"]["text"] = "{}"
        broken = await running.http.post("/v1/embeddings", json={"model": "it", "input": "the"})
        assert (broken.status_code, broken.json()["error"]["code"]) == (502, "stream_unreadable")
        assert running.router.loads.requests == 0


async def test_a_worker_of_ours_elsewhere_is_one_of_the_fleet(tmp_path: Path) -> None:
    stand_in = StandIn(worker_spec("far", tmp_path))
    with served(stand_in.app) as url:
        async with house(tmp_path) as running:
            await running.tell(
                WorkerAdded(worker="far", url=url, engine="tiltyard", identities={"plain": "plain"}, by="t")
            )
            await running.serving("plain", 1)
            assert (await running.ask("plain")).status_code == 200
            assert stand_in.served
            (shown,) = (await running.http.get("/v1/fleet")).json()["data"]
            assert (shown["kind"], shown["verified"], shown["added"]) == ("tiltyard", True, True)
            (event,) = running.happened(GenerationFinished)
            assert event.prompt_token_digest is not None


async def test_an_added_engine_gets_the_trace_of_who_asks(tmp_path: Path) -> None:
    server = ForeignServer(VLLM)
    trace = {
        "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        "tracestate": "vendor=1",
    }
    body = {"model": "it", "messages": [{"role": "user", "content": "x"}], "max_tokens": 4}
    async with added(tmp_path, [server]) as running:
        answer = await running.http.post("/v1/chat/completions", json=body, headers=trace)
        assert answer.status_code == 200
    assert {name: server.headers[-1][name] for name in trace} == trace
