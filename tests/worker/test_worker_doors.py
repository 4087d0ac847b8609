"""The worker's doors over a real socket: the real service and engine on toy arithmetic."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any, cast

import httpx2
import orjson
import pytest
from starlette.requests import ClientDisconnect, Request
from starlette.types import Message

from tiltyard.engine.request import Queue, RequestClass
from tiltyard.identity.manifest import DefaultSampling
from tiltyard.wire.sse import DONE, SseParser
from tiltyard.wire.tokens import TokenizeRequest
from tiltyard.wire.worker import FinishedAnswer, StepWork, WorkerStatus
from tiltyard.worker import reading
from tiltyard.worker.app import WorkerDoors
from tiltyard.worker.host import ModelHost, ServedIdentity
from tiltyard.worker.service import MAX_STEP_AGE_S
from toy_host import ToyWorker, listening, texts, toy_worker, until

Json = dict[str, Any]


def completion(prompt: str = ">", **fields: object) -> Json:
    return {"model": "toy", "prompt": prompt, "seed": 1, "stream": True, **fields}


def chat(content: str = ">", **fields: object) -> Json:
    return {
        "model": "toy",
        "messages": [{"role": "user", "content": content}],
        "seed": 1,
        "stream": True,
        **fields,
    }


class Stream:
    """One streamed answer, frame by frame."""

    def __init__(self, response: httpx2.Response) -> None:
        self.response = response
        self.frames: list[Json] = []
        self.done = False

    async def __aiter__(self) -> AsyncIterator[Json]:
        parser = SseParser()
        async for chunk in self.response.aiter_raw():
            for event in parser.feed(chunk):
                if event.data == DONE:
                    self.done = True
                else:
                    self.frames.append(orjson.loads(event.data))
                    yield self.frames[-1]


async def ask(worker: ToyWorker, body: Json, **headers: str) -> Stream:
    """Ask and read to the end."""
    path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
    async with (
        httpx2.AsyncClient(base_url=worker.url) as http,
        http.stream("POST", path, json=body, headers=headers) as response,
    ):
        stream = Stream(response)
        async for _ in stream:
            pass
        return stream


async def get(worker: ToyWorker, path: str) -> httpx2.Response:
    async with httpx2.AsyncClient(base_url=worker.url) as http:
        return await http.get(path)


async def test_a_chat_stream_has_openai_shape_and_ends_with_the_facts() -> None:
    async with toy_worker("Hi!") as worker:
        stream = await ask(worker, chat(), **{"x-tiltyard-generation": "gen_7"})
        identity = worker.service.host.identity("toy")
    assert stream.done
    assert stream.response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert stream.response.headers["x-tiltyard-generation"] == "gen_7"
    assert stream.response.headers["x-tiltyard-identity"] == identity.behaviour_digest
    choices = [c["choices"][0] for c in stream.frames[:-1]]
    # For the gateway, which takes them out: what came of an answer that never gets its last frame.
    assert [choice.pop("token_ids") for choice in choices] == [[72], [105], [33], [256]]
    assert choices == [
        {
            "index": 0,
            "delta": {"role": "assistant", "content": "H", "refusal": None},
            "logprobs": None,
            "finish_reason": None,
        },
        {"index": 0, "delta": {"content": "i"}, "logprobs": None, "finish_reason": None},
        {"index": 0, "delta": {"content": "!"}, "logprobs": None, "finish_reason": None},
        {"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop"},
    ]
    for frame in stream.frames:
        assert (frame["id"], frame["object"], frame["model"]) == ("gen_7", "chat.completion.chunk", "toy")
        assert frame["system_fingerprint"] == identity.behaviour_digest
    last = stream.frames[-1]
    assert last["choices"] == []
    assert last["usage"] == {
        "prompt_tokens": 1,
        "completion_tokens": 4,
        "total_tokens": 5,
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    facts = FinishedAnswer.model_validate(last["tiltyard"])
    assert (facts.choices[0].text, facts.choices[0].token_ids) == ("Hi!", (72, 105, 33, 256))
    assert facts.deployment == identity.deployment.digest
    assert facts.sampling.max_tokens == 511  # no limit was asked for: the context's
    # One token of the prompt at position 0; then three of the answer, behind one, two and three others.
    assert facts.prefill_work == StepWork(steps=1, prompt_tokens=1, answer_tokens=0, context_tokens=0)
    assert facts.decode_work == StepWork(steps=3, prompt_tokens=0, answer_tokens=3, context_tokens=6)


async def test_each_token_is_sent_as_soon_as_it_is_made() -> None:
    async with (
        toy_worker("abc", gated=True) as worker,
        httpx2.AsyncClient(base_url=worker.url) as http,
    ):
        worker.model.permits.release()
        async with http.stream("POST", "/v1/completions", json=completion()) as response:
            frames = aiter(Stream(response))
            # The next step is not permitted before its predecessor's frame has arrived.
            assert (await anext(frames))["choices"][0]["text"] == "a"
            worker.model.permits.release()
            assert (await anext(frames))["choices"][0]["text"] == "b"
            worker.model.open()


@pytest.mark.parametrize("body", [completion(), chat()], ids=["completion", "chat"])
async def test_a_prompt_that_takes_long_to_tokenize_holds_up_nobody_else(
    body: Json, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = threading.Event(), threading.Event()
    async with toy_worker("Hi!") as worker:
        encode = worker.service.host.tokenizer.encode

        def slowly(text: str, **options: bool) -> list[int]:
            begun.set()
            assert go_on.wait(20), "nobody else was served meanwhile"
            return encode(text, **options)

        for method in ("encode", "encode_segments"):
            if hasattr(worker.service.host.tokenizer, method):
                monkeypatch.setattr(worker.service.host.tokenizer, method, slowly)
        asking = asyncio.create_task(ask(worker, body))
        assert await asyncio.to_thread(begun.wait, 20)
        assert (await get(worker, "/health")).status_code == 200
        go_on.set()
        assert (await asking).done


@pytest.mark.parametrize("body", [completion("y" * 600), chat("y" * 600)], ids=["completion", "chat"])
async def test_a_prompt_that_cannot_fit_is_refused_before_it_is_tokenized(
    body: Json, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(_text: str, **_options: bool) -> list[int]:
        pytest.fail("it was tokenized")

    async with toy_worker("Hi!") as worker, httpx2.AsyncClient(base_url=worker.url) as http:
        monkeypatch.setattr(worker.service.host.tokenizer, "encode", never)
        path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
        error = (await http.post(path, json=body)).json()["error"]
    assert error["code"] == "context_length_exceeded"
    assert error["message"] == "prompt has 600 tokens or more; the model accepts 511. Shorten it."


@pytest.mark.parametrize(
    "headers",
    [{"origin": "http://127.0.0.1"}, {"host": "rebound.example"}, {"host": "[::1"}],
)
async def test_a_web_page_cannot_drain_a_worker(headers: dict[str, str]) -> None:
    async with toy_worker("Hi!") as worker, httpx2.AsyncClient(base_url=worker.url) as http:
        assert (await http.post("/worker/drain", headers=headers)).status_code == 403
        assert not worker.service.draining


async def test_an_answer_that_is_not_streamed_comes_whole() -> None:
    async with toy_worker("Hi!") as worker, httpx2.AsyncClient(base_url=worker.url) as http:
        whole = (await http.post("/v1/chat/completions", json=chat(stream=False))).json()
        text = (await http.post("/v1/completions", json=completion(stream=False, max_tokens=2))).json()
    assert whole["object"] == "chat.completion"
    assert whole["choices"][0]["message"] == {"role": "assistant", "content": "Hi!", "refusal": None}
    assert whole["choices"][0]["finish_reason"] == "stop"
    assert whole["usage"]["total_tokens"] == 5
    assert (text["object"], text["choices"][0]["text"]) == ("text_completion", "Hi")
    assert text["choices"][0]["finish_reason"] == "length"


async def test_characters_are_never_broken_in_a_stream() -> None:
    """vLLM #17448, vllm-mlx PR #109, mlx-vlm #1771, exo PR #1691: half a character in a stream."""
    async with toy_worker("月亮🌙é.") as worker:
        stream = await ask(worker, chat())
    deltas = [f["choices"][0]["delta"].get("content", "") for f in stream.frames[:-1]]
    assert [d for d in deltas if d] == ["月", "亮", "🌙", "é", "."]


