from __future__ import annotations

from pathlib import Path

import orjson
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from tiltyard.errors import InvalidRequest, TiltyardError, UnknownField
from tiltyard.identity.manifest import DefaultSampling
from tiltyard.wire.openai import (
    CHAT_REFUSED,
    COMPLETION_REFUSED,
    ChatCompletionRequest,
    CompletionRequest,
    parse_chat_request,
    parse_completion_request,
)

BASE = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


def chat(**fields: object) -> ChatCompletionRequest:
    return parse_chat_request(orjson.dumps(BASE | fields))


def message(**fields: object) -> dict[str, object]:
    return {"messages": [{"role": "user", "content": "hi"} | fields]}


@pytest.mark.parametrize(
    ("fields", "param", "says"),
    [
        ({"temperature": 2.5}, "temperature", "temperature is 2.5; it must be at most 2"),
        ({"temperature": -1}, "temperature", "it must be at least 0"),
        ({"temperature": "hot"}, "temperature", "temperature is 'hot'; it must be a number"),
        ({"temperature": True}, "temperature", "temperature is true; it must be a number"),
        ({"top_p": 0}, "top_p", "it must be more than 0"),
        ({"top_k": -2}, "top_k", "it must be at least 0"),
        ({"min_tokens": -1}, "min_tokens", "it must be at least 0"),
        ({"stop_token_ids": [-1]}, "stop_token_ids[0]", "it must be at least 0"),
        ({"bad_words": [""]}, "bad_words[0]", "it must be at least 1 character long"),
        ({"allowed_token_ids": []}, "allowed_token_ids", "it must be at least 1 long"),
        ({"prompt_logprobs": -1}, "prompt_logprobs", "it must be at least 0"),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens", "it must be at least 1"),
        ({"min_p": 1.1}, "min_p", "it must be at most 1"),
        ({"repetition_penalty": 0}, "repetition_penalty", "it must be more than 0"),
        ({"presence_penalty": 3}, "presence_penalty", "it must be at most 2"),
        ({"frequency_penalty": -3}, "frequency_penalty", "it must be at least -2"),
        ({"n": 0}, "n", "n is 0; it must be at least 1"),
        ({"n": 17}, "n", "it must be at most 16"),
        ({"n": 1.5}, "n", "it must be an integer"),
        ({"max_tokens": 0}, "max_tokens", "it must be at least 1"),
        ({"seed": 2**53}, "seed", "it must be at most 9007199254740991"),
        ({"seed": -1}, "seed", "it must be at least 0"),
        ({"stop": ["a"] * 5}, "stop", "stop is a list of 5; it must be at most 4 long"),
        ({"stop": [""]}, "stop[0]", "it must be at least 1 character long"),
        ({"logit_bias": {"x": 1}}, "logit_bias", "'x' is not a token id"),
        ({"logit_bias": {"7": 1, "07": 2}}, "logit_bias", "'07' is not a token id"),
        ({"logit_bias": {"7": 101}}, "logit_bias.7", "it must be at most 100"),
        ({"top_logprobs": 21, "logprobs": True}, "top_logprobs", "it must be at most 20"),
        ({"top_logprobs": 2}, "top_logprobs", "without logprobs: true"),
        ({"stream": 1}, "stream", "it must be true or false"),
        ({"stream_options": {}}, "stream_options", "only for stream: true"),
        ({"max_tokens": 5, "max_completion_tokens": 6}, "max_tokens", "they mean the same here"),
        ({"messages": []}, "messages", "it must be at least 1 long"),
        ({"messages": "hi"}, "messages", "messages is 'hi'; it must be a list"),
        ({"model": None}, "model", "model is required and missing"),
        ({"user": "a\nb"}, "user", "without control characters"),
        (message(content=None), "messages[0].content", "is null; it must be a string"),
        (message(role="bot"), "messages[0].role", "it must be 'system', 'user', 'assistant' or 'tool'"),
    ],
)
def test_a_wrong_value_is_refused_with_its_field_and_its_limit(
    fields: dict[str, object], param: str, says: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        chat(**fields)
    assert caught.value.param == param
    assert says in caught.value.message


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"temprature": 1}, "temprature", "unknown_parameter"),
        ({"mirostat": 2}, "mirostat", "unsupported_parameter"),
        ({"xtc_probability": 0.5}, "xtc_probability", "unsupported_parameter"),
        ({"dry_multiplier": 0.8}, "dry_multiplier", "unsupported_parameter"),
        ({"use_beam_search": True}, "use_beam_search", "unsupported_parameter"),
        ({"tools": [{"type": "custom", "custom": {"name": "f"}}]}, "tools[0].type", "unsupported_parameter"),
        (
            {"tool_choice": {"type": "custom", "custom": {"name": "f"}}},
            "tool_choice",
            "unsupported_parameter",
        ),
        ({"functions": [{"name": "f"}]}, "functions", "unsupported_parameter"),
        ({"function_call": "auto"}, "function_call", "unsupported_parameter"),
        (message(role="function"), "messages[0].role", "unsupported_parameter"),
        (message(tool_call_id="call_1"), "messages[0].tool_call_id", "unsupported_parameter"),
        ({"store": True}, "store", "unsupported_parameter"),
        ({"store": 0}, "store", "unsupported_parameter"),
        (message(name="bob"), "messages[0].name", "unsupported_parameter"),
        (message(tool_calls=[{}]), "messages[0].tool_calls", "unsupported_parameter"),
        (message(cache=True), "messages[0].cache", "unknown_parameter"),
        (message(content=[{"type": "image_url"}]), "messages[0].content", "unsupported_parameter"),
        (
            {"stream": True, "stream_options": {"include_obfuscation": True}},
            "stream_options.include_obfuscation",
            "unsupported_parameter",
        ),
    ],
)
def test_what_is_not_honoured_is_refused_by_name(fields: dict[str, object], param: str, code: str) -> None:
    """vLLM #53975: a parameter was ignored without a word."""
    with pytest.raises(UnknownField) as caught:
        chat(**fields)
    assert (caught.value.param, caught.value.code) == (param, code)
    assert param.rpartition(".")[2] in caught.value.message


