"""Every sampling field and every structured form, by the openai package over a real socket with the real model."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import httpx2
import pytest
from jsonschema import validate
from openai import BadRequestError
from openai.types import Completion
from openai.types.chat import ChatCompletion
from real_house import House, say

PROMPT = "The sun rises in the east and"
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "likes": {"type": "array", "items": {"enum": ["tea", "coffee"]}, "maxItems": 2},
    },
    "required": ["name", "age", "likes"],
    "additionalProperties": False,
}


def complete(house: House, prompt: str | list[int] = PROMPT, **fields: Any) -> Completion:
    body = {"temperature": 0, "max_tokens": 12, "seed": 1, **fields}
    return house.client.completions.create(model="smollm2", prompt=prompt, **body)  # type: ignore[no-any-return]


def chat(house: House, **fields: Any) -> ChatCompletion:
    body = {"temperature": 0, "max_tokens": 60, "seed": 1, **fields}
    return house.client.chat.completions.create(  # type: ignore[no-any-return]
        model="chat", messages=say("Describe a person as JSON."), **body
    )


def tokens(house: House, answer: Completion | ChatCompletion) -> list[int]:
    ids = house.said(answer.id)["token_ids"]
    assert isinstance(ids, list)
    return ids


def test_stop_token_ids_end_the_answer_and_stay_out_of_its_text(house: House) -> None:
    free = complete(house)
    third = tokens(house, free)[2]
    stopped = complete(house, extra_body={"stop_token_ids": [third]})
    assert stopped.choices[0].finish_reason == "stop"
    assert tokens(house, stopped) == tokens(house, free)[:3]
    shown = complete(house, extra_body={"stop_token_ids": [third], "include_stop_str_in_output": True})
    assert shown.choices[0].text.startswith(stopped.choices[0].text)
    assert len(shown.choices[0].text) > len(stopped.choices[0].text)
    assert house.event(shown.id).stop_token_ids == (third,)


def test_the_stop_string_is_shown_on_demand_and_streamed_text_agrees(house: House) -> None:
    """vLLM #13087, PR #31135: text, tokens and log-probabilities end together, streamed or whole."""
    text = complete(house).choices[0].text
    stop = text[9:12]
    for include in (False, True):
        body = {"stop": stop, "logprobs": 0, "extra_body": {"include_stop_str_in_output": include}}
        whole = complete(house, **body).choices[0]
        assert whole.text == text[: text.index(stop) + len(stop) * include]
        assert whole.logprobs is not None
        assert whole.logprobs.tokens is not None
        spelled = "".join(whole.logprobs.tokens)
        # Tokens that are shown at least in part, and no others.
        assert spelled.startswith(whole.text)
        assert len(spelled) - len(whole.logprobs.tokens[-1]) < len(whole.text)
        stream = house.client.completions.create(
            model="smollm2", prompt=PROMPT, temperature=0, max_tokens=12, seed=1, stream=True, **body
        )
        pieces = [chunk.choices[0] for chunk in stream]
        assert "".join(piece.text for piece in pieces) == whole.text
        said = [t for p in pieces if p.logprobs is not None for t in p.logprobs.tokens or ()]
        assert said == whole.logprobs.tokens


def test_min_tokens_hold_back_stop_tokens_and_stop_strings(house: House) -> None:
    free = complete(house)
    first, stop = tokens(house, free)[0], free.choices[0].text[:3]
    assert len(tokens(house, complete(house, stop=stop))) < 4
    answer = complete(house, stop=stop, extra_body={"min_tokens": 12, "stop_token_ids": [first]})
    assert len(tokens(house, answer)) == 12
    assert first not in tokens(house, answer)
    assert answer.choices[0].finish_reason == "length"


def test_bad_words_and_allowed_token_ids(house: House) -> None:
    free = complete(house)
    word = free.choices[0].text.split()[1]
    answer = complete(house, extra_body={"bad_words": [word]})
    assert word not in answer.choices[0].text.split()
    some = tokens(house, free)[:3]
    only = complete(house, extra_body={"allowed_token_ids": some})
    assert set(tokens(house, only)) <= set(some)
    with pytest.raises(BadRequestError) as refused:
        complete(house, extra_body={"allowed_token_ids": [49_152]})
    assert refused.value.param == "allowed_token_ids"


def test_special_tokens_are_shown_on_demand(house: House) -> None:
    end = 2  # <|im_end|>
    body = {"logit_bias": {str(end): 100}, "max_tokens": 3}
    hidden = complete(house, **body, extra_body={"ignore_eos": True})
    assert hidden.choices[0].text == ""
    shown = complete(house, **body, extra_body={"ignore_eos": True, "skip_special_tokens": False})
    assert shown.choices[0].text == "<|im_end|>" * 3