async def test_a_character_that_max_tokens_cuts_ends_in_the_replacement_character_streamed_or_whole() -> None:
    async with toy_worker("é月") as worker, httpx2.AsyncClient(base_url=worker.url) as http:
        stream = await ask(worker, completion(max_tokens=3))
        whole = (await http.post("/v1/completions", json=completion(max_tokens=3, stream=False))).json()
    assert texts(stream.frames) == whole["choices"][0]["text"] == "é\ufffd"


async def test_a_stop_string_across_tokens_ends_the_answer_and_is_not_shown() -> None:
    async with toy_worker("one <|end|> two") as worker:
        stream = await ask(worker, chat(stop=["<|end|>", "nope"]))
        await until(lambda: worker.service.state.idle)
    assert texts(stream.frames) == "one "
    facts = FinishedAnswer.model_validate(stream.frames[-1]["tiltyard"])
    assert (facts.choices[0].finish_reason, facts.choices[0].stop_match) == ("stop", "<|end|>")
    assert bytes(facts.choices[0].token_ids) == b"one <|end|>"
    assert worker.service.state.blocks_used == 0


async def test_a_stop_string_stops_the_engine_within_one_step() -> None:
    async with toy_worker("one <|end|>" + "x" * 300, gated=True) as worker:
        asked = asyncio.create_task(ask(worker, completion(stop=["<|end|>"])))
        worker.model.permits.release(11)
        assert texts((await asked).frames) == "one "
        assert worker.model.steps == 11
        worker.model.permits.release()  # the step that may have been under way
        await until(lambda: worker.service.state.idle)
        assert worker.model.steps in (11, 12)  # 11 when the engine heard of it before it began the next one
        assert worker.service.state.blocks_used == 0