def test_the_name_of_a_field_in_a_deep_schema_is_cut() -> None:
    schema = '{"items":' * 600 + "{}" + "}" * 600
    body = (
        orjson.dumps(BASE | {"structured_outputs": {"json": "SCHEMA"}}).decode().replace('"SCHEMA"', schema)
    )
    with pytest.raises(InvalidRequest) as caught:
        parse_chat_request(body.encode())
    assert len(caught.value.message) < 1000
    assert caught.value.param is not None
    assert caught.value.param.startswith("structured_outputs.json.")


def test_an_unknown_field_near_a_known_one_is_told_apart() -> None:
    with pytest.raises(UnknownField, match="Did you mean temperature"):
        chat(temprature=1)


@pytest.mark.parametrize("name", sorted(CHAT_REFUSED))
def test_null_and_values_that_ask_for_nothing_are_accepted(name: str) -> None:
    for neutral in (None, *CHAT_REFUSED[name]):
        assert chat(**{name: neutral}) == chat()


@pytest.mark.parametrize("name", sorted(set(ChatCompletionRequest.model_fields) - {"model", "messages"}))
def test_null_means_absent(name: str) -> None:
    assert chat(**{name: None}) == chat()


def test_every_field_of_openais_requests_is_either_honoured_or_refused_by_name(shared_data: Path) -> None:
    path = shared_data / "serving" / "openai_api" / "openapi" / "openapi.yaml"
    with path.open() as stream:
        schemas = yaml.load(stream, Loader=yaml.CSafeLoader)["components"]["schemas"]

    def fields(schema: dict[str, object]) -> set[str]:
        found = set(schema.get("properties", {}))  # type: ignore[call-overload]
        if isinstance(reference := schema.get("$ref"), str):
            found |= fields(schemas[reference.rpartition("/")[2]])
        for part in schema.get("allOf", ()):  # type: ignore[attr-defined]
            found |= fields(part)
        return found

    known = fields(schemas["CreateChatCompletionRequest"])
    assert len(known) > 30
    assert known <= set(ChatCompletionRequest.model_fields) | set(CHAT_REFUSED)
    assert not set(ChatCompletionRequest.model_fields) & set(CHAT_REFUSED)
    known = fields(schemas["CreateCompletionRequest"])
    assert len(known) > 15
    assert known <= set(CompletionRequest.model_fields) | set(COMPLETION_REFUSED)


