"""What a request may demand of the answer's form; a demand is honoured or refused, never dropped (vLLM #53975)."""

from __future__ import annotations

import orjson
import pytest

from tiltyard.errors import InvalidRequest, UnknownField
from tiltyard.wire.openai import (
    ChatCompletionRequest,
    CompletionRequest,
    parse_chat_request,
    parse_completion_request,
)
from tiltyard.wire.structured import MAX_SOURCE_BYTES, Structure

SCHEMA = {
    "type": "object",
    "properties": {"z": {"const": None}, "a": {"default": None, "type": ["string", "null"]}},
    "required": [],
}


def chat(**fields: object) -> ChatCompletionRequest:
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], **fields}
    return parse_chat_request(orjson.dumps(body))


def completion(**fields: object) -> CompletionRequest:
    return parse_completion_request(orjson.dumps({"model": "m", "prompt": "hi", **fields}))


def schema_format(schema: object = SCHEMA, **members: object) -> dict[str, object]:
    return {"type": "json_schema", "json_schema": {"name": "thing", "schema": schema, **members}}


@pytest.mark.parametrize(
    ("fields", "kind", "source"),
    [
        ({"response_format": {"type": "json_object"}}, "json_object", '{"type":"object"}'),
        ({"response_format": schema_format(strict=True)}, "json_schema", orjson.dumps(SCHEMA).decode()),
        ({"response_format": {"type": "regex", "regex": "a+"}}, "regex", "a+"),
        ({"response_format": {"type": "grammar", "grammar": 'start: "a"'}}, "grammar", 'start: "a"'),
        ({"structured_outputs": {"json": SCHEMA}}, "json_schema", orjson.dumps(SCHEMA).decode()),
        (
            {"structured_outputs": {"json": orjson.dumps(SCHEMA).decode()}},
            "json_schema",
            orjson.dumps(SCHEMA).decode(),
        ),
        ({"structured_outputs": {"json_object": True}}, "json_object", '{"type":"object"}'),
        ({"structured_outputs": {"regex": "a+", "choice": None}}, "regex", "a+"),
        ({"structured_outputs": {"choice": ["yes", "no"]}}, "choice", '["yes","no"]'),
        ({"structured_outputs": {"grammar": 'root ::= "a"'}}, "grammar", 'root ::= "a"'),
    ],
)
def test_each_way_to_demand_a_form_is_understood_and_survives_the_way_to_the_worker(
    fields: dict[str, object], kind: str, source: str
) -> None:
    for asked in (chat(**fields), completion(**fields)):
        structure = asked.structure
        assert structure is not None
        assert (structure.kind, structure.source) == (kind, source)
        parse = parse_chat_request if isinstance(asked, ChatCompletionRequest) else parse_completion_request
        again = parse(orjson.dumps(asked.to_worker(identity="m", seed=1)))
        # The order of a schema's properties and its nulls included.
        assert again.structure == structure
        kept = orjson.loads(orjson.dumps(asked.served_prompt))["structure"]
        assert Structure.from_json(kept).digest == structure.digest


def test_text_asks_for_nothing() -> None:
    assert chat(response_format={"type": "text"}).structure is None
    assert "structure" not in chat(response_format={"type": "text"}).served_prompt


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": {"type": "json"}}, "response_format.type"),
        ({"response_format": {}}, "response_format.type"),
        ({"response_format": "json"}, "response_format"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"response_format": {"type": "json_object", "schema": {}}}, "response_format.schema"),
        (
            {"response_format": {"type": "regex", "regex": "a", "grammar": "b"}},
            "response_format.grammar",
        ),
        ({"response_format": schema_format("x")}, "response_format.json_schema.schema"),
        ({"response_format": schema_format(strct=True)}, "response_format.json_schema.strct"),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"json": {}, "regex": "a"}}, "structured_outputs"),
        ({"structured_outputs": {"json": "{"}}, "structured_outputs.json"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs.choice"),
        ({"structured_outputs": {"structural_tag": "{}"}}, "structured_outputs.structural_tag"),
        (
            {"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}},
            "structured_outputs",
        ),
        ({"structured_outputs": {"regex": "a"}, "ignore_eos": True}, "ignore_eos"),
        ({"structured_outputs": {"regex": "a" * (MAX_SOURCE_BYTES + 1)}}, "structured_outputs.regex"),
        ({"guided_json": SCHEMA}, "guided_json"),
        ({"guided_regex": "a"}, "guided_regex"),
        ({"guided_choice": ["a"]}, "guided_choice"),
        ({"guided_grammar": "a"}, "guided_grammar"),
        ({"json_schema": SCHEMA}, "json_schema"),
        ({"grammar": "root ::= x"}, "grammar"),
        ({"regex": "a"}, "regex"),
        ({"ebnf": "a"}, "ebnf"),
    ],
)
def test_a_demand_that_is_not_understood_is_refused_by_name(fields: dict[str, object], param: str) -> None:
    for ask in (chat, completion):
        with pytest.raises(InvalidRequest) as caught:
            ask(**fields)
        assert caught.value.param == param
        assert param.rpartition(".")[2] in caught.value.message


def test_a_refusal_says_what_to_send_in_its_place() -> None:
    with pytest.raises(UnknownField, match=r"guided_json: not supported yet; send structured_outputs\.json"):
        chat(guided_json=SCHEMA)


def test_a_schema_nested_beyond_reason_is_refused() -> None:
    deep = b'{"a":' * 800 + b"1" + b"}" * 800
    body = b'{"model":"m","prompt":"x","structured_outputs":{"json":' + deep + b"}}"
    with pytest.raises(InvalidRequest):
        parse_completion_request(body)