async def test_a_generation_id_in_use_is_refused_and_disturbs_nobody() -> None:
    async with toy_worker("abc", gated=True) as worker:
        running = asyncio.create_task(ask(worker, completion(), **{"x-tiltyard-generation": "gen_1"}))
        await until(lambda: worker.service._live)
        async with httpx2.AsyncClient(base_url=worker.url) as http:
            refused = await http.post(
                "/v1/completions", json=completion(), headers={"x-tiltyard-generation": "gen_1"}
            )
        assert refused.status_code == 409
        worker.model.open()
        assert texts((await running).frames) == "abc"


async def test_a_text_whose_reader_has_left_the_queue_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forty texts of 4 MiB kept a core busy for minutes after their client had gone."""
    read: list[str | None] = []

    def ids(_host: ModelHost, _identity: ServedIdentity, asked: TokenizeRequest) -> list[int]:
        read.append(asked.prompt)
        return []

    async def here() -> Message:
        return await asyncio.get_running_loop().create_future()  # type: ignore[no-any-return]

    async def gone() -> Message:
        return {"type": "http.disconnect"}

    async def body(request: Request) -> bytes:
        return orjson.dumps({"model": "toy", "prompt": request.scope["prompt"]})

    monkeypatch.setattr(reading, "_ids", ids)
    async with toy_worker() as worker:
        desk = reading.Reading(lambda: worker.service.host, body)
        with pytest.raises(ClientDisconnect):
            await desk.tokenize(Request({"type": "http", "prompt": "nobody waits"}, gone))
        answer = await desk.tokenize(Request({"type": "http", "prompt": "somebody waits"}, here))
    assert answer.status_code == 200
    assert read == ["somebody waits"]


async def test_a_worker_whose_step_hangs_is_not_ready() -> None:
    """vLLM #39863, PR #36451: health said 200 while no step came to its end."""
    async with toy_worker() as worker:
        assert (await get(worker, "/ready")).status_code == 200
        service = worker.service
        service._engine.state = replace(service.state, seen_s=service.state.seen_s - MAX_STEP_AGE_S)
        assert not service.ready


