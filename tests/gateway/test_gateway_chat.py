from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import openai
import orjson
import pytest
from gateway_stage import Stage, staged
from openai import AsyncOpenAI, BadRequestError, OpenAI
from openai.types.chat import ChatCompletionMessageParam

from tiltyard.events.log import EventLog
from tiltyard.events.schema import GenerationFinished
from tiltyard.identity.manifest import DefaultSampling


def say(text: str) -> list[ChatCompletionMessageParam]:
    return [{"role": "user", "content": text}]


@pytest.fixture
def client(stage: Stage) -> Iterator[OpenAI]:
    with OpenAI(base_url=stage.url + "/v1", api_key="any", max_retries=0) as client:
        yield client


def words(stage: Stage, event: GenerationFinished) -> object:
    assert event.response is not None
    return orjson.loads(stage.log.own_words("test").read(event.response))


def recorded(stage: Stage, generation: str) -> GenerationFinished:
    event = stage.log.generation(generation)
    assert isinstance(event, GenerationFinished)
    return event


def test_a_stream_is_passed_on_and_recorded(stage: Stage, client: OpenAI) -> None:
    raw = client.chat.completions.with_raw_response.create(
        model="chat", messages=say("!pieces"), stream=True, seed=5, temperature=0.25
    )
    chunks = list(raw.parse())
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == "你好，世界！👩‍👩‍👧🎏 漢字"
    assert [c.choices[0].finish_reason for c in chunks][-2:] == [None, "stop"]
    assert all(chunk.usage is None for chunk in chunks)
    assert raw.headers["x-tiltyard-generation"] == chunks[0].id
    assert raw.headers["content-type"].startswith("text/event-stream")
    event = recorded(stage, chunks[0].id)
    assert (event.alias, event.identity, event.seed, event.stream) == ("chat", "plain", 5, True)
    assert event.behaviour == raw.headers["x-tiltyard-identity"] == chunks[0].system_fingerprint
    # The request's temperature over the identity's own top_p.
    assert event.sampling == DefaultSampling(temperature=0.25, top_p=0.9)
    assert (event.prompt_tokens, event.cached_tokens, event.completion_tokens) == (7, 4, 8)
    assert event.prefill_work is not None
    assert (event.prefill_work.steps, event.prefill_work.context_tokens, event.decode_work) == (1, 9, None)
    expected = {"index": 0, "text": text, "token_ids": [*range(8)], "finish_reason": "stop"}
    assert words(stage, event) == {"choices": [expected]}
    assert event.prompt is not None
    assert orjson.loads(stage.log.own_words("test").read(event.prompt)) == {"messages": say("!pieces")}


def test_the_usage_frame_comes_last_for_who_asks(client: OpenAI) -> None:
    """vLLM #8625: usage was wrong or came in the wrong place; LiteLLM #36168, #28735: in a chunk with choices, or lost."""
    chunks = list(
        client.chat.completions.create(
            model="chat", messages=say("!count 3"), stream=True, stream_options={"include_usage": True}
        )
    )
    *others, last = chunks
    assert [chunk.usage for chunk in others] == [None] * len(others)
    assert last.choices == []
    assert last.usage is not None
    assert (last.usage.prompt_tokens, last.usage.completion_tokens, last.usage.total_tokens) == (7, 3, 10)
    assert last.usage.prompt_tokens_details is not None
    assert last.usage.prompt_tokens_details.cached_tokens == 4


def test_every_chunk_has_the_usage_so_far_for_who_asks_as_of_vllm(client: OpenAI) -> None:
    """Load generators (guidellm) count tokens by it."""
    options: Any = {"include_usage": True, "continuous_usage_stats": True}
    chunks = list(
        client.chat.completions.create(
            model="chat", messages=say("!count 3"), stream=True, stream_options=options
        )
    )
    counted = [chunk.usage.completion_tokens for chunk in chunks if chunk.usage is not None]
    assert len(counted) == len(chunks)
    assert counted == sorted(counted)
    assert chunks[-1].usage is not None
    assert (counted[-1], chunks[-1].usage.prompt_tokens) == (3, 7)
    with pytest.raises(BadRequestError, match="continuous_usage_stats goes with include_usage"):
        client.chat.completions.create(
            model="chat",
            messages=say("!count 3"),
            stream=True,
            stream_options={"continuous_usage_stats": True},  # type: ignore[typeddict-unknown-key]
        )


def test_a_whole_answer_is_the_stream_put_together(stage: Stage, client: OpenAI) -> None:
    raw = client.chat.completions.with_raw_response.create(model="chat", messages=say("!count 3"), n=2)
    answer = raw.parse()
    assert [choice.message.content for choice in answer.choices] == ["0 1 2 ", "0 1 2 "]
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert [choice.finish_reason for choice in answer.choices] == ["stop", "stop"]
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 6
    event = recorded(stage, answer.id)
    assert (event.n, event.stream, len(event.choices)) == (2, False, 2)
    assert "tiltyard" not in raw.http_response.json()
    assert "token_ids" not in raw.http_response.text


