"""Token ids against llama.cpp's and Hugging Face's own vectors."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf as oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sentence_piece_reference import SPACE, merge_by_score

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


COMES_BACK = {"gpt-2", "llama-bpe", "starcoder", "falcon", "deepseek-coder"}
"""Byte-level vocabularies that spell every byte and change no text."""


@pytest.mark.parametrize("name", VOCABULARIES)
def test_vocabularies_give_the_ids_of_llama_cpp(
    name: str, every: dict[str, Tokenizer], shared_data: Path
) -> None:
    tokenizer = every[name]
    vectors = llama_cpp_vectors(shared_data / f"serving/tokenizer/llama.cpp/ggml-vocab-{name}.gguf")
    assert len(vectors) == 47
    for text, ids in vectors:
        assert tokenizer.encode(text, special=False) == ids, text
        if name in COMES_BACK:
            assert tokenizer.decode(ids) == text
        if name == "llama-spm" and text:
            assert tokenizer.decode(ids) == " " + text  # the model's own space in front


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


@pytest.fixture(scope="session")
def unspelled(every: dict[str, Tokenizer]) -> dict[str, bytes]:
    """The bytes that each byte-level vocabulary has no token for."""
    found: dict[str, bytes] = {}
    for name in ("smollm2", *COMES_BACK):
        known = {every[name].token_bytes(token) for token in range(every[name].vocab_size)}
        found[name] = bytes(byte for byte in range(256) if bytes([byte]) not in known)
    return found


@given(st.text() | st.lists(SHRINKING).map("".join), st.sampled_from(["smollm2", *sorted(COMES_BACK)]))
@settings(max_examples=300, deadline=None)
def test_byte_level_vocabularies_give_every_text_back(
    every: dict[str, Tokenizer], unspelled: dict[str, bytes], text: str, name: str
) -> None:
    ids = every[name].encode(text, special=False)
    # Some have no token for bytes that hardly any text has; the original tokenizers drop them, and so do we.
    assert b"".join(map(every[name].token_bytes, ids)) == text.encode().translate(None, unspelled[name])


@given(st.text() | st.text("e\u0301\u0327\u1100\u1161 a"))
@settings(max_examples=100, deadline=None)
def test_vocabularies_that_compose_accents_give_the_composed_text_back(
    every: dict[str, Tokenizer], text: str
) -> None:
    # MPT's and Qwen's own tokenizers normalize to NFC; llama.cpp does not, and differs there from the original.
    assert every["mpt"].decode(every["mpt"].encode(text, special=False)) == unicodedata.normalize("NFC", text)


RUNS = st.sampled_from([" ", "ab", "aab ", "the ", " \n", "=-", "lo l", ". ", "01 ", "▁t"]).flatmap(
    lambda letters: st.text(letters, max_size=40)
)


@pytest.fixture(scope="session")
def scored(shared_data: Path) -> tuple[dict[str, float], dict[str, int]]:
    """Llama 2's scores of the tokens that merging makes, and all its ids."""
    with GgufFile.open(shared_data / "serving/tokenizer/llama.cpp/ggml-vocab-llama-spm.gguf") as gguf:
        metadata = gguf.metadata
    tokens, scores, kinds = (
        metadata[f"tokenizer.ggml.{name}"] for name in ("tokens", "scores", "token_type")
    )
    made = {token: score for token, score, kind in zip(tokens, scores, kinds, strict=True) if kind == 1}
    return made, {token: token_id for token_id, token in enumerate(tokens)}


@given(st.text() | RUNS)
@settings(max_examples=300, deadline=None)
def test_sentence_piece_merges_the_best_score_first(
    every: dict[str, Tokenizer], scored: tuple[dict[str, float], dict[str, int]], text: str
) -> None:
    tokenizer = every["llama-spm"]
    spelled = SPACE + text.replace(" ", SPACE) if text else ""
    assert tokenizer.encode(text, special=False) == merge_by_score(spelled, *scored)
    # Whatever it is cut into, it is the text (with SentencePiece's space for its own block) behind one space.
    assert tokenizer.decode(tokenizer.encode(text, special=False)) == spelled.replace(SPACE, " ")


@pytest.mark.parametrize("name", VOCABULARIES)
def test_a_megabyte_of_one_letter_is_encoded(name: str, every: dict[str, Tokenizer]) -> None:
    # Merging that searches a word again for each merge would take hours here.
    tokenizer = every[name]
    ids = tokenizer.encode("a" * 1_000_000, special=True)
    if name == "bert-bge":
        assert [tokenizer.token_text(token) for token in ids] == ["[UNK]"]  # a word has at most 100 letters
    else:
        assert tokenizer.decode(ids).strip() == "a" * 1_000_000