async def test_log_probabilities_have_openai_shape() -> None:
    async with toy_worker("é.") as worker:
        chatted = await ask(worker, chat(logprobs=True, top_logprobs=2, max_tokens=3))
        completed = await ask(worker, completion(logprobs=1, max_tokens=3))
    entries = [e for f in chatted.frames[:-1] for e in f["choices"][0]["logprobs"]["content"]]
    assert [e["bytes"] for e in entries] == [[0xC3], [0xA9], [ord(".")]]
    assert [e["token"] for e in entries] == ["\ufffd", "\ufffd", "."]
    # One logit of 10 among 256 of 0: log softmax = -log(1 + 256 e^-10).
    assert entries[0]["logprob"] == pytest.approx(-0.011555, abs=1e-5)
    assert [t["bytes"] for t in entries[2]["top_logprobs"]] == [[ord(".")], [0]]
    logprobs = [f["choices"][0]["logprobs"] for f in completed.frames[:-1]]
    assert [t for entry in logprobs for t in entry["tokens"]] == ["\ufffd", "\ufffd", "."]
    assert [o for entry in logprobs for o in entry["text_offset"]] == [0, 0, 1]
    assert list(logprobs[-1]["top_logprobs"][0]) == ["."]


async def test_choices_are_told_apart_and_share_the_prompt() -> None:
    prompt = "x" * 100 + ">"
    async with toy_worker("Hi!") as worker:
        stream = await ask(worker, completion(prompt, n=3, temperature=0.5))
        hits = worker.service.host.engine.counters.prefix_hit_tokens
    assert [texts(stream.frames, index) for index in range(3)] == ["Hi!"] * 3
    assert [c["index"] for c in stream.frames[-1]["tiltyard"]["choices"]] == [0, 1, 2]
    assert hits == 2 * 100
    assert stream.frames[-1]["usage"]["completion_tokens"] == 12


async def test_a_tenant_does_not_see_anothers_prefix() -> None:
    """vLLM PR #39082: cached tokens and times tell one tenant what another asked."""
    prompt = "x" * 100 + ">"
    async with toy_worker("Hi!") as worker:
        cached = [
            (await ask(worker, completion(prompt), **{"x-tiltyard-tenant": tenant})).frames[-1]["usage"]
            for tenant in ("alice", "bob", "alice")
        ]
    assert [u["prompt_tokens_details"]["cached_tokens"] for u in cached] == [0, 0, 96]


async def test_a_client_that_leaves_frees_its_blocks_within_one_step() -> None:
    """SGLang #36333, llama.cpp #24496, mini-sglang #15: an answer went on without its reader."""
    async with toy_worker("x" * 300, gated=True) as worker:
        worker.model.permits.release(2)  # 71 tokens are two chunks
        reader, writer = await asyncio.open_connection("127.0.0.1", worker.port)
        body = orjson.dumps(completion("y" * 70 + ">"))
        writer.write(
            b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n" % len(body)
            + body
        )
        await reader.readuntil(b"data: ")  # it streams
        await until(lambda: worker.service.state.blocks_used)
        status = WorkerStatus.model_validate((await get(worker, "/worker")).json())
        assert (status.running, status.kv_blocks_used) == (1, 3)
        writer.close()
        await writer.wait_closed()
        await until(
            lambda: (
                b'requests_cancelled_total{model_name="toy-0"} 1'
                in worker.service.metrics.exposition(worker.service.state)
            )
        )
        steps = worker.model.steps
        worker.model.permits.release()  # the step that was under way when the client left
        await until(lambda: worker.service.state.idle)
        status = WorkerStatus.model_validate((await get(worker, "/worker")).json())
        assert (status.running, status.kv_blocks_used, status.unfinished_tokens) == (0, 0, 0)
        assert worker.model.steps == steps + 1


