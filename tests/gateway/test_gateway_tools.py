"""Calls of tools the whole way: the real openai package, gateway, worker process, real model, log and replay."""

from __future__ import annotations

from pathlib import Path

import httpx2
import orjson
import pytest
from openai import BadRequestError, pydantic_function_tool
from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolParam
from openai_document import openai_validator
from pydantic import BaseModel
from real_house import House, say
from websockets.asyncio.client import connect

from tiltyard.events.schema import GenerationFinished
from tiltyard.gateway.collect import Collected
from tiltyard.gateway.record import Ending, said
from tiltyard.identity.store import IdentityStore
from tiltyard.ops.replay import Replayer
from tiltyard.worker.host import HostSettings

WEATHER: ChatCompletionToolParam = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 20}, "unit": {"enum": ["C", "F"]}},
            "required": ["city", "unit"],
            "additionalProperties": False,
        },
    },
    "x-tiltyard-side-effects": False,  # type: ignore[typeddict-unknown-key]
}
MAIL: ChatCompletionToolParam = {
    "type": "function",
    "function": {
        "name": "send_mail",
        "parameters": {
            "type": "object",
            "properties": {"to": {"type": "string", "maxLength": 20}},
            "required": ["to"],
            "additionalProperties": False,
        },
    },
    "x-tiltyard-side-effects": True,  # type: ignore[typeddict-unknown-key]
}
ASKED = say("What is the weather in Paris?")


def test_a_forced_call_is_right_and_the_log_says_what_was_offered_and_called(house: House) -> None:
    answer = house.client.chat.completions.create(
        model="chat", messages=ASKED, tools=[WEATHER, MAIL], tool_choice="required", parallel_tool_calls=False,
        temperature=0.2, seed=1, max_tokens=100,
    )  # fmt: skip
    (choice,) = answer.choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    assert choice.message.tool_calls is not None
    (call,) = choice.message.tool_calls
    assert call.type == "function"
    assert call.function.name == "get_weather"
    assert orjson.loads(call.function.arguments)["city"] == "Paris"  # this model at this seed
    event = house.event(answer.id)
    assert event.tools is not None
    assert [(tool.name, tool.side_effects) for tool in event.tools.functions] == [
        ("get_weather", False),
        ("send_mail", True),
    ]
    assert (event.tools.choice, event.tools.parallel) == ("required", False)
    assert event.choices[0].called == ("get_weather",)
    assert event.choices[0].finish_reason == "tool_calls"


def test_the_stream_of_the_openai_package_puts_the_same_call_together(house: House) -> None:
    whole = house.client.chat.completions.create(
        model="chat", messages=ASKED, tools=[WEATHER], tool_choice="required", seed=3, max_tokens=200
    )
    with house.client.chat.completions.stream(
        model="chat", messages=ASKED, tools=[WEATHER], tool_choice="required", seed=3, max_tokens=200
    ) as stream:
        pieces = [event for event in stream if event.type == "tool_calls.function.arguments.delta"]
        last = stream.get_final_completion().choices[0]
    again = house.client.chat.completions.create(
        model="chat",
        messages=[
            *ASKED,
            last.message,
            *(  # type: ignore[list-item]
                {"role": "tool", "tool_call_id": call.id, "content": "12"}
                for call in last.message.tool_calls or ()
            ),
        ],
        max_tokens=4,
    )
    assert again.usage
    assert len(pieces) > 3
    assert last.finish_reason == whole.choices[0].finish_reason
    assert whole.choices[0].message.tool_calls is not None
    assert last.message.tool_calls is not None
    assert [call.function.arguments for call in last.message.tool_calls] == [
        call.function.arguments for call in whole.choices[0].message.tool_calls if call.type == "function"
    ]


class SendMail(BaseModel):
    """Send a mail."""

    to: str
    urgent: bool


