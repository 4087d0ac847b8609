"""Calls of tools through the worker's door, by a toy that writes what it is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import orjson
import pytest

from tiltyard.wire.sse import DONE, SseParser
from tiltyard.worker.spelling import MarksShown
from toy_host import ByteTokenizer, ToyWorker, toy_worker, until

Json = dict[str, Any]
TEMPLATE = """\
{% for m in messages %}{{ m.role }}:{{ m.content }}\
{% for c in m.tool_calls or [] %}({{ c.function.name }} {{ c.function.arguments | tojson }}){% endfor %}\
{% if m.role == 'tool' %}({{ m.name }}){% endif %};{% endfor %}\
{% if tools %}{{ tools | tojson }}{% endif %}~"""
ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "parameters": {
            "type": "object",
            "properties": {"a": {"enum": [7, 8]}, "b": {"type": "boolean"}},
            "required": ["a", "b"],
            "additionalProperties": False,
        },
    },
}
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 7, "b": true}}\n</tool_call>'


def chat(content: str = "go", **fields: object) -> Json:
    messages = [{"role": "user", "content": content}]
    return {"model": "toy", "messages": messages, "seed": 1, "tools": [ADD], "max_tokens": 200, **fields}


@asynccontextmanager
async def toy(script: str, tool_format: str = "hermes") -> AsyncIterator[ToyWorker]:
    async with toy_worker(script, template=TEMPLATE, tool_format=tool_format, anchor="~") as worker:
        yield worker


async def ask(worker: ToyWorker, body: Json) -> Json:
    async with httpx2.AsyncClient(base_url=worker.url) as http:
        answer = await http.post("/v1/chat/completions", json=body)
        return {"status": answer.status_code, **answer.json()}


async def stream(worker: ToyWorker, body: Json) -> list[Json]:
    """The frames of a stream."""
    async with httpx2.AsyncClient(base_url=worker.url) as http:
        answer = await http.post("/v1/chat/completions", json=body | {"stream": True})
    events = SseParser().feed(answer.content)
    assert events[-1].data == DONE
    return [orjson.loads(event.data) for event in events[:-1]]


def joined(frames: Sequence[Json], index: int = 0) -> tuple[Json, str | None]:
    """The message that a client puts together, and how it ended."""
    content, calls, end = "", list[Json](), None
    for frame in frames:
        for choice in frame["choices"]:
            if choice["index"] != index:
                continue
            content += choice["delta"].get("content") or ""
            end = choice["finish_reason"] or end
            for call in choice["delta"].get("tool_calls", ()):
                if "id" in call:
                    assert call["index"] == len(calls)
                    calls.append(
                        {"id": call["id"], "type": call["type"], "function": call["function"].copy()}
                    )
                else:
                    assert set(call) == {"index", "function"}
                    calls[call["index"]]["function"]["arguments"] += call["function"]["arguments"]
    message: Json = {"role": "assistant", "content": content, "refusal": None}
    if calls:
        message |= {"content": content or None, "tool_calls": calls}
    return message, end


async def both(worker: ToyWorker, body: Json) -> tuple[Json, str]:
    """The message and the end of an answer, the same whether it is streamed or not."""
    frames = await stream(worker, body)
    whole = await ask(worker, body)
    (choice,) = whole["choices"]
    message, end = joined(frames)
    for one in (message, choice["message"]):
        for call in one.get("tool_calls", ()):
            call["id"] = call["id"][:5]  # the rest names the generation
    assert (choice["message"], choice["finish_reason"]) == (message, end)
    usage = frames[-1]["usage"]
    assert {**whole["usage"], "prompt_tokens_details": None} == {**usage, "prompt_tokens_details": None}
    return message, choice["finish_reason"]


def called(arguments: str) -> Json:
    return {"id": "call_", "type": "function", "function": {"name": "add", "arguments": arguments}}


async def test_a_call_is_read_and_what_stands_around_it_is_content() -> None:
    """SGLang #7934, vLLM #31871: the stream ended with `stop`, or showed the call as text."""
    async with toy(f"Let me add.\n{CALL}\n{CALL} Done.") as worker:
        message, end = await both(worker, chat())
    assert message == {
        "role": "assistant",
        "content": "Let me add. Done.",
        "refusal": None,
        "tool_calls": [called('{"a": 7, "b": true}')] * 2,
    }
    assert end == "tool_calls"


