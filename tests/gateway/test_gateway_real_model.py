"""The whole way with the real model: launcher, worker process, gateway, the real openai package."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import httpx2
import numpy as np
import orjson
import pytest
from openai import AsyncOpenAI
from openai_document import openai_validator
from real_house import House, say

from tiltyard.events.schema import GenerationFinished


def test_the_stream_and_the_whole_answer_are_the_same_text(house: House) -> None:
    asked = say("Name three colours of the rainbow.")
    whole = house.client.chat.completions.create(
        model="chat", messages=asked, temperature=0, max_tokens=24, seed=1
    )
    stream = house.client.chat.completions.create(
        model="chat", messages=asked, temperature=0, max_tokens=24, seed=1, stream=True,
        stream_options={"include_usage": True},
    )  # fmt: skip
    chunks = list(stream)
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text
    assert text == whole.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant"
    usage = chunks[-1].usage
    assert usage is not None
    assert whole.usage is not None
    assert usage.completion_tokens == whole.usage.completion_tokens
    # The second request finds the first one's prompt in the prefix cache.
    assert usage.prompt_tokens_details is not None
    assert usage.prompt_tokens_details.cached_tokens == (usage.prompt_tokens - 1) // 32 * 32
    assert house.said(whole.id)["text"] == text
    assert len(house.event(whole.id).behaviour) == len("sha256:") + 64


def test_the_same_seed_gives_the_same_answer_and_another_seed_another(house: House) -> None:
    """llama.cpp #7381, vLLM #21310: the seed was ignored."""

    def ask(seed: int) -> str | None:
        answer = house.client.chat.completions.create(
            model="chat", messages=say("Tell me a story."), temperature=1, max_tokens=16, seed=seed
        )
        return answer.choices[0].message.content

    assert ask(7) == ask(7)
    assert len({ask(seed) for seed in range(4)}) > 1


def test_n_answers_use_consecutive_seeds(house: House) -> None:
    def ask(seed: int, n: int) -> list[str | None]:
        answer = house.client.chat.completions.create(
            model="chat", messages=say("Tell me a story."), temperature=1, max_tokens=12, seed=seed, n=n
        )
        return [choice.message.content for choice in answer.choices]

    assert ask(100, 2) == [*ask(100, 1), *ask(101, 1)]


def test_a_stop_string_that_spans_tokens_ends_the_answer_and_is_not_shown(house: House) -> None:
    asked = say("Name three colours of the rainbow.")
    free = house.client.chat.completions.create(
        model="chat", messages=asked, temperature=0, max_tokens=24, logprobs=True
    )
    text = free.choices[0].message.content
    logprobs = free.choices[0].logprobs
    assert text is not None
    assert logprobs is not None
    assert logprobs.content is not None
    # From the middle of the third token to the middle of the fourth.
    third, fourth = logprobs.content[2].token, logprobs.content[3].token
    stop = third[-1] + fourth[0]
    stream = house.client.chat.completions.create(
        model="chat", messages=asked, temperature=0, max_tokens=24, stop=[stop, "never said"], stream=True
    )
    chunks = list(stream)
    shown = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert shown == text[: text.index(stop)]
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert house.event(chunks[0].id).choices[0].stop_match == stop


def test_logprobs_cover_the_text_token_by_token(house: House) -> None:
    answer = house.client.chat.completions.create(
        model="chat", messages=say("Say hi."), temperature=0, max_tokens=8, logprobs=True, top_logprobs=3
    )
    choice = answer.choices[0]
    assert choice.logprobs is not None
    content = choice.logprobs.content
    assert content is not None
    assert b"".join(bytes(token.bytes or ()) for token in content).decode() == choice.message.content
    for token in content:
        assert len(token.top_logprobs) == 3
        # Greedy: the token is the likeliest one.
        assert token.token == token.top_logprobs[0].token
        assert token.logprob == token.top_logprobs[0].logprob <= 0