def test_plain_completions_stream_and_whole(stage: Stage, client: OpenAI) -> None:
    whole = client.completions.create(model="warm", prompt="!count 3", max_tokens=2)
    assert (whole.choices[0].text, whole.choices[0].finish_reason) == ("0 1 ", "length")
    stream = list(client.completions.create(model="warm", prompt="!count 3", stream=True))
    assert "".join(chunk.choices[0].text for chunk in stream) == "0 1 2 "
    event = recorded(stage, whole.id)
    assert (event.endpoint, event.identity, event.alias) == ("completions", "warm", "warm")
    assert event.prompt is not None
    assert orjson.loads(stage.log.own_words("test").read(event.prompt)) == {"prompt": "!count 3"}


def test_a_request_without_a_seed_gets_one_and_keeps_it(stage: Stage, client: OpenAI) -> None:
    seeds = set()
    for _ in range(3):
        answer = client.chat.completions.create(model="chat", messages=say("hello"))
        seed = recorded(stage, answer.id).seed
        assert 0 <= seed < 2**53
        assert stage.workers[0].bodies[-1]["seed"] == seed
        seeds.add(seed)
    assert len(seeds) == 3


def test_the_words_are_kept_under_the_user_who_said_them(stage: Stage, client: OpenAI) -> None:
    theirs = recorded(stage, client.chat.completions.create(model="chat", messages=say("x"), user="eva").id)
    ours = recorded(stage, client.chat.completions.create(model="chat", messages=say("x")).id)
    assert theirs.prompt is not None
    assert ours.prompt is not None
    assert (theirs.prompt.subject, ours.prompt.subject) == ("eva", "default")


def test_a_trace_is_carried_into_the_event(stage: Stage, client: OpenAI) -> None:
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"  # the W3C's own example
    answer = client.chat.completions.create(
        model="chat", messages=say("x"), extra_headers={"traceparent": trace}
    )
    stored = stage.log.find(GenerationFinished, subject=answer.id)
    assert stored is not None
    assert stored.traceparent == trace


async def test_many_streams_at_once_equal_one_at_a_time(stage: Stage) -> None:
    client = AsyncOpenAI(base_url=stage.url + "/v1", api_key="any")

    async def ask(number: int) -> str:
        stream = await client.chat.completions.create(
            model="chat", messages=say(f"question {number} " * 5), stream=True
        )
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    alone = [await ask(number) for number in range(32)]
    assert await asyncio.gather(*(ask(number) for number in range(32))) == alone
    assert alone == [f"question {number} " * 5 for number in range(32)]
    await client.close()


async def idle(stage: Stage) -> None:
    """Wait until the worker has dropped every request."""
    async with asyncio.timeout(10), httpx2.AsyncClient() as http:
        url = stage.registry.workers[0].url
        while (await http.get(f"{url}/worker")).json()["kv_blocks_used"]:  # noqa: ASYNC110 - over HTTP
            await asyncio.sleep(0.01)


async def last_generation(stage: Stage, number_before: int) -> GenerationFinished:
    async with asyncio.timeout(10):
        async for event in stage.log.follow(number_before):
            if isinstance(event.data, GenerationFinished):
                return event.data
    raise AssertionError("the log ended")


async def test_a_client_that_leaves_a_stream_frees_the_worker_and_is_recorded(stage: Stage) -> None:
    before = stage.log.last_sequence()
    async with AsyncOpenAI(base_url=stage.url + "/v1", api_key="any") as client:
        stream = await client.chat.completions.create(
            model="chat", messages=say("!count 100000"), stream=True
        )
        seen = ""
        async for chunk in stream:
            seen += chunk.choices[0].delta.content or ""
            if seen.count(" ") == 5:
                break
        await stream.close()
    event = await last_generation(stage, before)
    await idle(stage)
    assert (event.choices[0].finish_reason, event.error) == ("cancelled", None)
    assert event.response is not None
    kept = orjson.loads(stage.log.own_words("test").read(event.response))["choices"][0]
    assert kept["text"].startswith(seen)
    assert kept["text"] == "".join(f"{token} " for token in kept["token_ids"])
    assert event.completion_tokens == len(kept["token_ids"])


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_before_the_first_byte_is_noticed(stage: Stage, stream: bool) -> None:
    before = stage.log.last_sequence()
    body = {"model": "chat", "messages": say("!wait"), "stream": stream}
    async with httpx2.AsyncClient() as http:
        asking = asyncio.create_task(http.post(stage.url + "/v1/chat/completions", json=body))
        async with asyncio.timeout(10):
            while not stage.workers[0].running:  # noqa: ASYNC110 - another thread's
                await asyncio.sleep(0.01)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
    event = await last_generation(stage, before)
    await idle(stage)
    assert (event.choices[0].finish_reason, event.completion_tokens) == ("cancelled", 0)


