"""Token ids against llama.cpp's and Hugging Face's own vectors."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf as oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tiltyard.errors import InvalidRequest, ModelRejected
from tiltyard.models.gguf import GgufFile
from tiltyard.models.prompt import prompt_ids
from tiltyard.models.tokenizer import Tokenizer, tokenizer_digest

Write = Callable[..., Path]


def load(path: Path) -> Tokenizer:
    with GgufFile.open(path) as gguf:
        return Tokenizer.from_gguf(gguf)


def llama_cpp_vectors(path: Path) -> list[tuple[str, list[int]]]:
    """llama.cpp's own format: texts in .inp, ids of each in a line of .out."""
    text = Path(f"{path}.inp").read_bytes().decode()
    texts = text.split("\n__ggml_vocab_test__\n")
    lines = Path(f"{path}.out").read_text().split("\n")
    return [(text, [int(token) for token in line.split()]) for text, line in zip(texts, lines, strict=False)]


def test_the_default_model_gives_the_ids_of_hugging_face_and_llama_cpp(
    smollm2: Tokenizer, shared_data: Path
) -> None:
    vectors = json.loads((shared_data / "serving/tokenizer/smollm2_vectors.json").read_text())["vectors"]
    assert len(vectors) == 47
    for vector in vectors:
        assert smollm2.encode(vector["text"], special=False) == vector["ids"], vector["text"]
        assert smollm2.decode(vector["ids"]) == vector["text"]


def test_the_oracle_prompts_give_the_ids_of_transformers(smollm2: Tokenizer, shared_data: Path) -> None:
    items = json.loads((shared_data / "oracle/greedy_oracle.json").read_text())["items"]
    assert items
    for item in items:
        assert smollm2.encode(item["prompt"], special=True) == item["prompt_ids"], item["id"]


VOCABULARIES = [
    "gpt-2",
    "llama-bpe",
    "llama-spm",
    "starcoder",
    "falcon",
    "deepseek-coder",
    "mpt",
    "bert-bge",
]


@pytest.mark.parametrize("name", VOCABULARIES)
def test_vocabularies_give_the_ids_of_llama_cpp(name: str, shared_data: Path) -> None:
    path = shared_data / f"serving/tokenizer/llama.cpp/ggml-vocab-{name}.gguf"
    tokenizer = load(path)
    vectors = llama_cpp_vectors(path)
    assert len(vectors) == 47
    for text, ids in vectors:
        assert tokenizer.encode(text, special=False) == ids, text


def test_stories260k_begins_with_bos_as_llama_cpp_does(shared_data: Path) -> None:
    tokenizer = load(shared_data / "serving/gguf/stories260K/stories260K.gguf")
    reference = json.loads((shared_data / "serving/gguf/reference/stories260K_greedy.json").read_text())
    for result in reference["results"]:
        assert prompt_ids(tokenizer, result["prompt"], special=False) == result["prompt_ids"]
        assert tokenizer.decode(result["ids"]) == result["text"]


def test_control_tokens_are_control_tokens_only_when_asked(smollm2: Tokenizer) -> None:
    assert smollm2.encode("<|im_start|>user\n", special=True) == [1, 4093, 198]
    plain = smollm2.encode("<|im_start|>user\n", special=False)
    assert not set(plain) & set(smollm2.control_tokens.values())
    assert smollm2.decode(plain) == "<|im_start|>user\n"
    assert smollm2.token_bytes(1) == b""
    assert smollm2.token_text(1) == "<|im_start|>"


def test_the_default_model_stops_at_end_of_turn_and_end_of_text(smollm2: Tokenizer) -> None:
    assert {smollm2.token_text(token) for token in smollm2.stop_ids} == {"<|im_end|>", "<|endoftext|>"}
    assert (smollm2.bos_id, smollm2.eos_id, smollm2.add_bos) == (1, 2, False)
    assert smollm2.vocab_size == 49152


SHRINKING = st.sampled_from(
    ["<|im_end|>", "\x1d" * 9, " " * 90, "\u2581" * 20, "</s>", "e\u0301", "=" * 99, "日本"]
)


@given(st.lists(st.text() | SHRINKING).map("".join), st.sampled_from(["smollm2", *VOCABULARIES]))
@settings(max_examples=300, deadline=None)
def test_no_text_has_fewer_tokens_than_its_length_says(
    every: dict[str, Tokenizer], text: str, name: str
) -> None:
    assert every[name].least_tokens(text) <= len(every[name].encode(text, special=True))


def test_a_long_text_is_known_to_be_long_without_tokens(smollm2: Tokenizer) -> None:
    longest = max(len(smollm2.token_bytes(token)) for token in range(smollm2.vocab_size))
    assert smollm2.least_tokens("a" * longest * 1000) == 1000
    assert (
        smollm2.least_tokens("\x1d" * 1_000_000)
        == len(smollm2.encode("\x1d" * 1_000_000, special=False))
        == 0
    )


@pytest.fixture(scope="session")
def every(smollm2: Tokenizer, shared_data: Path) -> dict[str, Tokenizer]:
    folder = shared_data / "serving/tokenizer/llama.cpp"
    return {"smollm2": smollm2} | {name: load(folder / f"ggml-vocab-{name}.gguf") for name in VOCABULARIES}