async def test_the_deltas_of_a_call_are_shaped_as_openai_shapes_them() -> None:
    async with toy(CALL) as worker:
        frames = await stream(worker, chat())
    deltas = [choice["delta"] for frame in frames for choice in frame["choices"]]
    assert deltas[0] == {"role": "assistant", "content": None, "refusal": None}
    (calls,) = [delta["tool_calls"] for delta in deltas if "tool_calls" in delta]
    (call,) = calls
    assert call.pop("id").startswith("call_")
    assert call == {
        "index": 0, "type": "function", "function": {"name": "add", "arguments": '{"a": 7, "b": true}'},
    }  # fmt: skip
    assert frames[-2]["choices"][0]["finish_reason"] == "tool_calls"
    assert frames[-1]["tiltyard"]["choices"][0]["text"] == CALL  # what the model wrote is kept


@pytest.mark.parametrize(
    "script", ["No tools.", f"{CALL[:-14]}", CALL.replace("add", "sub"), CALL.replace("7,", "7")]
)
async def test_what_is_no_call_stays_content(script: str) -> None:
    """llama.cpp #22072: HTTP 500 for a call that could not be read."""
    async with toy(script) as worker:
        message, end = await both(worker, chat())
    assert message == {"role": "assistant", "content": script, "refusal": None}
    assert end == "stop"


async def test_without_parallel_calls_the_answer_ends_after_one_and_frees_its_blocks() -> None:
    """vLLM #9451, SGLang #9696: `parallel_tool_calls` was ignored; vLLM PR #26233 drops the other calls unsaid."""
    async with toy(CALL * 3) as worker:
        message, end = await both(worker, chat(parallel_tool_calls=False))
        assert message["tool_calls"] == [called('{"a": 7, "b": true}')]
        assert end == "tool_calls"
        usage = (await ask(worker, chat(parallel_tool_calls=False)))["usage"]
        assert usage["completion_tokens"] == CALL.index("}}") + 2
        await until(lambda: worker.service.state.blocks_used == 0)


async def test_an_answer_that_is_cut_within_a_call_says_length() -> None:
    """vLLM #53269: the stream said `tool_calls` for a call that was cut."""
    async with toy(CALL) as worker:
        message, end = await both(worker, chat(max_tokens=30))
        assert message == {"role": "assistant", "content": CALL[:30], "refusal": None}
        assert end == "length"
        message, end = await both(worker, chat(max_tokens=len(CALL) - 15, tool_choice="required"))
        assert end == "length"
        assert message["tool_calls"] == [called('{"a": 7, "b": true')]


@pytest.mark.parametrize("tokens", [12, 25])
async def test_a_forced_call_that_is_cut_before_its_arguments_is_no_content(tokens: int) -> None:
    """A client showed its user `<tool_call>{"name": `."""
    async with toy(CALL) as worker:
        message, end = await both(worker, chat(max_tokens=tokens, tool_choice="required"))
        assert end == "length"
        assert not message["content"]
        assert "tool_calls" not in message


async def test_a_call_is_forced_from_a_model_that_would_say_something_else() -> None:
    """vLLM PR #9209: a named function ended with `stop`."""
    named = {"type": "function", "function": {"name": "add"}}
    async with toy("I would rather not.") as worker:
        for choice in ("required", named):
            message, end = await both(worker, chat(tool_choice=choice, parallel_tool_calls=False))
            assert end == "tool_calls"
            assert message["content"] is None
            (call,) = message["tool_calls"]
            assert orjson.loads(call["function"]["arguments"]).keys() == {"a", "b"}