def test_only_the_end_of_a_prompt_is_kept_on_demand(house: House) -> None:
    body = {"extra_body": {"truncate_prompt_tokens": 3}}
    short = complete(house, [5, 6, 7], logprobs=2)
    cut = complete(house, [1, 2, 3, 4, 5, 6, 7], logprobs=2, **body)
    assert (cut.choices[0].text, cut.choices[0].logprobs) == (
        short.choices[0].text,
        short.choices[0].logprobs,
    )
    assert cut.usage is not None
    assert cut.usage.prompt_tokens == 3


def prompt_logprobs(answer: Completion) -> list[dict[str, dict[str, Any]] | None]:
    extra = answer.choices[0].model_extra
    assert extra is not None
    scores: list[dict[str, dict[str, Any]] | None] = extra["prompt_logprobs"]
    return scores


def test_prompt_logprobs_are_the_same_from_a_warm_cache(house: House) -> None:
    """vLLM PR #42245; shape and names are vLLM's."""
    prompt = list(range(1000, 1100))
    first = complete(house, prompt, max_tokens=1, extra_body={"prompt_logprobs": 2})
    again = complete(house, prompt, max_tokens=1, extra_body={"prompt_logprobs": 2})
    cold, warm = prompt_logprobs(first), prompt_logprobs(again)
    assert cold == warm
    assert (house.event(first.id).cached_tokens, house.event(again.id).cached_tokens) == (0, 95)
    assert len(cold) == 100
    assert cold[0] is None
    for token, entry in zip(prompt[1:], cold[1:], strict=True):
        assert entry is not None
        own = entry[str(token)]
        assert own["rank"] >= 1
        assert {e["rank"] for e in entry.values()} == {1, 2, own["rank"]}
        assert own["logprob"] <= max(e["logprob"] for e in entry.values()) <= 0
    answer = chat(house, max_tokens=1, extra_body={"prompt_logprobs": 0})
    assert answer.model_extra is not None
    assert answer.usage is not None
    assert len(answer.model_extra["prompt_logprobs"]) == answer.usage.prompt_tokens


def test_an_echoed_prompt_has_the_scores_that_the_answer_had(house: House) -> None:
    """What lm-eval's `local-completions` asks: the log-likelihood of a continuation."""
    answer = complete(house, max_tokens=6, logprobs=1)
    text = answer.choices[0].text
    echo = complete(house, PROMPT + text, max_tokens=1, logprobs=1, echo=True)
    said, given = echo.choices[0].logprobs, answer.choices[0].logprobs
    assert said is not None
    assert given is not None
    assert echo.choices[0].text.startswith(PROMPT + text)
    assert said.tokens is not None
    assert "".join(said.tokens) == echo.choices[0].text
    assert said.token_logprobs is not None
    assert said.token_logprobs[0] is None
    # All but the last, which is the new token: the same bits as when they were generated.
    assert said.token_logprobs[-7:-1] == given.token_logprobs
    assert said.text_offset is not None
    assert said.top_logprobs is not None
    assert len(said.text_offset) == len(said.tokens) == len(said.top_logprobs)
    for offset, token in zip(said.text_offset, said.tokens, strict=True):
        assert echo.choices[0].text[offset:].startswith(token)
    # The event keeps the answer, not the echo.
    assert house.said(echo.id)["text"] == said.tokens[-1]
    plain = complete(house, PROMPT, max_tokens=2, echo=True, n=2)
    assert {choice.text for choice in plain.choices} == {
        PROMPT + text[: len(plain.choices[0].text) - len(PROMPT)]
    }


@pytest.mark.parametrize("temperature", [0, 1.3])
def test_a_json_schema_holds_whatever_the_model_wants(house: House, temperature: float) -> None:
    for seed in range(2):
        answer = chat(
            house, temperature=temperature, seed=seed, max_tokens=120,
            response_format={
                "type": "json_schema", "json_schema": {"name": "person", "schema": PERSON, "strict": True},
            },
        )  # fmt: skip
        assert answer.choices[0].finish_reason == "stop"
        validate(json.loads(answer.choices[0].message.content or ""), PERSON)
    event = house.event(answer.id)
    assert event.structure is not None
    assert event.structure.kind == "json_schema"
    assert str(event.structure.engine).startswith("llguidance ")


def test_the_other_forms_hold_too(house: House) -> None:
    def text(**structured: object) -> str:
        answer = chat(house, temperature=1, extra_body={"structured_outputs": structured})
        assert answer.choices[0].finish_reason == "stop"
        return answer.choices[0].message.content or ""

    assert text(choice=["good", "bad"]) in ("good", "bad")
    assert re.fullmatch(r"[0-9]{3}-[A-C]{2}", text(regex="[0-9]{3}-[A-C]{2}"))
    assert re.fullmatch(r"(yes|no)(, (yes|no)){2}", text(grammar='start: A (", " A){2}\nA: "yes" | "no"'))
    assert re.fullmatch(r"1\+1(=2)?", text(grammar='root ::= "1+1" ("=2")?'))
    compact = text(json=PERSON, disable_any_whitespace=True)
    validate(json.loads(compact), PERSON)
    assert compact == json.dumps(json.loads(compact), separators=(",", ":"), ensure_ascii=False)


