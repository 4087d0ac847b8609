"""`/v1/responses` with the real openai package, before a scripted worker."""

from __future__ import annotations

from collections.abc import Iterator

import httpx2
import openai
import orjson
import pytest
from gateway_stage import Stage
from openai import OpenAI

from tiltyard.wire.sse import SseParser


@pytest.fixture
def client(stage: Stage) -> Iterator[OpenAI]:
    with OpenAI(base_url=stage.url + "/v1", api_key="any", max_retries=0) as client:
        yield client


def test_a_response_is_a_chat_answer_in_other_words(stage: Stage, client: OpenAI) -> None:
    answer = client.responses.create(
        model="chat", input="!count 3", instructions="Be brief.", metadata={"a": "b"}, temperature=0.25
    )
    assert (answer.status, answer.output_text) == ("completed", "0 1 2 ")
    assert (answer.instructions, answer.metadata, answer.temperature) == ("Be brief.", {"a": "b"}, 0.25)
    assert answer.usage is not None
    assert (answer.usage.input_tokens, answer.usage.output_tokens, answer.usage.total_tokens) == (7, 3, 10)
    assert answer.usage.input_tokens_details.cached_tokens == 4
    event = stage.log.generation(answer.id.replace("resp_", "gen_"))
    assert (event.endpoint, event.sampling.temperature, event.error) == ("responses", 0.25, None)
    assert event.prompt is not None
    kept = orjson.loads(stage.log.own_words("test").read(event.prompt))
    assert kept["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "!count 3"},
    ]


def test_a_response_streams_openais_events_in_order(client: OpenAI) -> None:
    with client.responses.stream(model="chat", input="!count 2") as stream:
        events = list(stream)
        final = stream.get_final_response()
    assert [event.type for event in events] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert [event.sequence_number for event in events] == [*range(10)]
    assert final.output_text == "0 1 "
    assert final.usage is not None
    assert final.usage.output_tokens == 2


def test_a_response_that_reached_its_limit_is_incomplete(client: OpenAI) -> None:
    whole = client.responses.create(model="chat", input="!count 3", max_output_tokens=2)
    *_, last = client.responses.create(model="chat", input="!count 3", max_output_tokens=2, stream=True)
    assert last.type == "response.incomplete"
    for answer in (whole, last.response):
        assert (answer.status, answer.output_text) == ("incomplete", "0 1 ")
        assert answer.incomplete_details is not None
        assert answer.incomplete_details.reason == "max_output_tokens"
        assert answer.usage is not None
        assert answer.usage.output_tokens == 2


def test_a_response_goes_on_from_an_earlier_one_without_its_instructions(
    stage: Stage, client: OpenAI
) -> None:
    first = client.responses.create(model="chat", input="one", instructions="Speak like a pirate.")
    second = client.responses.create(model="chat", input="two", previous_response_id=first.id)
    third = client.responses.create(
        model="chat", input="three", previous_response_id=second.id, instructions="Speak plainly."
    )
    assert third.output_text == "three"
    assert third.previous_response_id == second.id
    assert stage.workers[0].bodies[-1]["messages"] == [
        {"role": "system", "content": "Speak plainly."},
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "one"},
        {"role": "user", "content": "two"},
        {"role": "assistant", "content": "two"},
        {"role": "user", "content": "three"},
    ]


def test_what_was_not_to_be_stored_is_not_there_to_go_on_from(client: OpenAI) -> None:
    first = client.responses.create(model="chat", input="one", store=False)
    with pytest.raises(openai.NotFoundError) as caught:
        client.responses.create(model="chat", input="two", previous_response_id=first.id)
    assert (caught.value.param, caught.value.code) == ("previous_response_id", "response_not_found")
    with pytest.raises(openai.NotFoundError):
        client.responses.create(model="chat", input="two", previous_response_id="resp_" + "0" * 32)
    chat = client.chat.completions.create(model="chat", messages=[{"role": "user", "content": "x"}])
    other_door = chat.id.replace("gen_", "resp_")
    with pytest.raises(openai.NotFoundError):
        client.responses.create(model="chat", input="two", previous_response_id=other_door)


def test_items_of_a_conversation_are_read_as_messages(stage: Stage, client: OpenAI) -> None:
    first = client.responses.create(model="chat", input="one")
    client.responses.create(
        model="chat",
        input=[
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": [{"type": "input_text", "text": "one"}]},
            *[item.model_dump() for item in first.output],  # type: ignore[list-item]
            {"role": "user", "content": "two"},
        ],
    )
    assert stage.workers[0].bodies[-1]["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "one"},
        {"role": "user", "content": "two"},
    ]