def test_a_stream_that_breaks_ends_with_an_error_frame_and_no_done(stage: Stage) -> None:
    """vLLM #52852: a broken stream just stopped, without a last frame."""
    before = stage.log.last_sequence()
    for script, code in (("!error 2", "engine_failed"), ("!cut 2", "worker_lost")):
        body = {"model": "chat", "messages": say(script), "stream": True}
        answer = httpx2.post(stage.url + "/v1/chat/completions", json=body)
        frames = answer.text.strip().split("\n\n")
        assert answer.status_code == 200
        assert "[DONE]" not in answer.text
        error = orjson.loads(frames[-1].removeprefix("data: "))["error"]
        assert (set(error), error["code"]) == ({"message", "type", "param", "code"}, code)
        stage.registry.succeeded("stand-in-0")  # the stand-in lives; let the next test have it
    events = [e.data for e in stage.log.read(after=before) if isinstance(e.data, GenerationFinished)]
    assert [event.error for event in events] == ["engine_failed", "worker_lost"]
    assert [event.choices[0].finish_reason for event in events] == ["failed", "failed"]


def test_the_openai_client_raises_on_a_broken_stream(stage: Stage, client: OpenAI) -> None:
    stream = client.chat.completions.create(model="chat", messages=say("!error 2"), stream=True)
    with pytest.raises(openai.APIError, match="broke"):
        list(stream)


def test_a_workers_refusal_reaches_the_client(stage: Stage, client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="chat", messages=say("!refuse"), stream=True)
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "messages")


def test_class_and_deadlines_go_on_to_the_worker_and_into_the_event(stage: Stage, client: OpenAI) -> None:
    headers = {"x-tiltyard-class": "batch", "x-tiltyard-deadline-ms": "90000"}
    answer = client.chat.completions.create(model="chat", messages=say("hello"), extra_headers=headers)
    terms = stage.workers[0].terms[-1]
    assert terms["x-tiltyard-class"] == "batch"
    assert 60_000 < int(terms["x-tiltyard-deadline-ms"]) <= 90_000  # what is left of it
    assert recorded(stage, answer.id).service_class == "batch"
    client.chat.completions.create(model="chat", messages=say("hello"))
    assert stage.workers[0].terms[-1] == {"x-tiltyard-class": "interactive"}


def test_a_deadline_that_passed_is_504_and_recorded_as_such(stage: Stage, client: OpenAI) -> None:
    with pytest.raises(openai.InternalServerError) as caught:
        client.chat.completions.create(model="chat", messages=say("!late"))
    assert (caught.value.status_code, caught.value.code) == (504, "deadline_exceeded")
    assert caught.value.param == "x-tiltyard-queue-deadline-ms"
    event = recorded(stage, stage.workers[0].served[-1])
    assert (event.choices[0].finish_reason, event.error) == ("deadline", "deadline_exceeded")


def test_a_class_that_does_not_exist_is_refused_by_the_headers_name(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(
            model="chat", messages=say("hello"), extra_headers={"x-tiltyard-class": "vip"}
        )
    assert caught.value.param == "x-tiltyard-class"


def test_a_request_goes_to_another_worker_when_the_first_refuses_before_a_byte(
    log: EventLog, tmp_path: Path
) -> None:
    with (
        staged(log, tmp_path, workers=2) as stage,
        OpenAI(base_url=stage.url + "/v1", api_key="any", max_retries=0) as client,
    ):
        stage.workers[0].state = "draining"  # the registry does not know yet
        answer = client.chat.completions.create(model="chat", messages=say("hello"))
        assert answer.choices[0].message.content == "hello"
        assert recorded(stage, answer.id).worker == "stand-in-1"
        stage.registry.workers[0].url = "http://127.0.0.1:9"  # nobody listens on the discard port
        answer = client.chat.completions.create(model="chat", messages=say("again"))
        assert answer.choices[0].message.content == "again"
        assert not stage.registry.workers[0].alive
        # Once only, and never after the first byte.
        stage.workers[1].state = "draining"
        with pytest.raises(openai.InternalServerError) as caught:
            client.chat.completions.create(model="chat", messages=say("third"))
        assert (caught.value.status_code, caught.value.code) == (503, "unavailable")
        assert float(caught.value.response.headers["retry-after"]) > 0


def test_an_answer_that_cannot_be_recorded_is_not_given_out_as_done(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = EventLog.open(tmp_path / "log.db", keys=tmp_path / "keys.db")
    with staged(log, tmp_path) as stage:
        log.close()
        url, body = stage.url + "/v1/chat/completions", {"model": "chat", "messages": say("hello")}
        whole = httpx2.post(url, json=body)
        assert (whole.status_code, whole.json()["error"]["code"]) == (507, "storage_failed")
        stream = httpx2.post(url, json=body | {"stream": True}).text
        assert "[DONE]" not in stream
        assert orjson.loads(stream.strip().split("\n\n")[-1][6:])["error"]["code"] == "storage_failed"
    told = [record for record in caplog.records if record.name == "tiltyard.gateway.generation"]
    assert len(told) == 2  # whoever runs the server hears of it too