def test_max_tokens_may_cut_a_form_short_and_says_so(house: House) -> None:
    answer = chat(house, max_tokens=3, response_format={"type": "json_object"})
    assert answer.choices[0].finish_reason == "length"
    assert (answer.choices[0].message.content or "").startswith("{")


@pytest.mark.parametrize(
    ("form", "param", "says"),
    [
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {
                "type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}}}},
            "response_format.json_schema.schema",
            "at $.properties.a.uniqueItems: the keyword 'uniqueItems' is not supported",
        ),
        ({"structured_outputs": {"regex": "(?=a)b"}}, "structured_outputs.regex", "look-around"),
        ({"structured_outputs": {"grammar": 'start: "a" b'}}, "structured_outputs.grammar", 'unknown name: "b"'),
        ({"structured_outputs": {"grammar": "root ::= b"}}, "structured_outputs.grammar", "GBNF"),
        (
            {"structured_outputs": {"grammar": "start: hot\nhot[temperature=2.0]: /.*/"}},
            "structured_outputs.grammar",
            "rule 'hot' has a temperature",
        ),
        ({"guided_json": PERSON}, "guided_json", "send structured_outputs.json"),
    ],
)  # fmt: skip
def test_what_cannot_be_held_is_refused_with_the_place_and_never_left_out(
    house: House, form: dict[str, object], param: str, says: str
) -> None:
    """vLLM #53975: `guided_json` was dropped and the answer unconstrained, with status 200."""
    with pytest.raises(BadRequestError) as refused:
        chat(house, extra_body=form)
    assert refused.value.param == param
    assert says in refused.value.message


async def test_a_hostile_schema_is_refused_in_time_and_others_are_served_meanwhile(house: House) -> None:
    """vLLM #54003. This one keeps the compiler busy for 12 s, if one lets it."""
    hostile = {"structured_outputs": {"json": {"type": "integer", "multipleOf": 999_983}}}
    body = {"model": "chat", "messages": [*say("Hi.")], "max_tokens": 4, "seed": 1}
    async with httpx2.AsyncClient(base_url=house.url, timeout=60) as http:
        evil = asyncio.create_task(http.post("/v1/chat/completions", json=body | hostile))
        good = {"structured_outputs": {"choice": ["aye"]}}
        for form in ({}, good):
            answer = await http.post("/v1/chat/completions", json=body | form)
            assert answer.status_code == 200
        assert not evil.done()
        refused = (await evil).json()["error"]
        assert refused["code"] == "grammar_too_complex"
        assert refused["param"] == "structured_outputs.json"
        # Known from now on: no second compilation.
        again = await http.post("/v1/chat/completions", json=body | hostile)
        assert again.json()["error"]["code"] == "grammar_too_complex"


def test_a_form_that_needs_too_much_in_mid_answer_is_the_senders_fault(house: House) -> None:
    """600 optional members compile, and are too many for one token once the object has begun."""
    wide = {"type": "object", "properties": {f"k{i}": {"type": "string"} for i in range(600)}}
    with pytest.raises(BadRequestError) as refused:
        chat(house, extra_body={"structured_outputs": {"json": wide}})
    assert refused.value.code == "grammar_too_complex"
    assert "more work here than one token may take" in refused.value.message
    assert "Current row has" in refused.value.message  # the library's reason


def test_masks_that_exclude_each_other_fail_with_the_reason(house: House) -> None:
    with pytest.raises(BadRequestError) as refused:
        chat(house, extra_body={"structured_outputs": {"choice": ["aye"]}, "allowed_token_ids": [100]})
    assert refused.value.code == "no_token_left"


async def test_forms_and_masks_do_not_depend_on_who_else_is_served(house: House) -> None:
    fields: list[dict[str, object]] = [
        {"response_format": {"type": "json_schema", "json_schema": {"name": "p", "schema": PERSON}}},
        {"structured_outputs": {"regex": "[a-z ]{20,40}"}},
        {"structured_outputs": {"grammar": 'root ::= [a-z]+ (" " [a-z]+){3}'}},
        {"bad_words": ["the", "a"], "min_tokens": 8},
        {"allowed_token_ids": list(range(0, 40_000, 3)), "repetition_penalty": 1.2},
        {},
    ]
    async with httpx2.AsyncClient(base_url=house.url, timeout=60) as http:

        async def ask(seed: int) -> str:
            body = {
                "model": "chat",
                "messages": [*say("Tell me.")],
                "seed": seed,
                "max_tokens": 24,
                **fields[seed],
            }
            answer = (await http.post("/v1/chat/completions", json=body)).json()
            return str(answer["choices"][0]["message"]["content"])

        alone = [await ask(seed) for seed in range(len(fields))]
        together = await asyncio.gather(*(ask(seed) for seed in range(len(fields))))
    assert together == alone
    assert len(set(alone)) == len(fields)