def test_a_named_function_is_parsed_by_the_openai_package_and_its_result_answered(house: House) -> None:
    answer = house.client.chat.completions.parse(
        model="chat",
        messages=say("Tell Ann."),
        tools=[pydantic_function_tool(SendMail)],
        tool_choice={"type": "function", "function": {"name": "SendMail"}},
        parallel_tool_calls=False,
        seed=5,
        max_tokens=100,
    )
    message = answer.choices[0].message
    assert message.tool_calls is not None
    assert isinstance(message.tool_calls[0].function.parsed_arguments, SendMail)
    conversation: list[ChatCompletionMessageParam] = [
        *say("Tell Ann."),
        message,  # type: ignore[list-item]  # as the package's own examples do
        {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "sent"},
    ]
    again = house.client.chat.completions.create(model="chat", messages=conversation, max_tokens=8)
    assert again.choices[0].message.content


def test_answers_with_calls_have_the_shape_that_openai_describes(house: House, shared_data: Path) -> None:
    body = {
        "model": "chat",
        "messages": ASKED,
        "tools": [WEATHER],
        "tool_choice": "required",
        "seed": 1,
        "max_tokens": 100,
        "logprobs": True,
    }
    url = house.url + "/v1/chat/completions"
    whole = httpx2.post(url, json=body, timeout=60).json()
    openai_validator(shared_data, "CreateChatCompletionResponse").validate(whole)
    validator = openai_validator(shared_data, "CreateChatCompletionStreamResponse")
    *frames, done = httpx2.post(url, json=body | {"stream": True}, timeout=60).text.strip().split("\n\n")
    assert done == "data: [DONE]"
    for frame in frames:
        validator.validate(orjson.loads(frame.removeprefix("data: ")))


def test_a_model_without_a_tool_template_says_so(house: House) -> None:
    with pytest.raises(BadRequestError) as refused:
        house.client.chat.completions.create(model="chat", messages=ASKED, tools=[WEATHER])
    assert refused.value.param == "tools"
    assert "tool_format" in refused.value.message


def test_a_forced_call_is_made_again_token_by_token(house: House, model_path: Path, tmp_path: Path) -> None:
    answer = house.client.chat.completions.create(
        model="chat",
        messages=ASKED,
        tools=[MAIL, WEATHER],
        tool_choice="required",
        seed=8,
        n=2,
        max_tokens=60,
    )
    event = house.event(answer.id)
    assert isinstance(event, GenerationFinished)
    replayer = Replayer(
        house.log,
        IdentityStore(house.store),
        lambda _: model_path,
        settings=HostSettings(threads=2),
        report=lambda _: None,
    )
    (outcome,) = replayer.replay(answer.id)
    assert outcome.difference is None
    assert outcome.tokens == event.completion_tokens


def shown_how() -> list[ChatCompletionMessageParam]:
    """A conversation that a small model goes on with in the same way."""
    turns: list[ChatCompletionMessageParam] = []
    for city in ("London", "Rome", "Oslo"):
        arguments = orjson.dumps({"city": city, "unit": "C"}).decode()
        turns += [
            {"role": "user", "content": f"What is the weather in {city}?"},
            {
                "role": "assistant",
                "content": "I will look it up.",
                "tool_calls": [
                    {
                        "id": city,
                        "type": "function",
                        "function": {"name": "get_weather", "arguments": arguments},
                    }
                ],
            },
        ]
    return [*turns, {"role": "user", "content": "What is the weather in Paris?"}]