def test_the_bytes_that_vocabularies_cannot_spell_are_few_and_rare(unspelled: dict[str, bytes]) -> None:
    control_characters = {0x04, 0x06, 0x13, 0x14, 0x16, 0x1D}
    never_in_utf8 = {0xC0, 0xC1, *range(0xF5, 0x100)}
    unassigned_planes = {0xF1, 0xF2}
    assert set(unspelled["smollm2"]) == control_characters | never_in_utf8 | unassigned_planes
    assert set(unspelled["starcoder"]) <= never_in_utf8 | unassigned_planes
    assert unspelled["gpt-2"] == unspelled["llama-bpe"] == b""


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


BLOCKS: dict[str, Any] = {
    "model": "llama",
    "tokens": [
        *("<unk>", "<s>", "</s>", "<tool>"),
        *(f"<0x{byte:02X}>" for byte in range(256)),
        *(SPACE, "a", "b", SPACE + "a", "ab", "<unused>"),
    ],
    "token_type": [2, 3, 3, 4, *[6] * 256, 1, 1, 1, 1, 1, 5],
    "scores": [*[0.0] * 260, -9.0, -9.0, -9.0, -1.0, -2.0, 0.0],
    "bos_token_id": 1,
    "eos_token_id": 2,
    "unknown_token_id": 0,
}
FIRST = 260
"""Id of the block; `a`, `b`, the block with `a`, and `ab` follow."""


def test_sentence_piece_falls_back_to_bytes_and_puts_a_space_in_front(write_vocabulary: Write) -> None:
    tokenizer = load(write_vocabulary(BLOCKS))
    # The block with `a` scores better than `ab`.
    assert tokenizer.encode("ab\n", special=True) == [FIRST + 3, FIRST + 2, 4 + ord("\n")]
    assert tokenizer.encode("é", special=True) == [FIRST, 4 + 0xC3, 4 + 0xA9]
    assert tokenizer.decode([4 + 0xC3, 4 + 0xA9]) == "é"
    assert tokenizer.decode([4 + 0xC3]) == "\ufffd"
    # llama.cpp: a space in front of each piece of text that follows a special token.
    assert tokenizer.encode("b<tool>b</s>b", special=True) == [
        *(FIRST, FIRST + 2, 3),
        *(FIRST, FIRST + 2, 2),
        *(FIRST, FIRST + 2),
    ]
    assert tokenizer.decode([3]) == "<tool>"


def test_a_file_says_whether_space_begin_and_end_are_added(write_vocabulary: Write) -> None:
    assert prompt_ids(load(write_vocabulary(BLOCKS)), "b", special=True) == [1, FIRST, FIRST + 2]
    change = {"add_space_prefix": False, "add_bos_token": False, "add_eos_token": True}
    tokenizer = load(write_vocabulary(BLOCKS | change))
    assert prompt_ids(tokenizer, "b", special=True) == [FIRST + 2, 2]
    assert prompt_ids(tokenizer, "b</s>", special=True) == [FIRST + 2, 2]
    assert prompt_ids(tokenizer, "", special=True) == [2]


def test_a_text_that_brings_its_own_begin_of_sequence_gets_no_second_one(write_vocabulary: Write) -> None:
    """Two of them in a row weaken a model without a word (vLLM #2012, llama-cpp-python #1501)."""
    tokenizer = load(write_vocabulary(BLOCKS))
    assert prompt_ids(tokenizer, "<s>b", special=True) == [1, FIRST, FIRST + 2]
    assert prompt_ids(tokenizer, "b", special=True) == [1, FIRST, FIRST + 2]


def test_word_pieces_are_wrapped_in_their_own_control_tokens(every: dict[str, Tokenizer]) -> None:
    tokenizer = every["bert-bge"]
    ids = prompt_ids(tokenizer, "Hello WORLDS", special=False)
    assert [tokenizer.token_text(token) for token in ids] == ["[CLS]", "▁hello", "▁worlds", "[SEP]"]
    assert tokenizer.decode(ids) == " hello worlds"


def test_word_pieces_with_upper_case_are_refused(write_vocabulary: Write) -> None:
    cased = {
        "model": "bert",
        "tokens": ["[UNK]", "[CLS]", "[SEP]", "▁The"],
        "token_type": [3, 3, 3, 1],
        "unknown_token_id": 0,
        "merges": None,
    }
    with pytest.raises(ModelRejected, match=r"has upper case \('The'\)"):
        load(write_vocabulary(cased))


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