def test_text_parts_are_joined_by_line_feeds() -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    assert chat(**message(content=parts)).messages[0].content == "one\ntwo"


def test_the_developer_is_the_system() -> None:
    assert chat(**message(role="developer")).messages[0].role == "system"


def test_an_answer_that_a_client_echoes_back_is_accepted() -> None:
    # What `message.model_dump()` of the openai package gives.
    echoed = {
        "role": "assistant", "content": "Hello", "refusal": None, "annotations": None, "audio": None,
        "function_call": None, "tool_calls": None,
    }  # fmt: skip
    assert chat(messages=[echoed]).messages[0].content == "Hello"


@pytest.mark.parametrize(("prompt", "kept"), [("a", "a"), (["a"], "a"), ([1, 2], [1, 2]), ([[1, 2]], [1, 2])])
def test_one_prompt_is_text_or_token_ids(prompt: object, kept: object) -> None:
    body = orjson.dumps({"model": "m", "prompt": prompt})
    assert parse_completion_request(body).prompt == kept


@pytest.mark.parametrize("prompt", [["a", "b"], [], [1, -1], [1, "a"], [True], 5, {}])
def test_other_prompts_are_refused(prompt: object) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_completion_request(orjson.dumps({"model": "m", "prompt": prompt}))
    assert caught.value.param == "prompt"


def test_the_requests_values_go_over_the_identitys_defaults() -> None:
    defaults = DefaultSampling(temperature=0.2, top_p=0.9, repetition_penalty=1.1, max_tokens=512)
    asked = chat(temperature=1, top_k=40, max_completion_tokens=7)
    assert asked.effective_sampling(defaults) == DefaultSampling(
        temperature=1.0, top_p=0.9, top_k=40, repetition_penalty=1.1, max_tokens=7
    )
    assert chat().effective_sampling(defaults) == defaults


def test_a_worker_gets_the_same_request_with_identity_and_seed() -> None:
    asked = chat(temperature=0, stop="x", max_completion_tokens=7, user="eva", n=2, stream=True)
    body = asked.to_worker(identity="smollm2", seed=9)
    again = parse_chat_request(orjson.dumps(body))
    assert (again.model, again.seed, again.stream, again.include_usage) == ("smollm2", 9, True, True)
    assert (again.temperature, again.stop, again.answer_tokens, again.n) == (0, ["x"], 7, 2)
    assert again.messages == asked.messages
    assert again.user is None


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 2**54) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
names = st.sampled_from([*ChatCompletionRequest.model_fields, *CHAT_REFUSED, "other"])


@settings(deadline=None)
@given(st.dictionaries(names, json_values, max_size=4), st.booleans())
def test_whatever_comes_is_accepted_or_refused_and_what_is_accepted_survives_the_way_to_the_worker(
    fields: dict[str, object], whole: bool
) -> None:
    body = orjson.dumps(BASE | fields if whole else fields, option=orjson.OPT_PASSTHROUGH_DATETIME)
    try:
        asked = parse_chat_request(body)
    except TiltyardError as error:
        assert error.status == 400  # noqa: PT017
        return
    again = parse_chat_request(orjson.dumps(asked.to_worker(identity=asked.model, seed=asked.seed or 0)))
    assert again.effective_sampling(DefaultSampling()) == asked.effective_sampling(DefaultSampling())
    assert (again.messages, again.stop, again.logit_bias) == (asked.messages, asked.stop, asked.logit_bias)