def test_a_form_is_demanded_by_text_format(stage: Stage, client: OpenAI) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    answer = client.responses.create(
        model="chat",
        input="x",
        text={"format": {"type": "json_schema", "name": "n", "schema": schema, "strict": True}},
    )
    assert stage.workers[0].bodies[-1]["response_format"] == {
        "type": "json_schema",
        "json_schema": {"name": "n", "schema": schema, "strict": True},
    }
    assert answer.text is not None
    assert answer.text.format is not None
    assert answer.text.format.type == "json_schema"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"foo": 1}, "foo"),
        ({"background": True}, "background"),
        ({"temperature": 3}, "temperature"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"input": []}, "input"),
        ({"input": [{"type": "reasoning", "summary": []}]}, "input[0]"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0]"),
        ({"input": [{"role": "user", "content": "x", "bad": 1}]}, "input[0].bad"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format.schema"),
        ({"text": {"verbosity": "high"}}, "text.verbosity"),
        ({"previous_response_id": "x"}, "previous_response_id"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"input": [{"type": "function_call_output", "call_id": "t", "output": "1"}]}, "input[0].call_id"),
        ({"tools": [{"type": "function", "name": "f", "parameters": {}}] * 2}, "tools[1].name"),
        ({"input": "!refuse"}, "input"),
    ],
)
def test_a_refusal_names_the_field_as_it_was_written(
    stage: Stage, fields: dict[str, object], param: str
) -> None:
    body = {"model": "chat", "input": "x", **fields}
    answer = httpx2.post(stage.url + "/v1/responses", json=body)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param


def test_a_broken_stream_ends_as_failed_with_the_usage_of_what_came(stage: Stage) -> None:
    """vLLM #57082, vLLM #52852: an aborted stream looked successful, or had no last chunk."""
    body = {"model": "chat", "input": "!error 2", "stream": True}
    answer = httpx2.post(stage.url + "/v1/responses", json=body)
    *_, last = [orjson.loads(event.data) for event in SseParser().feed(answer.content)]
    assert last["type"] == "response.failed"
    response = last["response"]
    assert response["status"] == "failed"
    assert response["error"]["code"] == "server_error"
    assert response["error"]["tiltyard_code"] == "engine_failed"
    assert response["output"][0]["content"][0]["text"] == "0 1 "
    assert response["usage"]["output_tokens"] == 2


def test_a_stored_response_is_shown_again(client: OpenAI) -> None:
    first = client.responses.create(model="chat", input="!count 3", metadata={"a": "b"}, max_output_tokens=2)
    again = client.responses.retrieve(first.id)
    assert again.model_dump() == first.model_dump() | {"created_at": again.created_at}
    assert abs(again.created_at - first.created_at) <= 1
    unstored = client.responses.create(model="chat", input="x", store=False)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(unstored.id)


def test_a_failed_response_is_shown_as_failed(stage: Stage, client: OpenAI) -> None:
    body = {"model": "chat", "input": "!error 2", "stream": True}
    answer = httpx2.post(stage.url + "/v1/responses", json=body)
    again = client.responses.retrieve(answer.headers["x-tiltyard-generation"].replace("gen_", "resp_"))
    assert again.status == "failed"
    assert again.error is not None
    assert (again.error.code, again.output_text) == ("server_error", "0 1 ")


@pytest.mark.parametrize("number", [2**53, 1e300, -(2**63)])
def test_any_number_in_a_schema_is_given_back(client: OpenAI, number: float) -> None:
    schema = {"type": "number", "maximum": number}
    answer = client.responses.create(
        model="chat", input="x", text={"format": {"type": "json_schema", "name": "n", "schema": schema}}
    )
    again = client.responses.retrieve(answer.id)
    assert again.text is not None
    assert again.text.format is not None
    assert again.text.format.model_dump(by_alias=True)["schema"] == schema


def test_a_schema_that_could_not_be_given_back_is_refused_before_anything_runs(stage: Stage) -> None:
    schema: object = 1
    for _ in range(250):
        schema = {"a": schema}
    text = {"format": {"type": "json_schema", "name": "n", "schema": schema}}
    answer = httpx2.post(stage.url + "/v1/responses", json={"model": "chat", "input": "x", "text": text})
    assert answer.status_code == 400, answer.text
