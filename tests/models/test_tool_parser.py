"""Calls are read from an answer the same however it is cut, and what is no call is content to the letter."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiltyard.models.tool_calls import Schemas
from tiltyard.models.tool_formats import BY_NAME, FORMATS
from tiltyard.models.tool_parser import ToolParser

NAMES: Schemas = {"add": {}, "get_weather": {}}


class Read(NamedTuple):
    text: str
    calls: list[tuple[str, str]]
    complete: int


def read(format_name: str, pieces: Sequence[str], *, live: bool = False, single: bool = False) -> Read:
    parser = ToolParser(BY_NAME[format_name], NAMES, live=live, single=single)  # type: ignore[index]
    text, calls = "", list[tuple[str, str]]()
    for piece in [*map(parser.push, pieces), parser.finish()]:
        text += piece.text
        for number, name, arguments in piece.calls:
            if name is None:
                calls[number] = (calls[number][0], calls[number][1] + arguments)
            else:
                assert number == len(calls)
                calls.append((name, arguments))
    return Read(text, calls, parser.calls)


@pytest.mark.parametrize(
    ("format_name", "written", "said", "called"),
    [
        (
            "hermes",
            'Let me see.\n\n<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": [2]}}\n</tool_call>\n<tool_call>\n'
            '{"name": "get_weather", "arguments": {}}\n</tool_call>\n',
            "Let me see.",
            [("add", '{"a": 1, "b": [2]}'), ("get_weather", "{}")],
        ),
        ("hermes", '<tool_call>{"arguments": {"a": "</tool_call>"}, "name": "add"}', "", [("add", '{"a": "</tool_call>"}')]),
        ("hermes", '<tool_call>{"name": "add"}</tool_call> and more', " and more", [("add", "{}")]),
        ("hermes", '<tool_call>{"name": "add", "arguments": "{\\"a\\": 1}"}</tool_call>', "", [("add", '{"a": 1}')]),
        (
            "smollm2",
            '<tool_call>[{"name": "add", "arguments": {"a": 1}},\n{"name": "add", "arguments": {"a": 2}}]</tool_call>',
            "",
            [("add", '{"a": 1}'), ("add", '{"a": 2}')],
        ),
        ("smollm2", "<tool_call>[]</tool_call>", "<tool_call>[]</tool_call>", []),
        ("llama3", '{"name": "add", "parameters": {"a": 1}}', "", [("add", '{"a": 1}')]),
        (
            "llama3",
            '<|python_tag|>{"type": "function", "name": "add", "parameters": {}}; {"name": "add", "parameters": {"a": 2}}',
            "",
            [("add", "{}"), ("add", '{"a": 2}')],
        ),
        ("llama3", 'The JSON {"name": "add", "parameters": {}} calls.', 'The JSON {"name": "add", "parameters": {}} calls.', []),
        (
            "mistral",
            '[TOOL_CALLS] [{"name": "add", "arguments": {"a": 1}, "id": "123456789"}]',
            "",
            [("add", '{"a": 1}')],
        ),
        ("mistral-args", 'Now: [TOOL_CALLS]add[ARGS]{"a": 1}[TOOL_CALLS]add[ARGS]{}', "Now:", [("add", '{"a": 1}'), ("add", "{}")]),
        ("xlam", '[{"name": "add", "arguments": {"a": 1}}, {"name": "add", "arguments": {}}]', "",
         [("add", '{"a": 1}'), ("add", "{}")]),
        ("nemotron", '<TOOLCALL>[{"name": "add", "arguments": {}}]</TOOLCALL>', "", [("add", "{}")]),
        ("granite", '<|tool_call|>[{"name": "add", "arguments": {}}]', "", [("add", "{}")]),
        ("tool-calls", '<tool_calls>\n{"name": "add", "arguments": {}}\n</tool_calls>', "", [("add", "{}")]),
        (
            "cohere",
            '<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "add", "parameters": {"a": 1}}\n]<|END_ACTION|>',
            "",
            [("add", '{"a": 1}')],
        ),
    ],
)  # fmt: skip
def test_each_format_is_read(
    format_name: str, written: str, said: str, called: list[tuple[str, str]]
) -> None:
    """vLLM #22885: the last `}` was lost; vLLM #11392, #28806: arguments that are `{}` were dropped from streams."""
    assert read(format_name, [written]) == (said, called, len(called))
    assert read(format_name, list(written)) == (said, called, len(called))
    # Live, for a grammar: the same calls, though their arguments come in pieces.
    if not any(arguments.startswith('"') for arguments in written.split('"arguments": ')[1:]):
        assert read(format_name, list(written), live=True).calls == called


