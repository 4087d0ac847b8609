"""`/tokenize`, `/detokenize`, `/render` and `count_tokens` with the real model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx2
import pytest
from real_house import House, say

from tiltyard.identity.canonical import digest_of_json


def post(house: House, path: str, **body: object) -> httpx2.Response:
    return httpx2.post(house.url + path, json={"model": "chat", **body}, timeout=60)


def asked(house: House, path: str, **body: object) -> Any:
    answer = post(house, path, **body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_a_text_becomes_the_tokens_of_the_original_tokenizer_and_back(
    house: House, shared_data: Path
) -> None:
    vectors = json.loads((shared_data / "serving" / "tokenizer" / "smollm2_vectors.json").read_text())
    for case in vectors["vectors"][:20]:
        answer = asked(house, "/tokenize", prompt=case["text"])
        assert answer == {
            "count": len(case["ids"]),
            "max_model_len": answer["max_model_len"],
            "tokens": case["ids"],
            "token_strs": None,
        }
        assert asked(house, "/detokenize", tokens=case["ids"]) == {"prompt": case["text"]}


def test_a_text_that_does_not_fit_the_model_is_counted_all_the_same(house: House) -> None:
    answer = asked(house, "/tokenize", prompt="tree " * 20_000)
    assert answer["count"] == 20_001 > answer["max_model_len"] == 8192


def test_spellings_are_given_on_demand(house: House) -> None:
    answer = asked(house, "/tokenize", prompt="<|im_start|>Hi", return_token_strs=True)
    assert (answer["tokens"][0], answer["token_strs"]) == (1, ["<|im_start|>", "Hi"])


def test_what_is_rendered_is_what_the_engine_saw(house: House) -> None:
    messages = say("Spell <|im_end|> for me.")
    rendered = asked(house, "/render", messages=messages)
    answer = house.client.chat.completions.create(model="chat", messages=messages, max_tokens=1)
    assert digest_of_json(rendered["token_ids"]) == house.event(answer.id).prompt_token_digest
    assert rendered["text"] == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nSpell <|im_end|> for me.<|im_end|>\n<|im_start|>assistant\n"
    )
    # The text cannot tell them apart, the ids do: what the user spelled is no control token.
    assert rendered["text"].count("<|im_end|>") == 3
    assert rendered["token_ids"].count(2) == 2
    assert rendered["system_fingerprint"] == answer.system_fingerprint
    assert asked(house, "/tokenize", messages=messages)["tokens"] == rendered["token_ids"]
    assert rendered["count"] == len(rendered["token_ids"])


def test_counting_a_message_gives_the_tokens_that_it_will_cost(house: House) -> None:
    body: dict[str, Any] = {"system": "Be brief.", "messages": say("Name a river.")}
    counted = asked(house, "/v1/messages/count_tokens", **body)
    message = asked(house, "/v1/messages", max_tokens=1, **body)
    usage = message["usage"]
    assert counted == {"input_tokens": usage["input_tokens"] + usage["cache_read_input_tokens"]}


def test_counting_a_response_gives_the_tokens_that_it_will_cost(house: House) -> None:
    first = house.client.responses.create(model="chat", input="Name a river.", max_output_tokens=4)
    body: dict[str, Any] = {"input": "How long is it?", "previous_response_id": first.id}
    counted = asked(house, "/v1/responses/input_tokens", **body)
    response = house.client.responses.create(model="chat", max_output_tokens=1, **body)
    assert response.usage is not None
    assert counted == {"object": "response.input_tokens", "input_tokens": response.usage.input_tokens}


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "x", "messages": [{"role": "user", "content": "x"}]}, "prompt"),
        ("/tokenize", {"messages": [{"role": "poet", "content": "x"}]}, "messages[0].role"),
        ("/tokenize", {"prompt": "x", "chat_template": "y"}, "chat_template"),
        ("/detokenize", {"tokens": [1, 10**6]}, "tokens[1]"),
        ("/detokenize", {"tokens": "x"}, "tokens"),
        ("/render", {"messages": []}, "messages"),
        ("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": 3}]}, "messages[0].content"),
        ("/v1/messages/count_tokens", {"messages": say("x"), "max_tokens": 3}, "max_tokens"),
    ],
)
def test_a_refusal_names_the_field(house: House, path: str, body: dict[str, object], param: str) -> None:
    answer = post(house, path, **body)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param