async def test_forced_arguments_come_in_pieces() -> None:
    async with toy("") as worker:
        frames = await stream(worker, chat(tool_choice="required", parallel_tool_calls=False, n=2))
    for index in (0, 1):
        pieces = [
            call
            for frame in frames
            for choice in frame["choices"]
            if choice["index"] == index
            for call in choice["delta"].get("tool_calls", ())
        ]
        assert [set(piece) for piece in pieces] == [{"index", "id", "type", "function"}] + [
            {"index", "function"}
        ] * (len(pieces) - 1)
        assert len(pieces) > 10
    assert joined(frames, 0)[0]["tool_calls"][0]["id"] != joined(frames, 1)[0]["tool_calls"][0]["id"]


async def test_text_in_tags_comes_whole_forced_or_not() -> None:
    mail = {"type": "function", "function": {"name": "mail", "parameters": {
        "type": "object", "properties": {"to": {"type": "string"}, "copies": {"enum": [1, 2]}}, "required": ["to", "copies"],
    }}}  # fmt: skip
    values = '<parameter=to>\nAnn "and" <Bob>\n</parameter>\n<parameter=copies>\n2\n</parameter>\n'
    async with toy(
        f"<tool_call>\n<function=mail>\n{values}</function>\n</tool_call>", "qwen3-coder"
    ) as worker:
        for choice in ("auto", "required"):
            message, end = await both(
                worker, chat(tools=[mail], tool_choice=choice, parallel_tool_calls=False)
            )
            assert end == "tool_calls"
            (call,) = message["tool_calls"]
            assert orjson.loads(call["function"]["arguments"]) == {"to": 'Ann "and" <Bob>', "copies": 2}


STRICT = {**ADD, "function": {**ADD["function"], "strict": True}}  # type: ignore[dict-item]


async def test_a_strict_function_is_called_right_or_not_at_all() -> None:
    async with toy("No tools <today>.") as worker:
        message, end = await both(worker, chat(tools=[STRICT]))
        assert (message["content"], end) == ("No tools <today>.", "stop")
    # The toy writes what its script says where it may, and the nearest that is right where it may not.
    async with toy(
        'Let me see.\n<tool_call>\n{"name": "add", "arguments": {"a": 9, "b": true}}\n</tool_call>'
    ) as worker:
        message, end = await both(worker, chat(tools=[STRICT], parallel_tool_calls=False))
        assert end == "tool_calls"
        assert message["content"] == "Let me see."
        (call,) = message["tool_calls"]
        assert orjson.loads(call["function"]["arguments"])["a"] in {7, 8}


async def test_the_arguments_of_a_strict_function_come_while_they_are_written() -> None:
    async with toy(f"Let me see.\n{CALL}") as worker:
        frames = await stream(worker, chat(tools=[STRICT]))
    pieces = [c for f in frames for choice in f["choices"] for c in choice["delta"].get("tool_calls", ())]
    assert "".join(piece["function"]["arguments"] for piece in pieces) == '{"a": 7, "b": true}'
    assert len(pieces) == len('{"a": 7, "b": true}')


@pytest.mark.parametrize(
    ("script", "said", "calls"), [('{"sum": 15}', '{"sum": 15}', 0), (f"{CALL}\n{CALL}", None, 2)]
)
async def test_an_answer_of_a_form_may_be_a_call_instead(script: str, said: str | None, calls: int) -> None:
    schema = {"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]}
    form = {
        "type": "json_schema",
        "json_schema": {"name": "s", "schema": schema | {"additionalProperties": False}},
    }
    async with toy(script) as worker:
        message, end = await both(worker, chat(response_format=form))
    assert message["content"] == said
    assert len(message.get("tool_calls", ())) == calls
    assert end == ("tool_calls" if calls else "stop")


async def test_tools_and_calls_reach_the_template_as_hugging_face_gives_them() -> None:
    """LocalAI PR #10256: arguments reached the template as text; a result has its function's name."""
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"b": false, "a": 8}'}}
    messages = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "15<end>"},
    ]
    async with toy("Fifteen.") as worker:
        host = worker.service.host
        answer = await ask(worker, chat(messages=messages, tool_choice="auto"))
        assert answer["choices"][0]["message"]["content"] == "Fifteen."
        without = await ask(worker, chat(messages=messages, tool_choice="none"))
        shown = (
            '[{"type": "function", "function": {"name": "add", "description": "", "parameters": '
            + orjson.dumps(
                ADD["function"]["parameters"]  # type: ignore[index]
            )
            .decode()
            .replace(":", ": ")
            .replace(",", ", ")
            + "}}]~"
        )
        said = 'user:go;assistant:(add {"b": false, "a": 8});tool:15<end>(add);'
        assert answer["usage"]["prompt_tokens"] == len(said + shown)
        assert without["usage"]["prompt_tokens"] == len(said + "~")
        # What a tool gave is text, even where it spells a control token.
        prompt = host.encode_chat(host.identity("toy"), [*messages])
        assert bytes(prompt).decode() == said + "~"


