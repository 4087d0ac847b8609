"""Tools in a request: what is read, what is refused, and that no JSON at all gets past without one of the two."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiltyard.errors import InvalidRequest
from tiltyard.models.tool_formats import BY_NAME
from tiltyard.models.tool_prompt import messages_with_calls, told_in_words
from tiltyard.wire.openai import ChatCompletionRequest, chat_request, parse_chat_request
from tiltyard.wire.tools import SIDE_EFFECTS, ToolUse

Json = dict[str, Any]
MESSAGES = [{"role": "user", "content": "hi"}]
ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "parameters": {"type": "object", "properties": {"z": {}, "a": {}}},
        "strict": True,
    },
    SIDE_EFFECTS: True,
}


def chat(**fields: object) -> ChatCompletionRequest:
    return parse_chat_request(orjson.dumps({"model": "m", "messages": MESSAGES, **fields}))


def test_tools_travel_to_the_worker_and_into_the_vault_with_their_order_and_their_mark() -> None:
    request = chat(tools=[ADD], tool_choice="required", parallel_tool_calls=False)
    again = parse_chat_request(orjson.dumps(request.to_worker(identity="m", seed=1)))
    assert again.tool_use == request.tool_use
    kept = request.served_prompt["tool_use"]
    use = ToolUse.from_json(kept)
    assert use == request.tool_use
    assert list(use.tools[0].parameters["properties"]) == ["z", "a"]  # type: ignore[call-overload]
    assert use.tools[0].side_effects is True
    # What the template sees is Hugging Face's, and nothing of ours.
    assert use.tools[0].for_template() == {
        "type": "function",
        "function": {
            "name": "add",
            "description": "",
            "parameters": {"type": "object", "properties": {"z": {}, "a": {}}},
        },
    }


@pytest.mark.parametrize(
    ("fields", "use"),
    [
        ({}, None),
        ({"tools": []}, None),
        ({"tools": [], "tool_choice": "auto"}, None),
        ({"tools": [ADD], "tool_choice": "none"}, None),
        ({"tools": [ADD]}, ("auto", None, True)),
        ({"tools": [ADD], "tool_choice": None, "parallel_tool_calls": None}, ("auto", None, True)),
        (
            {"tools": [ADD], "tool_choice": "required", "parallel_tool_calls": False},
            ("required", None, False),
        ),
        (
            {"tools": [ADD], "tool_choice": {"type": "function", "function": {"name": "add"}}},
            ("named", "add", True),
        ),
    ],
)
def test_a_choice_means_what_openai_says(fields: Json, use: tuple[str, str | None, bool] | None) -> None:
    read = chat(**fields).tool_use
    assert (None if read is None else (read.choice, read.name, read.parallel)) == use


def test_some_of_the_tools_may_be_allowed() -> None:
    sub = {"type": "function", "function": {"name": "sub"}}
    allowed = {"mode": "required", "tools": [{"type": "function", "function": {"name": "sub"}}]}
    use = chat(tools=[ADD, sub], tool_choice={"type": "allowed_tools", "allowed_tools": allowed}).tool_use
    assert use is not None
    assert (use.choice, use.only, use.names) == ("required", ("sub",), {"sub"})
    assert [tool.function.name for tool in use.tools] == ["add", "sub"]  # all are shown
    assert ToolUse.from_json(use.to_json()) == use


DEEP = json.loads('{"properties": {"a": ' * 40 + "{}" + "}}" * 40)


@pytest.mark.parametrize(
    ("fields", "param", "says"),
    [
        ({"tools": [{"type": "function"}]}, "tools[0].function", "required and missing"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name", "it must be of the form ^[a-zA-Z0-9_.-]{1,64}$"),
        ({"tools": [{"type": "function", "function": {"name": "f", "pure": True}}]}, "tools[0].function.pure", "unknown"),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": DEEP}}]},
         "tools[0].function.parameters", "64 levels"),
        ({"tools": [{**ADD, SIDE_EFFECTS: "yes"}]}, f"tools[0].{SIDE_EFFECTS}", "true or false"),
        ({"tools": [ADD] * 129}, "tools", "at most 128"),
        ({"tools": [ADD], "tool_choice": "always"}, "tool_choice", "none, auto, required or name a function"),
        ({"tools": [ADD], "tool_choice": {"type": "function"}}, "tool_choice", "a function of tools"),
        ({"tools": [ADD], "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}}},
         "tool_choice", "a function of tools"),
        ({"tools": [ADD], "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [
            {"type": "function", "function": {"name": "sub"}}]}}}, "tool_choice", "not among tools"),
        ({"tools": [ADD], "parallel_tool_calls": 1}, "parallel_tool_calls", "true or false"),
        ({"tools": [ADD], "tool_choice": "required", "ignore_eos": True}, "ignore_eos", "forced call"),
        ({"messages": [{"role": "assistant", "content": None}]}, "messages[0].content", "null"),
        ({"messages": [{"role": "assistant", "content": "x", "tool_calls": [{"id": "c", "function": {"name": "f"}}]}]},
         "messages[0].tool_calls[0].function.arguments", "missing"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id", "missing"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_refused_with_its_place(fields: Json, param: str, says: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        chat(**fields)
    assert refused.value.param == param
    assert says in refused.value.message


def test_what_the_openai_package_sends_back_of_its_own_is_no_error() -> None:
    call = {"id": "c", "index": 0, "type": "function",
            "function": {"name": "add", "arguments": "{}", "parsed_arguments": {"a": 1}}}  # fmt: skip
    message = {"role": "assistant", "content": None, "refusal": None, "parsed": {"x": 1}, "tool_calls": [call],
               "function_call": None, "audio": None, "annotations": []}  # fmt: skip
    request = chat(
        messages=[
            *MESSAGES,
            message,
            {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "3"}]},
        ]
    )
    assert request.messages[1].to_json() == {
        "role": "assistant",
        "tool_calls": [{"id": "c", "function": {"name": "add", "arguments": "{}"}}],
    }


anything = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.text(max_size=4) | st.sampled_from(["function", "add", "{}", "tool"]),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(["type", "function", "name", "parameters", "arguments", "id", "strict", SIDE_EFFECTS, "role",
                         "content", "tool_calls", "tool_call_id", "description", "x"]),
        inner,
        max_size=4,
    ),
    max_leaves=12,
)  # fmt: skip
call_like = st.fixed_dictionaries(
    {
        "id": st.just("c") | anything,
        "function": st.fixed_dictionaries(
            {"name": st.just("add"), "arguments": anything | st.just('{"a": 1}')}
        ),
    }
)
message_like = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "tool", "system", "function"])},
    optional={"content": st.text(max_size=4) | anything, "tool_calls": st.lists(call_like, max_size=2) | anything,
              "tool_call_id": st.just("c") | anything, "name": anything},
)  # fmt: skip


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "tools": st.lists(st.just(ADD) | anything, max_size=2) | anything,
            "tool_choice": st.sampled_from(["auto", "required", "none"]) | anything,
            "parallel_tool_calls": anything,
            "messages": st.lists(message_like, min_size=1, max_size=3),
        },
    )
)
def test_any_json_is_read_or_refused(fields: Json) -> None:
    try:
        request = chat_request({"model": "m", "messages": MESSAGES, **fields})
    except InvalidRequest:
        return
    # What was read can be sent on, kept and shown.
    assert (
        parse_chat_request(orjson.dumps(request.to_worker(identity="m", seed=1))).tool_use == request.tool_use
    )
    messages = [message.to_json() for message in request.messages]
    assert json.dumps(
        [messages_with_calls(messages), told_in_words(messages, request.tool_use, BY_NAME["smollm2"])]
    )
    assert orjson.dumps(request.served_prompt)