async def test_a_client_that_leaves_the_queue_disturbs_nobody() -> None:
    """ik_llama #1929: a queued client's cancel ended another's answer."""
    async with toy_worker("abc", gated=True, max_sequences=1) as worker:
        running = asyncio.create_task(ask(worker, completion()))
        worker.model.permits.release()
        await until(lambda: worker.service.state.running)
        queued = asyncio.create_task(ask(worker, completion()))
        await until(lambda: len(worker.service._live) == 2)
        queued.cancel()
        await until(lambda: len(worker.service._live) == 1)
        worker.model.open()
        assert texts((await running).frames) == "abc"
        assert worker.service.queued == 0


async def test_a_full_queue_answers_429_and_says_when_to_come_back() -> None:
    """vLLM #18826, #16391, PR #49445: the queue had no bound."""
    async with toy_worker("abc", gated=True, max_sequences=1, max_queue=1) as worker:
        first = asyncio.create_task(ask(worker, completion()))
        worker.model.permits.release()
        await until(lambda: worker.service.state.running)
        await until(lambda: not worker.service.queued)
        second = asyncio.create_task(ask(worker, completion()))
        await until(lambda: worker.service.queued == 1)
        async with httpx2.AsyncClient(base_url=worker.url) as http:
            refused = await http.post("/v1/completions", json=completion())
        assert refused.status_code == 429
        assert int(refused.headers["retry-after"]) >= 1
        assert refused.json()["error"]["type"] == "rate_limit_error"
        worker.model.open()
        assert [texts((await task).frames) for task in (first, second)] == ["abc", "abc"]


async def test_a_full_queue_turns_a_request_away_before_its_prompt_is_tokenized(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """vLLM #58192: the work was done before the 503."""
    async with toy_worker("abc", max_queue=0) as worker:
        encoded: list[str] = []
        monkeypatch.setattr(worker.service.host.tokenizer, "encode", lambda text, **_: encoded.append(text))
        async with httpx2.AsyncClient(base_url=worker.url) as http:
            for path, body in (("/v1/completions", completion()), ("/v1/chat/completions", chat())):
                assert (await http.post(path, json=body)).status_code == 429
        assert encoded == []


async def test_no_door_shows_what_others_ask_or_are_answered() -> None:
    """llama.cpp PR #16534: the page about slots showed prompts."""
    async with toy_worker("treasure" * 9, gated=True) as worker:
        asking = asyncio.create_task(ask(worker, completion("whisper>")))
        worker.model.permits.release(3)
        await until(lambda: worker.service.state.running)
        paths = ("/worker", "/v1/models", "/metrics", "/health", "/ready")
        shown = [(await get(worker, path)).text for path in paths]
        worker.model.open()
        assert texts((await asking).frames).startswith("treasure")
    assert all(len(page) > 2 for page in shown)
    assert not any("whisper" in page or "treasure" in page for page in shown)


async def test_retry_after_follows_the_backlog_and_the_speed() -> None:
    """vLLM #2901, #13395: who is refused must learn when to come back."""
    async with toy_worker("x" * 400, gated=True, max_queue=4) as worker:
        service = worker.service
        queues: dict[RequestClass, Queue] = {"interactive": Queue(3, 5_000)}
        service._engine.state = replace(service.state, queues=queues, tokens_per_s=100.0)
        assert service._retry_after_s("interactive") == 50.0
        assert service._retry_after_s("batch") == 1.0  # nothing of that class is there
        queues["batch"] = Queue(3, 500)
        assert service._retry_after_s("interactive") == pytest.approx(5_000 / (100 * 32 / 33))
        assert service._retry_after_s("batch") == pytest.approx(500 / (100 / 33))
        queues["interactive"] = Queue(0, 10)
        assert service._retry_after_s("interactive") == 1.0


async def test_draining_finishes_what_runs_and_refuses_what_comes() -> None:
    async with toy_worker("abc", gated=True) as worker:
        idle = asyncio.Event()
        worker.service.on_idle = idle.set
        running = asyncio.create_task(ask(worker, completion()))
        worker.model.permits.release()
        await until(lambda: worker.service.state.running)
        async with httpx2.AsyncClient(base_url=worker.url) as http:
            assert (await http.post("/worker/drain")).json()["state"] == "draining"
            assert (await http.get("/ready")).status_code == 503
            assert (await http.get("/health")).status_code == 200
            refused = await http.post("/v1/completions", json=completion())
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "unavailable")
        assert not idle.is_set()
        worker.model.open()
        assert texts((await running).frames) == "abc"
        await asyncio.wait_for(idle.wait(), 10)