@pytest.mark.parametrize(
    ("format_name", "written"),
    [
        ("hermes", 'a \n<tool_call>{"name": "add", "arguments": {"a": 1'),
        ("hermes", "a <tool_call>\n{nothing like it}</tool_call> b"),
        ("hermes", 'a <tool_call>{"name": "format_disk", "arguments": {}}</tool_call>'),
        ("hermes", '<tool_call>{"name": "add", "arguments": [1]}</tool_call>'),
        ("hermes", '<tool_call>{"name": "add", "arguments": {"a": 01}}</tool_call>'),
        ("hermes", '<tool_call>{"name": "\\ud800", "arguments": {}}</tool_call>'),
        ("hermes", "The tag <tool_call> opens a call and </tool_call> closes it."),
        ("hermes", "<tool_call></tool_call>"),
        ("hermes", "no calls at all \n\n"),
        ("hermes", "<tool_call>\n"),
        ("llama3", '\n{"answer": 42}'),
        ("llama3", "[1, 2, 3]"),
        ("llama3", '{"name": "add"'),
        ("llama3", '<|python_tag|>print("hello")'),
        ("mistral", "[TOOL_CALLS]"),
        ("mistral-args", "[TOOL_CALLS]format_disk[ARGS]{}"),
        ("mistral-args", "[TOOL_CALLS]add[ARGS"),
    ],
)
def test_what_is_no_call_is_content_to_the_letter(format_name: str, written: str) -> None:
    """llama.cpp #22072: HTTP 500 for a call that could not be read; vLLM #21544, #10589: it broke the stream."""
    assert read(format_name, [written]) == (written, [], 0)
    assert read(format_name, list(written)) == (written, [], 0)


def test_json_without_its_tags_is_no_call() -> None:
    """llama.cpp #18183: JSON in an answer's text was taken for a call."""
    written = '```json\n{"name": "add", "arguments": {"a": 1}}\n```'
    assert read("hermes", list(written)) == (written, [], 0)
    assert read("hermes", [written[8:-4]]) == (written[8:-4], [], 0)


def test_with_single_the_answer_is_over_after_one_call() -> None:
    parser = ToolParser(BY_NAME["smollm2"], NAMES, single=True)
    first = parser.push('<tool_call>[{"name": "add", "arguments": {}}')
    assert parser.done
    assert [call.name for call in first.calls] == ["add"]
    assert parser.push(', {"name": "add", "arguments": {}}]</tool_call>') == ("", [])
    assert parser.finish() == ("", [])


def test_live_arguments_come_while_they_are_written() -> None:
    parser = ToolParser(BY_NAME["hermes"], NAMES, live=True)
    assert parser.push('<tool_call>{"name": "add", "argu') == ("", [])
    assert parser.push('ments": {"a') == ("", [(0, "add", '{"a')])
    assert parser.push('": 1') == ("", [(0, None, '": 1')])
    assert parser.push("}}\n</tool_call>") == ("", [(0, None, "}")])


ARGUMENTS = st.dictionaries(
    st.text(max_size=4),
    st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=6), st.lists),
    max_size=3,
)
CALLS = st.lists(st.tuples(st.sampled_from(sorted(NAMES)), ARGUMENTS), min_size=1, max_size=3)


def written_in(format_name: str, calls: Sequence[tuple[str, dict[str, object]]]) -> str:
    rules = BY_NAME[format_name]  # type: ignore[index]
    if rules.after_name:
        return rules.between.join(
            f"{rules.begin}{n}{rules.after_name}{json.dumps(a)}{rules.end}" for n, a in calls
        )
    objects = [json.dumps({rules.name_key: n, rules.arguments_key: a}) for n, a in calls]
    if rules.listed:
        return rules.begin + rules.between.join(objects) + rules.end
    return rules.between.join(rules.begin + one + rules.end for one in objects)


