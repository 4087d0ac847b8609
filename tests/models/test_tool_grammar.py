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
        parser = ToolParser(rules, use.names, live=True)
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
    parser = ToolParser(rules, use.names)
    parser.push(*walks(form, {}, 1))
    parser.finish()
    assert parser.calls == 1


def test_calls_that_nobody_forces_are_held_only_where_a_function_is_strict() -> None:
    lenient = ToolUse(tools=(tool("add", ADD),), choice="auto")
    assert form_with_calls(BY_NAME["hermes"], lenient, {}, single=False) is None
    strict = ToolUse(tools=(tool("add", ADD, strict=True),), choice="auto")
    assert form_with_calls(BY_NAME["hermes"], strict, {}, single=False) is not None


@pytest.mark.parametrize(
    "parameters", [{"type": "string"}, {"x-guidance": {"lenient": True}}, {"description": "x" * (128 << 10)}]
)
def test_parameters_that_cannot_be_held_are_refused(parameters: object) -> None:
    use = ToolUse(tools=(tool("add", parameters),), choice="required")
    with pytest.raises(InvalidRequest) as refused:
        form_with_calls(BY_NAME["hermes"], use, {}, single=False)
    assert refused.value.param == "tools"
