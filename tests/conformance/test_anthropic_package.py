"""Anthropic's own Python package, unmodified."""

from __future__ import annotations

from typing import Any

import pytest
from real_house import House

pytestmark = pytest.mark.filterwarnings("ignore")  # a package's own, on its import
GREEDY = {"temperature": 0}  # the package has no such parameter any more; older ones do
QUESTION: list[Any] = [{"role": "user", "content": "Name the capital of France."}]


@pytest.fixture
def anthropic() -> Any:
    return pytest.importorskip("anthropic", reason="the conformance extra is not installed")


@pytest.fixture
def client(anthropic: Any, house: House) -> Any:
    with anthropic.Anthropic(base_url=house.url, api_key="any", max_retries=0) as client:
        yield client


def test_a_message_whole_and_streamed(client: Any) -> None:
    message = client.messages.create(model="chat", max_tokens=24, messages=QUESTION, extra_body=GREEDY)
    assert "Paris" in message.content[0].text
    assert message.stop_reason in ("end_turn", "max_tokens")
    with client.messages.stream(model="chat", max_tokens=24, messages=QUESTION, extra_body=GREEDY) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == message.content[0].text == final.content[0].text
    assert final.usage.output_tokens == message.usage.output_tokens


async def test_async(anthropic: Any, house: House) -> None:
    async with (
        anthropic.AsyncAnthropic(base_url=house.url, api_key="any") as client,
        client.messages.stream(
            model="chat", max_tokens=24, messages=QUESTION, extra_body=GREEDY, system="Be brief."
        ) as stream,
    ):
        text = "".join([piece async for piece in stream.text_stream])
    assert text


def test_a_stop_sequence_is_told(client: Any) -> None:
    message = client.messages.create(
        model="chat", max_tokens=24, messages=QUESTION, extra_body=GREEDY, stop_sequences=["Paris"]
    )
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", "Paris")
    assert "Paris" not in message.content[0].text


def test_tools_streamed_and_answered(client: Any) -> None:
    tool = {
        "name": "get_weather",
        "input_schema": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 20}},
            "required": ["city"],
            "additionalProperties": False,
        },
    }
    messages: list[Any] = [{"role": "user", "content": "What is the weather in Paris?"}]
    with client.messages.stream(
        model="chat", max_tokens=100, messages=messages, tools=[tool], tool_choice={"type": "any"},
        extra_body=GREEDY,
    ) as stream:  # fmt: skip
        message = stream.get_final_message()
    assert message.stop_reason == "tool_use"
    (block,) = message.content
    assert (block.name, set(block.input)) == ("get_weather", {"city"})
    messages += [
        {"role": "assistant", "content": message.content},
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": block.id, "content": "21 degrees"}],
        },
    ]
    after = client.messages.create(model="chat", max_tokens=8, messages=messages, extra_body=GREEDY)
    assert after.content[0].type == "text"


def test_tokens_are_counted(client: Any) -> None:
    counted = client.messages.count_tokens(model="chat", messages=QUESTION)
    message = client.messages.create(model="chat", max_tokens=1, messages=QUESTION)
    assert counted.input_tokens == message.usage.input_tokens + message.usage.cache_read_input_tokens


def test_errors_are_the_package_s_own(anthropic: Any, client: Any) -> None:
    with pytest.raises(anthropic.NotFoundError) as missing:
        client.messages.create(model="claude", max_tokens=1, messages=QUESTION)
    assert missing.value.body["error"]["type"] == "not_found_error"
    with pytest.raises(anthropic.BadRequestError) as wrong:
        client.messages.create(model="chat", max_tokens=0, messages=QUESTION)
    assert wrong.value.body["error"]["param"] == "max_tokens"