async def test_an_idle_worker_drains_at_once() -> None:
    async with toy_worker() as worker:
        idle = asyncio.Event()
        worker.service.on_idle = idle.set
        async with httpx2.AsyncClient(base_url=worker.url) as http:
            assert (await http.post("/worker/drain")).status_code == 200
        await asyncio.wait_for(idle.wait(), 10)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_an_engine_that_fails_ends_a_stream_with_an_error_and_no_done() -> None:
    """vLLM #57082: an aborted stream ended like a complete one, [DONE] included."""
    async with toy_worker("abc", gated=True, max_sequences=1) as worker:
        begun = asyncio.create_task(ask(worker, completion()))
        worker.model.permits.release()
        await until(lambda: worker.service.state.running)
        async with httpx2.AsyncClient(base_url=worker.url) as http:
            waiting = asyncio.create_task(http.post("/v1/completions", json=completion()))
            await until(lambda: len(worker.service._live) == 2)
            worker.model.fail = True
            worker.model.permits.release()
            stream = await begun
            assert not stream.done
            assert stream.frames[0]["choices"][0]["text"] == "a"
            assert stream.frames[-1]["error"]["code"] == "engine_failed"
            assert (await waiting).status_code == 502
            assert (await http.get("/health")).status_code == 503
            assert (await http.get("/ready")).status_code == 503
            assert (await http.post("/v1/completions", json=completion())).status_code == 503


async def test_a_worker_that_is_still_loading_says_so() -> None:
    async with listening(WorkerDoors("w")) as (url, _), httpx2.AsyncClient(base_url=url) as http:
        assert (await http.get("/worker")).json()["state"] == "loading"
        assert (await http.get("/health")).status_code == 200
        assert (await http.get("/ready")).status_code == 503
        refused = await http.post("/v1/completions", json=completion())
        assert (refused.status_code, "still loading" in refused.text) == (503, True)


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        (completion(model="other"), 404, "model"),
        ({k: v for k, v in completion().items() if k != "seed"}, 400, "seed"),
        (completion(suffix="x"), 400, "suffix"),
        (completion(max_tokens=512), 400, "max_tokens"),
        (completion("y" * 600), 400, "prompt"),
        (completion(logit_bias={"300": 1}), 400, "logit_bias"),
        (chat("y" * 600), 400, "messages"),
        (chat(tools=[{"type": "function", "function": {"name": "f"}}]), 400, "tools"),
    ],
)
async def test_what_cannot_be_served_is_refused_by_name(body: Json, status: int, param: str) -> None:
    path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
    async with toy_worker() as worker, httpx2.AsyncClient(base_url=worker.url) as http:
        refused = await http.post(path, json=body)
    assert (refused.status_code, refused.json()["error"]["param"]) == (status, param)


async def test_a_default_of_max_tokens_gives_way_to_what_fits_and_a_demand_does_not() -> None:
    async with toy_worker("ab" * 100) as worker, httpx2.AsyncClient(base_url=worker.url) as http:
        identities = cast(dict[str, ServedIdentity], worker.service.host.identities)
        toy = identities["toy"]
        defaults = DefaultSampling(temperature=0.0, max_tokens=200)
        behaviour = toy.resolved.behaviour.model_copy(update={"default_sampling": defaults})
        identities["toy"] = replace(toy, resolved=replace(toy.resolved, behaviour=behaviour))
        prompt = "y" * 499 + ">"  # leaves 12 of the 512 positions
        answer = (await http.post("/v1/completions", json=completion(prompt, stream=False))).json()
        assert (answer["choices"][0]["text"], answer["choices"][0]["finish_reason"]) == ("ab" * 6, "length")
        refused = await http.post("/v1/completions", json=completion(prompt, max_tokens=200))
        assert refused.json()["error"]["code"] == "context_length_exceeded"