@given(st.sampled_from([row.name for row in FORMATS if not row.tagged]), CALLS, st.data())
def test_what_a_format_writes_it_reads_however_it_is_cut(
    format_name: str, calls: list[tuple[str, dict[str, object]]], data: st.DataObject
) -> None:
    written = written_in(format_name, calls)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(written)), max_size=8)))
    pieces = [written[a:b] for a, b in zip([0, *cuts], [*cuts, len(written)], strict=True)]
    for live in (False, True):
        got = read(format_name, pieces, live=live)
        assert got.text == ""
        assert got.calls == [(name, json.dumps(arguments)) for name, arguments in calls]


TAGGED: Schemas = {
    "add": {
        "properties": {"s": {"type": "string"}, "n": {"type": "integer"}, "o": {}, "e": {"enum": ["1", "2"]}}
    }
}
TEXTS = st.text(alphabet='a1\n <>"é', max_size=8)


@given(
    st.lists(
        st.fixed_dictionaries(
            {},
            optional={
                "s": TEXTS,
                "n": st.integers(),
                "o": st.lists(TEXTS) | st.none(),
                "e": st.sampled_from("12"),
            },
        ),
        min_size=1,
        max_size=3,
    ),
    st.data(),
)
def test_values_in_tags_have_the_type_of_their_schema_however_they_are_cut(
    calls: list[dict[str, object]], data: st.DataObject
) -> None:
    written = ""
    for call in calls:
        values = [
            f"<parameter={k}>\n{v if k in 'se' else json.dumps(v)}\n</parameter>\n" for k, v in call.items()
        ]
        written += f"<tool_call>\n<function=add>\n{''.join(values)}</function>\n</tool_call>\n"
    cuts = sorted(data.draw(st.lists(st.integers(0, len(written)), max_size=8)))
    parser = ToolParser(BY_NAME["qwen3-coder"], TAGGED, live=data.draw(st.booleans()))
    pieces = [parser.push(written[a:b]) for a, b in zip([0, *cuts], [*cuts, len(written)], strict=True)]
    pieces.append(parser.finish())
    assert "".join(piece.text for piece in pieces) == ""
    assert [json.loads(delta.arguments) for piece in pieces for delta in piece.calls] == calls


@pytest.mark.parametrize(
    "written",
    [
        "<tool_call>\n<function=add>\n<parameter=a>\n1\n",
        "<tool_call>\n<function=sub>\n</function>\n</tool_call>",
        "<tool_call>\n<function=add>\nsome text</function>",
        "<tool_call>\n<function=a b>\n</function>",
        '<tool_call>\n{"name": "add", "arguments": {}}\n</tool_call>',
        "<tool_call><tool_call><func",
    ],
)
def test_what_is_no_call_in_tags_is_content_to_the_letter(written: str) -> None:
    assert read("qwen3-coder", [written]) == (written, [], 0)
    assert read("qwen3-coder", list(written)) == (written, [], 0)


MARKS = ["<tool_call>", '{"foo": "', "<function=add>", "<parameter=a>", "</parameter>", "</function>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "<|python_tag|>", '{"name": "add", "arguments": {}}',
         '{"name": "add", "arguments": {"a": ', "add", "[", "]", ";", ",", " ", "\n", "{", "}", '"', "<", "</", "<tool",
         "[TOOL", "text", " " * 70, "\n" * 64, "[" * 300]  # fmt: skip


@given(
    st.sampled_from([row.name for row in FORMATS]),
    st.lists(st.sampled_from(MARKS) | st.text(max_size=3), max_size=12).map("".join),
    st.data(),
    st.booleans(),
    st.booleans(),
)
def test_any_text_reads_the_same_however_it_is_cut(
    format_name: str,
    written: str,
    data: st.DataObject,
    live: bool,
    single: bool,
) -> None:
    """vLLM #10395, #31871, OVMS #3838: what was read depended on where the stream was cut."""
    whole = read(format_name, [written], live=live, single=single)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(written)), max_size=8)))
    pieces = [written[a:b] for a, b in zip([0, *cuts], [*cuts, len(written)], strict=True)]
    assert read(format_name, pieces, live=live, single=single) == whole
    assert read(format_name, list(written), live=live, single=single) == whole
    if not whole.calls and live:  # but for the beginning of a call that was cut short
        assert written.startswith(whole.text)
    elif not whole.calls:
        assert whole.text == written