@given(st.text())
@settings(max_examples=200, deadline=None)
def test_any_text_comes_back_from_its_tokens(smollm2: Tokenizer, text: str) -> None:
    # SmolLM2's vocabulary has no token for some bytes; the original tokenizer drops them, and so do we.
    known = {smollm2.token_bytes(token) for token in range(smollm2.vocab_size)}
    ids = smollm2.encode(text, special=False)
    expected = b"".join(bytes([byte]) for byte in text.encode() if bytes([byte]) in known)
    assert b"".join(map(smollm2.token_bytes, ids)) == expected


def test_the_bytes_that_the_default_vocabulary_cannot_spell_are_few_and_rare(smollm2: Tokenizer) -> None:
    known = {smollm2.token_bytes(token) for token in range(smollm2.vocab_size)}
    missing = {byte for byte in range(256) if bytes([byte]) not in known}
    control_characters = {0x04, 0x06, 0x13, 0x14, 0x16, 0x1D}
    never_in_utf8 = {0xC0, 0xC1, *range(0xF5, 0x100)}
    unassigned_planes = {0xF1, 0xF2}
    assert missing == control_characters | never_in_utf8 | unassigned_planes


def test_tokens_of_one_character_split_its_bytes(smollm2: Tokenizer) -> None:
    pieces = [smollm2.token_bytes(token) for token in smollm2.encode("🦙", special=False)]
    assert len(pieces) > 1
    assert b"".join(pieces) == "🦙".encode()


def test_half_of_a_surrogate_pair_is_an_invalid_request(smollm2: Tokenizer) -> None:
    with pytest.raises(InvalidRequest, match="surrogate pair at character 2"):
        smollm2.encode("ab\ud83e", special=True)


def test_ids_outside_the_vocabulary_raise(smollm2: Tokenizer) -> None:
    for token in (-1, smollm2.vocab_size):
        with pytest.raises(IndexError):
            smollm2.token_bytes(token)
        with pytest.raises(IndexError):
            smollm2.token_text(token)


# Damaged vocabularies.

SOUND: dict[str, Any] = {
    "model": "gpt2",
    "pre": "gpt-2",
    "tokens": ["<|end|>", "a", "b", "ab", "<x>"],
    "token_type": [3, 1, 1, 1, 4],
    "merges": ["a b"],
    "bos_token_id": 0,
    "eos_token_id": 0,
}


def test_a_tiny_vocabulary_works(write_vocabulary: Write) -> None:
    tokenizer = load(write_vocabulary(SOUND))
    assert tokenizer.encode("abb<|end|><x>", special=True) == [3, 2, 0, 4]
    assert tokenizer.stop_ids == {0}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"tokens": ["a", "b", "a"], "token_type": [1, 1, 1]}, "'a' occurs twice"),
        ({"tokens": ["a"]}, "token_type' must hold one number a token"),
        ({"merges": ["a c"]}, "merge 0 ('a c')"),
        ({"merges": ["ab"]}, "merge 0 ('ab')"),
        ({"tokens": ["ab", "a", "b"], "token_type": [3, 1, 1]}, "merge 0 ('a b')"),
        ({"token_type": [3, 1, 1, 1, 9]}, "token 4 has the unknown type 9"),
        ({"eos_token_id": 5}, "eos_token_id' is 5, which is no token id"),
        ({"pre": "chatglm-bpe"}, "pre-tokenizer 'chatglm-bpe' is not supported"),
        ({"pre": None}, "pre-tokenizer '(none)' is not supported"),
        ({"model": "t5"}, "tokenizer model 't5' is not supported"),
        ({"tokens": [1, 2], "token_type": [1, 1]}, "must be a list of strings"),
        ({"model": "llama"}, "no token for byte 0x00"),
    ],
)
def test_a_damaged_vocabulary_is_refused(change: dict[str, Any], said: str, write_vocabulary: Write) -> None:
    with pytest.raises(ModelRejected) as refusal:
        load(write_vocabulary(SOUND | change))
    assert said in refusal.value.message


def test_user_defined_tokens_that_look_like_markup_are_control_tokens(write_vocabulary: Write) -> None:
    tokenizer = load(write_vocabulary(SOUND | {"token_type": [4, 1, 1, 1, 4]}))
    assert tokenizer.control_tokens == {"<|end|>": 0}
    assert tokenizer.encode("<x>", special=False) == [4]


def test_the_digest_names_the_vocabulary_and_not_the_chat_template(write_vocabulary: Write) -> None:
    def digest(path: Path) -> str:
        with GgufFile.open(path) as gguf:
            return tokenizer_digest(gguf)

    sound = digest(write_vocabulary(SOUND))
    assert digest(write_vocabulary(SOUND | {"chat_template": "{{ 1 }}"})) == sound
    assert digest(write_vocabulary(SOUND | {"eos_token_id": 1})) != sound
    assert digest(write_vocabulary(SOUND | {"tokens": ["<|end|>", "a", "b", "ab", "<y>"]})) != sound
    assert oracle.Keys.Tokenizer.CHAT_TEMPLATE == "tokenizer.chat_template"