async def test_models_name_their_identity() -> None:
    async with toy_worker() as worker:
        (entry,) = (await get(worker, "/v1/models")).json()["data"]
        status = WorkerStatus.model_validate((await get(worker, "/worker")).json())
    assert (entry["id"], entry["owned_by"]) == ("toy", "toys")
    assert entry["tiltyard"]["behaviour"] == status.identities[0].behaviour
    assert status.identities[0].behaviour_manifest.digest == status.identities[0].behaviour
    assert status.identities[0].max_context_tokens == 512


async def test_metrics_count_what_happened() -> None:
    async with toy_worker("Hi!") as worker:
        for _ in range(2):
            await ask(worker, completion("x" * 64 + ">"))
        text = (await get(worker, "/metrics")).text
    label = '{model_name="toy-0"}'
    for line in (
        f"vllm:num_requests_running{label} 0.0",
        f"vllm:num_requests_waiting{label} 0.0",
        f"vllm:kv_cache_usage_perc{label} 0.0",
        f"vllm:prefix_cache_queries_total{label} 130.0",
        f"vllm:prefix_cache_hits_total{label} 64.0",
        f"vllm:prompt_tokens_total{label} 66.0",
        f"vllm:generation_tokens_total{label} 8.0",
        f"vllm:time_to_first_token_seconds_count{label} 2.0",
        f"vllm:e2e_request_latency_seconds_count{label} 2.0",
        f"vllm:request_inference_time_seconds_count{label} 2.0",
        f"vllm:request_time_per_output_token_seconds_count{label} 2.0",
        'vllm:cache_config_info{block_size="32",cache_dtype="f16",enable_prefix_caching="True",num_gpu_blocks="32"} 1.0',
        'vllm:request_success_total{finished_reason="stop",model_name="toy-0"} 2.0',
        f"tiltyard_kv_blocks_cached{label} 2.0",
    ):
        assert line in text.splitlines()


async def test_an_answer_that_cannot_go_on_ends_with_the_reason_and_frees_its_blocks() -> None:
    demand = {"structured_outputs": {"choice": ["ab"]}, "bad_words": ["b"]}
    async with (
        toy_worker("ab", gated=True) as worker,
        httpx2.AsyncClient(base_url=worker.url) as http,
    ):
        worker.model.permits.release()
        async with http.stream("POST", "/v1/completions", json=completion(**demand)) as response:
            stream = Stream(response)
            frames = aiter(stream)
            assert (await anext(frames))["choices"][0]["text"] == "a"
            worker.model.open()  # the first frame is out before the second step runs
            error = (await anext(frames))["error"]
            assert [frame async for frame in frames] == []
        assert not stream.done
        assert error["code"] == "no_token_left"
        assert "exclude each other" in error["message"]
        # Nothing had been promised to a client that waits for the whole: status 400.
        whole = await http.post("/v1/completions", json=completion(**demand, stream=False))
        assert (whole.status_code, whole.json()["error"]["code"]) == (400, "no_token_left")
        status = WorkerStatus.model_validate((await http.get("/worker")).json())
        assert (status.running, status.kv_blocks_used) == (0, 0)
        assert (await ask(worker, completion())).done


async def test_an_answer_of_a_form_ends_where_the_form_is_complete() -> None:
    async with toy_worker("hello") as worker:
        stream = await ask(worker, completion(structured_outputs={"regex": "he?l+o"}, max_tokens=9))
        facts = FinishedAnswer.model_validate(stream.frames[-1]["tiltyard"])
    assert facts.choices[0].text == "hello"
    assert facts.choices[0].finish_reason == "stop"
    assert facts.completion_tokens == 5  # no end token was needed
    assert facts.structure_engine is not None
    assert facts.structure_engine.startswith("llguidance ")