def test_every_answer_has_the_shape_that_openai_describes(house: House, shared_data: Path) -> None:
    chat = {
        "model": "chat",
        "messages": [*say("Say hi.")],
        "max_tokens": 4,
        "logprobs": True,
        "top_logprobs": 2,
    }
    plain = {"model": "chat", "prompt": "Once upon", "max_tokens": 4, "logprobs": 2, "n": 2}
    url, usage = house.url + "/v1", {"stream": True, "stream_options": {"include_usage": True}}

    validator = openai_validator(shared_data, "CreateChatCompletionResponse")
    validator.validate(httpx2.post(url + "/chat/completions", json=chat, timeout=60).json())
    assert not validator.is_valid({})  # it can refuse
    validator = openai_validator(shared_data, "CreateCompletionResponse")
    whole = httpx2.post(url + "/completions", json=plain, timeout=60).json()
    validator.validate(whole)
    logprobs = whole["choices"][1]["logprobs"]
    assert "".join(logprobs["tokens"]) == whole["choices"][1]["text"]
    assert logprobs["text_offset"][:2] == [0, len(logprobs["tokens"][0])]
    assert len(logprobs["token_logprobs"]) == len(logprobs["top_logprobs"]) == len(logprobs["tokens"])
    openai_validator(shared_data, "ListModelsResponse").validate(httpx2.get(url + "/models").json())

    validator = openai_validator(shared_data, "CreateChatCompletionStreamResponse")
    answer = httpx2.post(url + "/chat/completions", json=chat | usage, timeout=60).text
    *frames, done = answer.strip().split("\n\n")
    assert done == "data: [DONE]"
    chunks = [orjson.loads(frame.removeprefix("data: ")) for frame in frames]
    for chunk in chunks:
        if chunk["usage"] is None:
            del chunk["usage"]  # OpenAI's text promises the null that its schema forgets
        validator.validate(chunk)
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == 4


def test_chinese_and_emoji_are_never_broken_in_a_stream(house: House) -> None:
    """vLLM #17448."""
    # The model repeats what it is shown often; each of these characters is several tokens.
    pattern = "漢字🎏好" * 12
    stream = house.client.completions.create(
        model="smollm2", prompt=pattern, temperature=0, max_tokens=48, stream=True
    )
    chunks = list(stream)
    pieces = [chunk.choices[0].text for chunk in chunks]
    event = house.event(chunks[0].id)
    assert event.completion_tokens == 48
    assert any(ord(character) > 0x2E7F for piece in pieces for character in piece)
    # Only the end may hold half a character: the answer was cut there.
    assert "\ufffd" not in "".join(pieces[:-1])


def test_a_prompt_that_does_not_fit_is_refused_with_the_numbers(house: House) -> None:
    response = httpx2.post(
        house.url + "/v1/chat/completions", json={"model": "chat", "messages": [*say("word " * 9000)]}
    )
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["param"]) == (
        400,
        "context_length_exceeded",
        "messages",
    )


async def test_32_streams_at_once_equal_one_at_a_time(house: House) -> None:
    client = AsyncOpenAI(base_url=house.url + "/v1", api_key="any")

    async def ask(number: int) -> str:
        stream = await client.chat.completions.create(
            model="chat", messages=say(f"Write about the number {number}."), seed=number, max_tokens=8,
            stream=True,
        )  # fmt: skip
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    alone = [await ask(number) for number in range(32)]
    together = await asyncio.gather(*(ask(number) for number in range(32)))
    assert together == alone
    assert len(set(alone)) > 16
    await client.close()


async def test_a_client_that_leaves_frees_its_blocks_and_is_recorded_with_its_tokens(house: House) -> None:
    """Usage of an aborted answer was lost: vLLM #8625, openai-openapi #539. Here the event has it."""
    """openai-openapi #539: usage was lost on abort."""
    before = house.log.last_sequence()
    async with AsyncOpenAI(base_url=house.url + "/v1", api_key="any") as client:
        stream = await client.chat.completions.create(
            model="chat", messages=say("Count to one thousand."), max_tokens=1500, stream=True,
            extra_body={"ignore_eos": True},
        )  # fmt: skip
        seen = ""
        async for chunk in stream:
            seen += chunk.choices[0].delta.content or ""
            if len(seen) > 20:
                break
        await stream.close()
    async with asyncio.timeout(20), httpx2.AsyncClient() as http:
        async for event in house.log.follow(before):
            if isinstance(event.data, GenerationFinished):
                break
        while True:
            status = (await http.get(house.worker_url + "/worker")).json()
            if status["running"] == 0 and status["kv_blocks_used"] == 0:
                break
            await asyncio.sleep(0.01)
    assert isinstance(event.data, GenerationFinished)
    assert event.data.choices[0].finish_reason == "cancelled"
    kept = house.said(event.data.generation)
    assert str(kept["text"]).startswith(seen)
    assert event.data.completion_tokens == len(kept["token_ids"]) > 0  # type: ignore[arg-type]
    # What came before the end is what the same seed says again.
    again = house.client.chat.completions.create(
        model="chat", messages=say("Count to one thousand."), max_tokens=event.data.completion_tokens,
        seed=event.data.seed, extra_body={"ignore_eos": True},
    )  # fmt: skip
    assert house.said(again.id)["token_ids"] == kept["token_ids"]
    # The worker told about the prompt before its first frame.
    whole = house.event(again.id)
    assert event.data.prompt_tokens == whole.prompt_tokens > 0
    assert event.data.prompt_token_digest == whole.prompt_token_digest