async def test_a_cut_call_in_the_history_does_not_end_the_conversation() -> None:
    """llama.cpp #25510, OpenHands #13949: arguments that are no JSON gave HTTP 500 ever after."""
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": '}}
    messages = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "no JSON"},
    ]
    async with toy("Again.") as worker:
        answer = await ask(worker, chat(messages=messages))
        assert answer["choices"][0]["message"]["content"] == "Again."


@pytest.mark.parametrize(
    ("fields", "param", "says"),
    [
        ({"tools": [ADD, ADD]}, "tools[1].function.name", "give each function its own name"),
        ({"tool_choice": {"type": "function", "function": {"name": "sub"}}}, "tool_choice", "not among tools (add)"),
        ({"tools": [], "tool_choice": "required"}, "tool_choice", "there are no tools"),
        ({"structured_outputs": {"regex": "a+"}}, "structured_outputs.regex", "leaves no room"),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "array"}}}],
             "tool_choice": "required"},
            "tools", "must be a schema of type object",
        ),
        (
            {"tools": [ADD, {"type": "function", "function": {"name": "f", "parameters": {"properties": {"a": {"uniqueItems": True}}}}}],
             "tool_choice": {"type": "function", "function": {"name": "f"}}},
            "tools", "tools at tools[1].function.parameters.properties.a.uniqueItems: the keyword",
        ),
        (
            {"messages": [{"role": "tool", "tool_call_id": "c9", "content": "1"}]},
            "messages[0].tool_call_id", "no message before it called",
        ),
    ],
)  # fmt: skip
async def test_what_cannot_be_done_is_refused_by_name(fields: Json, param: str, says: str) -> None:
    async with toy("Hm.") as worker:
        answer = await ask(worker, chat(**fields))
    assert answer["status"] == 400
    assert answer["error"]["param"] == param
    assert says in answer["error"]["message"]


async def test_a_model_that_was_not_made_for_tools_says_so_and_what_to_do() -> None:
    async with toy_worker("Hm.") as worker:
        answer = await ask(worker, chat())
        assert answer["status"] == 400
        assert answer["error"]["param"] == "tools"
        assert 'tool_choice "required"' in answer["error"]["message"]
        assert "tool_format" in answer["error"]["message"]
        assert (await ask(worker, chat(">", tool_choice="none")))["status"] == 200


async def test_a_client_that_leaves_during_a_call_frees_its_blocks() -> None:
    async with toy_worker(
        CALL * 9, gated=True, template=TEMPLATE, tool_format="hermes", anchor="~"
    ) as worker:
        asking = asyncio.create_task(stream(worker, chat()))
        for _ in range(12):
            worker.model.permits.release()
        await until(lambda: worker.model.steps >= 12)
        asking.cancel()
        worker.model.open()
        await until(lambda: worker.service.state.blocks_used == 0)


def test_marks_that_are_control_tokens_are_shown_to_the_parser_and_others_are_not() -> None:
    shown = MarksShown(ByteTokenizer(), {"<end>"})
    assert shown.token_bytes(256) == b"<end>"
    assert shown.token_bytes(65) == b"A"
    assert MarksShown(ByteTokenizer(), {"<tool_call>"}).token_bytes(256) == b""
