"""What the grammar of calls lets through, the parser reads: any walk through it ends in right calls."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping

import numpy as np
import orjson
import pytest

from tiltyard.errors import InvalidRequest
from tiltyard.models.grammar import Vocabulary
from tiltyard.models.grammar_text import grammar_text
from tiltyard.models.tool_calls import Schemas
from tiltyard.models.tool_formats import BY_NAME, FORMATS
from tiltyard.models.tool_grammar import form_with_calls
from tiltyard.models.tool_parser import ToolParser
from tiltyard.wire.structured import Structure
from tiltyard.wire.tools import Tool, ToolUse

END = 256
ADD = {
    "properties": {"a": {"enum": [7, 8]}, "b": {"type": "boolean"}},
    "required": ["a"],
    "additionalProperties": False,
}
SAY = {
    "type": "object",
    "properties": {"to": {"enum": ["Ann", 'B"ob']}},
    "required": ["to"],
    "additionalProperties": False,
}


def tool(name: str, parameters: object, *, strict: bool | None = None) -> Tool:
    function = {"name": name, "parameters": parameters, "strict": strict}
    return Tool.model_validate({"type": "function", "function": function})


def schemas_of(use: ToolUse) -> Schemas:
    return {one.function.name: one.parameters for one in use.callable}


def walks(form: Structure, control: Mapping[str, int], count: int) -> Iterator[str]:
    """Take any token that may come, until none may; control tokens are shown as the parser sees them."""
    tokens = [bytes([byte]) for byte in range(256)] + [b"<end>", *(name.encode() for name in control)]
    special = [END, *control.values()]
    grammar = Vocabulary(tokens, special, [END], len(tokens)).compile(grammar_text(form))
    mask = np.zeros(-(-len(tokens) // 32), np.uint32)
    for seed in range(count):
        state, rng, text = grammar.start(), random.Random(seed), b""
        while not state.complete:
            state.fill(mask)
            allowed = [token for token in range(len(tokens)) if mask[token // 32] >> (token % 32) & 1]
            if END in allowed and (len(allowed) == 1 or rng.random() < 0.3):
                break
            token = rng.choice([token for token in allowed if token != END])
            state.accept(token)
            text += tokens[token]
        yield text.decode()


@pytest.mark.parametrize("as_tokens", [False, True])
@pytest.mark.parametrize("name", [row.name for row in FORMATS])
def test_whatever_a_forced_answer_says_is_read_as_calls(name: str, as_tokens: bool) -> None:
    rules = BY_NAME[name]  # type: ignore[index]
    control = {mark: 257 + number for number, mark in enumerate(sorted(rules.marks))} if as_tokens else {}
    use = ToolUse(tools=(tool("add", ADD), tool("say", SAY)), choice="required")
    counts = set()
    form = form_with_calls(rules, use, control, single=False)
    assert form is not None
    for text in walks(form, control, 12):
        parser = ToolParser(rules, schemas_of(use), live=True)
        pieces = [parser.push(character) for character in text] + [parser.finish()]
        assert "".join(piece.text for piece in pieces) == ""
        counts.add(parser.calls)
        arguments: dict[int, str] = {}
        for piece in pieces:
            for number, _, more in piece.calls:
                arguments[number] = arguments.get(number, "") + more
        assert len(arguments) == parser.calls > 0
        for said in arguments.values():
            value = orjson.loads(said)
            assert value.get("a") in {7, 8} or value["to"] in {"Ann", 'B"ob'}
    assert len(counts) > 1  # several at once, too


@pytest.mark.parametrize("name", [row.name for row in FORMATS])
def test_single_means_one(name: str) -> None:
    rules = BY_NAME[name]  # type: ignore[index]
    use = ToolUse(tools=(tool("add", ADD),), choice="named", name="add")
    form = form_with_calls(rules, use, {}, single=True)
    assert form is not None
    parser = ToolParser(rules, schemas_of(use))
    parser.push(*walks(form, {}, 1))
    parser.finish()
    assert parser.calls == 1


def test_values_in_tags_are_held_to_their_schemas_or_the_schema_is_refused() -> None:
    rules = BY_NAME["qwen3-coder"]
    held = {
        "properties": {"s": {"type": "string", "enum": ["1", "</a>"]}, "n": {"type": "integer", "minimum": 3, "maximum": 5},
                       "l": {"type": "array", "items": {"$ref": "#/$defs/one"}, "maxItems": 2}},
        "required": ["n"], "$defs": {"one": {"enum": [1, "x"]}},
    }  # fmt: skip
    use = ToolUse(tools=(tool("add", held),), choice="required")
    form = form_with_calls(rules, use, {}, single=True)
    assert form is not None
    for text in walks(form, {}, 8):
        parser = ToolParser(rules, schemas_of(use))
        (call,) = parser.push(text).calls + parser.finish().calls
        value = orjson.loads(call.arguments)
        assert 3 <= value.pop("n") <= 5
        assert all(one in {1, "x"} for one in value.pop("l", []))
        assert value.pop("s", "1") in {"1", "</a>"}
        assert value == {}
    for parameters in (
        {"properties": {"s": {"type": "string", "pattern": "a+"}}},
        {"properties": {"a>b": {}}},
    ):
        use = ToolUse(tools=(tool("add", parameters),), choice="required")
        with pytest.raises(InvalidRequest) as refused:
            form_with_calls(rules, use, {}, single=True)
        assert (refused.value.param, refused.value.code) == ("tools", "grammar_refused")


def test_calls_that_nobody_forces_are_held_only_where_a_function_is_strict() -> None:
    lenient = ToolUse(tools=(tool("add", ADD),), choice="auto")
    assert form_with_calls(BY_NAME["hermes"], lenient, {}, single=False) is None
    strict = ToolUse(tools=(tool("add", ADD, strict=True),), choice="auto")
    assert form_with_calls(BY_NAME["hermes"], strict, {}, single=False) is not None


@pytest.mark.parametrize("name", [row.name for row in FORMATS])
def test_text_around_calls_of_strict_functions_is_free_and_the_calls_are_right(name: str) -> None:
    rules = BY_NAME[name]  # type: ignore[index]
    use = ToolUse(tools=(tool("add", ADD, strict=True), tool("say", SAY)), choice="auto")
    form = form_with_calls(rules, use, {}, single=False)
    assert form is not None
    right = {"hermes": '<tool_call>\n{"name": "add", "arguments": {"a": 7}}\n</tool_call>'}.get(name)
    texts = ["", "Some text.", " {" if not rules.bare else " a{"]
    if right is not None:
        texts += [f"Well. {right}", f"{right}\n{right} And more."]
    for text in texts:
        assert taken(form, text) == (text, True)
    if right is not None:
        wrong = right.replace("7", "9")
        assert taken(form, wrong)[0] == wrong[: wrong.index("9")]
        other = right.replace('"add", "arguments": {"a": 7}', '"say", "arguments": {"any": 1}')
        assert taken(form, other) == (other, True)  # not strict
    if rules.bare:
        assert taken(form, ' {"x": 1}')[0] == " "


def taken(form: Structure, text: str) -> tuple[str, bool]:
    """How much of a text may come, and whether the answer may end there."""
    grammar = Vocabulary([*(bytes([b]) for b in range(256)), b"<end>"], [END], [END], 257).compile(
        grammar_text(form)
    )
    state, mask = grammar.start(), np.zeros(9, np.uint32)
    for at, byte in enumerate(text.encode()):
        state.fill(mask)
        if not mask[byte // 32] >> (byte % 32) & 1:
            return text[:at], False
        state.accept(byte)
    state.fill(mask)
    return text, bool(mask[END // 32] >> (END % 32) & 1)


@pytest.mark.parametrize(
    "parameters", [{"type": "string"}, {"x-guidance": {"lenient": True}}, {"description": "x" * (128 << 10)}]
)
def test_parameters_that_cannot_be_held_are_refused(parameters: object) -> None:
    use = ToolUse(tools=(tool("add", parameters),), choice="required")
    with pytest.raises(InvalidRequest) as refused:
        form_with_calls(BY_NAME["hermes"], use, {}, single=False)
    assert refused.value.param == "tools"
