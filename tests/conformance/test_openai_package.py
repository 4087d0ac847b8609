"""OpenAI's own Python package, unmodified."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import openai
import pytest
from openai import AsyncOpenAI, OpenAI, pydantic_function_tool
from openai.types.chat import ChatCompletionMessageParam
from pydantic import BaseModel
from real_house import House


class City(BaseModel):
    name: str
    country: str


QUESTION: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Name the capital of France."}]


@pytest.fixture
def client(house: House) -> Iterator[OpenAI]:
    with OpenAI(base_url=house.url + "/v1", api_key="any") as client:
        yield client


@pytest.fixture
async def aclient(house: House) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=house.url + "/v1", api_key="any") as client:
        yield client


def test_chat(client: OpenAI) -> None:
    answer = client.chat.completions.create(model="chat", messages=QUESTION, temperature=0, max_tokens=24)
    assert answer.choices[0].message.content is not None
    assert "Paris" in answer.choices[0].message.content
    assert answer.choices[0].message.refusal is None
    assert answer.usage is not None


def test_the_streaming_helper_puts_the_same_answer_together(client: OpenAI) -> None:
    with client.chat.completions.stream(
        model="chat", messages=QUESTION, temperature=0, max_tokens=24, stream_options={"include_usage": True}
    ) as stream:
        text = "".join(event.delta for event in stream if event.type == "content.delta")
        final = stream.get_final_completion()
    assert "Paris" in text
    assert final.choices[0].message.content == text
    assert final.usage is not None


async def test_async_and_streamed(aclient: AsyncOpenAI) -> None:
    stream = await aclient.chat.completions.create(
        model="chat", messages=QUESTION, temperature=0, max_tokens=24, stream=True
    )
    text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
    whole = await aclient.chat.completions.create(
        model="chat", messages=QUESTION, temperature=0, max_tokens=24
    )
    assert text == whole.choices[0].message.content


def test_parse_reads_a_pydantic_model(client: OpenAI) -> None:
    answer = client.chat.completions.parse(
        model="chat", messages=QUESTION, response_format=City, temperature=0, max_tokens=80
    )
    assert isinstance(answer.choices[0].message.parsed, City)


def test_tools(client: OpenAI) -> None:
    answer = client.chat.completions.create(
        model="chat",
        messages=QUESTION,
        tools=[pydantic_function_tool(City)],
        tool_choice="required",
        temperature=0,
        max_tokens=100,
    )
    assert answer.choices[0].finish_reason == "tool_calls"
    calls = answer.choices[0].message.tool_calls
    assert calls
    assert calls[0].type == "function"
    assert calls[0].function.name == "City"


def test_responses_whole_streamed_parsed_and_continued(client: OpenAI) -> None:
    first = client.responses.create(
        model="chat", input="Name the capital of France.", temperature=0, max_output_tokens=24
    )
    assert "Paris" in first.output_text
    with client.responses.stream(
        model="chat", input="Name the capital of France.", temperature=0, max_output_tokens=24
    ) as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
    assert text == first.output_text
    parsed = client.responses.parse(
        model="chat", input="Name the capital of France.", text_format=City, temperature=0,
        max_output_tokens=80,
    )  # fmt: skip
    assert isinstance(parsed.output_parsed, City)
    second = client.responses.create(
        model="chat", input="And of Spain?", previous_response_id=first.id, temperature=0,
        max_output_tokens=24,
    )  # fmt: skip
    assert second.usage is not None
    assert first.usage is not None
    assert second.usage.input_tokens > first.usage.total_tokens


def test_completions_embeddings_and_models(client: OpenAI) -> None:
    plain = client.completions.create(model="chat", prompt="Once upon a", temperature=0, max_tokens=4)
    assert plain.choices[0].text
    vectors = client.embeddings.create(model="chat", input=["a dog", "a hound"])
    assert [vector.index for vector in vectors.data] == [0, 1]
    assert "chat" in [model.id for model in client.models.list()]


def test_errors_are_the_package_s_own(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="gpt-4", messages=QUESTION)
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as wrong:
        client.chat.completions.create(model="chat", messages=QUESTION, temperature=3)
    assert wrong.value.param == "temperature"