# Embeddings.


def test_related_texts_have_closer_vectors_and_company_does_not_change_a_bit(house: House) -> None:
    """The client asks for base64 unless told otherwise, and reads it as float32."""
    texts = ["A dog chased the cat.", "The hound ran after a kitten.", "Prime numbers are infinitely many."]
    together = house.client.embeddings.create(model="chat", input=texts)
    assert [entry.index for entry in together.data] == [0, 1, 2]
    vectors = [entry.embedding for entry in together.data]
    assert [len(vector) for vector in vectors] == [576] * 3

    def cosine(a: list[float], b: list[float]) -> float:
        return sum(x * y for x, y in zip(a, b, strict=True))

    assert all(abs(cosine(v, v) - 1) < 1e-6 for v in vectors)
    assert cosine(vectors[0], vectors[1]) > cosine(vectors[0], vectors[2])
    assert together.usage.prompt_tokens == together.usage.total_tokens
    for text, vector in zip(texts, vectors, strict=True):
        alone = house.client.embeddings.create(model="smollm2", input=text, encoding_format="float")
        assert np.array(alone.data[0].embedding, np.float32).tolist() == vector
    assert alone.model == "smollm2"


def test_token_ids_are_texts_too(house: House) -> None:
    one = house.client.embeddings.create(model="chat", input=[504, 3575], encoding_format="float")
    many = house.client.embeddings.create(
        model="chat", input=[[504, 3575], [504], [504, 3575]], encoding_format="float"
    )
    assert many.data[0].embedding == many.data[2].embedding == one.data[0].embedding
    assert many.data[1].embedding != one.data[0].embedding
    assert (one.usage.prompt_tokens, many.usage.prompt_tokens) == (2, 5)


def test_more_texts_than_the_engine_takes_at_once_come_back_in_order(house: House) -> None:
    words = [f"number {i}" for i in range(100)]
    answer = house.client.embeddings.create(model="chat", input=words)
    some = house.client.embeddings.create(model="chat", input=[words[99], words[0]])
    assert answer.data[99].embedding == some.data[0].embedding
    assert answer.data[0].embedding == some.data[1].embedding


def test_an_answer_does_not_change_while_texts_are_embedded_and_no_block_stays(house: House) -> None:
    def say_it() -> str | None:
        answer = house.client.chat.completions.create(
            model="chat", messages=say("Count to ten."), temperature=0, max_tokens=40, seed=1
        )
        return answer.choices[0].message.content

    alone = say_it()
    before = httpx2.get(house.worker_url + "/worker").json()
    heard: list[str | None] = []
    thread = threading.Thread(target=lambda: heard.append(say_it()))
    thread.start()
    house.client.embeddings.create(model="chat", input=["far away " * 100] * 3)
    thread.join()
    assert heard == [alone]
    after = httpx2.get(house.worker_url + "/worker").json()
    assert after["kv_blocks_used"] == 0
    assert after["kv_blocks_cached"] == before["kv_blocks_cached"]


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ({"input": "x", "dimensions": 256}, 400, "dimensions is 256; smollm2 gives 576"),
        ({"input": "x", "dimensions": 576}, 200, ""),
        ({"input": ""}, 400, "none of them empty"),
        ({"input": []}, 400, "none of them empty"),
        ({"input": ["a", ""]}, 400, "input 1: "),
        ({"input": ["a", [1, -1]]}, 400, "input 1: "),
        ({"input": [1, 49152]}, 400, "token 49152"),
        ({"input": ["a", [7] * 9000]}, 400, "input.1 has 9,000 tokens; smollm2 accepts 8,191"),
        ({"input": "word " * 60_000}, 400, "smollm2 accepts 8,191"),
        ({"input": ["a"] * 2049}, 400, "at most 2048"),
        ({"input": "x", "encoding_format": "int8"}, 400, "'float' or 'base64'"),
        ({"input": "x", "truncate": True}, 400, "truncate"),
        ({"input": "x", "model": "nobody"}, 404, "'nobody' does not exist"),
        ({}, 400, "input is required"),
    ],
)
def test_what_cannot_be_embedded_is_said(
    body: dict[str, object], status: int, said: str, house: House
) -> None:
    url = str(house.client.base_url) + "embeddings"
    answer = httpx2.post(url, json={"model": "chat", **body})
    assert answer.status_code == status, answer.text
    if status != 200:
        assert said in answer.json()["error"]["message"]