def test_a_model_that_is_told_of_tools_in_words_calls_of_itself(house: House, model_path: Path) -> None:
    asked = {
        "model": "caller",
        "messages": shown_how(),
        "tools": [WEATHER],
        "temperature": 0,
        "max_tokens": 60,
    }
    answer = house.client.chat.completions.create(**asked)  # type: ignore[call-overload]
    (choice,) = answer.choices
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", "I will look it up.")
    (call,) = choice.message.tool_calls
    assert orjson.loads(call.function.arguments) == {"city": "Paris", "unit": "C"}
    with house.client.chat.completions.stream(**asked) as stream:
        streamed = stream.get_final_completion().choices[0]
    assert streamed.finish_reason == "tool_calls"
    assert streamed.message.content == choice.message.content
    assert [one.function.arguments for one in streamed.message.tool_calls or ()] == [call.function.arguments]
    kept = house.said(answer.id)["text"]
    assert isinstance(kept, str)
    assert kept.startswith("I will look it up.\n<tool_call>[{")  # the model's own words
    replayer = Replayer(
        house.log, IdentityStore(house.store), lambda _: model_path, settings=HostSettings(threads=2),
        report=lambda _: None,
    )  # fmt: skip
    (outcome,) = replayer.replay(answer.id)
    assert outcome.difference is None


def test_n_streamed_answers_share_frames_and_usage_and_each_ends_once(house: House) -> None:
    asked = {"model": "chat", "messages": say("Name a colour."), "seed": 4, "max_tokens": 6, "n": 3}
    whole = house.client.chat.completions.create(**asked, logprobs=True)  # type: ignore[call-overload]
    chunks = list(
        house.client.chat.completions.create(  # type: ignore[call-overload]
            **asked, logprobs=True, stream=True, stream_options={"include_usage": True}
        )
    )
    assert len({chunk.id for chunk in chunks}) == 1
    *said, last = chunks
    assert last.choices == []
    assert last.usage.completion_tokens == whole.usage.completion_tokens
    assert all(chunk.usage is None for chunk in said)
    for index, answer in enumerate(whole.choices):
        choices = [choice for chunk in said for choice in chunk.choices if choice.index == index]
        assert "".join(choice.delta.content or "" for choice in choices) == answer.message.content
        assert [choice.delta.role for choice in choices if choice.delta.role] == ["assistant"]
        assert [c.finish_reason for c in choices if c.finish_reason] == [answer.finish_reason]
        scores = [score.logprob for choice in choices for score in choice.logprobs.content]
        assert scores == [score.logprob for score in answer.logprobs.content]
    assert whole.choices[0].message.refusal is None
    assert "refusal" in whole.choices[0].message.model_fields_set


def test_what_is_kept_of_an_answer_that_was_cut_is_what_the_model_wrote() -> None:
    """The call was not whole, or its marks were not shown: a replay compares with the model's own text."""
    collected = Collected(1)
    call = {"index": 0, "id": "c", "type": "function", "function": {"name": "add", "arguments": '{"a": '}}
    for raw, delta in (
        ("Hm. ", {"content": "Hm."}),
        ('<tool_call>{"name": "add", "arguments": {"a": ', {"tool_calls": [call]}),
    ):
        collected.take({"choices": [{"index": 0, "delta": delta, "raw": raw, "token_ids": [1]}]})
    (choice,) = said(collected, Ending("cancelled", None, 1.0, 1.0))["choices"]  # type: ignore[call-overload,index,misc]
    assert choice["text"] == 'Hm. <tool_call>{"name": "add", "arguments": {"a": '
    assert choice["token_ids"] == [1, 1]
    assert collected.choices[0].message["content"] == "Hm."
    assert collected.choices[0].called == ("add",)


async def test_a_turn_on_the_socket_may_call(house: House) -> None:
    async with connect(house.url.replace("http", "ws") + "/v1/chat/ws") as socket:
        turn = {"type": "turn", "model": "chat", "content": "What is the weather in Paris?", "tools": [WEATHER],
                "tool_choice": "required", "parallel_tool_calls": False, "seed": 1, "max_tokens": 100}  # fmt: skip
        await socket.send(orjson.dumps(turn).decode())
        arguments = ""
        while (frame := orjson.loads(await socket.recv()))["type"] == "delta":
            assert "content" not in frame
            arguments += frame["tool_calls"][0]["function"]["arguments"]
    assert (frame["type"], frame["finish_reason"]) == ("done", "tool_calls")
    assert orjson.loads(arguments).keys() == {"city", "unit"}
