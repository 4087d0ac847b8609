"""Tokenizers of Hugging Face directories, against the `tokenizers` library reading the same file whole."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken
from tokenizers import Tokenizer as Whole
from tokenizers.decoders import ByteFallback, ByteLevel, Decoder, Fuse, Metaspace, Replace, Sequence
from tokenizers.models import BPE, Unigram, WordPiece
from tokenizers.normalizers import BertNormalizer, Prepend
from tokenizers.normalizers import Replace as ReplaceText
from tokenizers.normalizers import Sequence as Normalizers
from tokenizers.pre_tokenizers import BertPreTokenizer, Split
from tokenizers.pre_tokenizers import Metaspace as MetaspaceCut
from tokenizers.processors import TemplateProcessing

from tiltyard.errors import ModelRejected
from tiltyard.models.directory_tokenizer import directory_chat_template, directory_tokenizer_digest
from tiltyard.models.gguf import GgufFile
from tiltyard.models.gguf_tokenizer import read_gguf
from tiltyard.models.prompt import prompt_ids
from tiltyard.models.tokenizer import Tokenizer

Save = Callable[..., Path]
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
LETTERS = [*"abcdehlort.,'!0123<>|", "\u2581"]
MERGES = [
    ("\u2581", "t"),
    ("h", "e"),
    ("\u2581t", "he"),
    ("\u2581", "\u2581"),
    ("a", "b"),
    ("\u2581the", "ab"),
    ("l", "l"),
]
TEXT = st.text() | st.lists(
    st.sampled_from(["the", " the", "ab", "hello ", "<s>", "</s>", "<tool>", "\u2581", "  ", "é", "\n", "🦙"])
).map("".join)


@pytest.fixture
def save(tmp_path: Path) -> Save:
    """Write the files of a directory: a whole tokenizer, and JSON objects or text under their names."""

    def write(whole: Whole | None, **files: Any) -> Path:
        if whole is not None:
            whole.save(str(tmp_path / "tokenizer.json"))
        for name, content in files.items():
            path = tmp_path / (name.replace("__", "."))
            path.write_text(content if isinstance(content, str) else json.dumps(content))
        return tmp_path

    return write


def block_vocabulary(*, cut: str) -> Whole:
    """SentencePiece's alphabet with merges, as Llama 2 (`prepend`), Mistral (`first`) and Gemma (`split`) write it."""
    tokens = ["<unk>", "<s>", "</s>", *BYTES, *LETTERS, *(left + right for left, right in MERGES)]
    ids = {token: token_id for token_id, token in enumerate(tokens)}
    whole = Whole(BPE(ids, MERGES, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    steps: list[Decoder] = [Replace("\u2581", " "), ByteFallback(), Fuse()]
    whole.decoder = Sequence(steps)
    if cut == "prepend":
        whole.normalizer = Normalizers([Prepend("\u2581"), ReplaceText(" ", "\u2581")])
    elif cut == "first":
        whole.pre_tokenizer = MetaspaceCut(prepend_scheme="first", split=False)
    else:
        whole.normalizer = ReplaceText(" ", "\u2581")
        whole.pre_tokenizer = Split(" ", "merged_with_previous")
    whole.add_special_tokens(
        [AddedToken(token, normalized=False, special=True) for token in ("<unk>", "<s>", "</s>")]
    )
    whole.add_tokens([AddedToken("<tool>", normalized=False)])
    return whole


CONFIG = {"bos_token": "<s>", "eos_token": {"content": "</s>"}, "add_bos_token": True}
KEYS = {"tokenizer_config__json": CONFIG}


@pytest.mark.parametrize("cut", ["prepend", "first", "split"])
def test_sentence_piece_files_give_the_ids_of_the_library(cut: str, save: Save) -> None:
    whole = block_vocabulary(cut=cut)
    tokenizer = Tokenizer.from_directory(save(whole, **KEYS))

    @given(TEXT)
    @settings(max_examples=300, deadline=None)
    def same(text: str) -> None:
        assert tokenizer.encode(text, special=True) == whole.encode(text).ids
        # Without the control tokens that a text spells, it is a text like another.
        plain = tokenizer.encode(text, special=False)
        assert not set(plain) & {1, 2}
        assert tokenizer.decode(plain) == whole.decode(plain)
        if cut == "split":  # Gemma puts no space in front, so all text comes back
            assert tokenizer.decode(plain) == text.replace("\u2581", " ")

    same()
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.add_bos) == (1, 2, True)
    assert prompt_ids(tokenizer, "ab", special=True)[0] == 1


def test_the_default_model_reads_the_same_from_a_directory_as_from_its_gguf_file(
    smollm2: Tokenizer, model_path: Path, shared_data: Path, save: Save
) -> None:
    with GgufFile.open(model_path) as gguf:
        whole = read_gguf(gguf).fast
    whole.decoder = ByteLevel()
    whole.add_special_tokens([AddedToken(token, special=True) for token in smollm2.control_tokens])
    directory = save(
        whole,
        tokenizer_config__json={"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"},
        generation_config__json={"eos_token_id": [0, 2]},
    )
    tokenizer = Tokenizer.from_directory(directory)
    assert tokenizer.control_tokens == smollm2.control_tokens
    assert tokenizer.stop_ids == smollm2.stop_ids
    for token_id in range(smollm2.vocab_size):
        assert tokenizer.token_bytes(token_id) == smollm2.token_bytes(token_id)
    vectors = json.loads((shared_data / "serving/tokenizer/smollm2_vectors.json").read_text())["vectors"]
    for vector in vectors:
        assert tokenizer.encode(vector["text"], special=False) == vector["ids"]
        assert tokenizer.least_tokens(vector["text"]) == smollm2.least_tokens(vector["text"])


def test_word_pieces_are_wrapped_as_the_post_processor_says(save: Save) -> None:
    tokens = ["[UNK]", "[CLS]", "[SEP]", "hello", "##s", "world"]
    whole = Whole(WordPiece({token: index for index, token in enumerate(tokens)}, unk_token="[UNK]"))
    whole.normalizer = BertNormalizer(lowercase=True)
    whole.pre_tokenizer = BertPreTokenizer()
    whole.add_special_tokens(["[UNK]", "[CLS]", "[SEP]"])
    whole.post_processor = TemplateProcessing("[CLS] $A [SEP]", None, [("[CLS]", 1), ("[SEP]", 2)])
    directory = save(whole, tokenizer_config__json={"cls_token": "[CLS]", "sep_token": "[SEP]"})
    tokenizer = Tokenizer.from_directory(directory)
    assert prompt_ids(tokenizer, "Héllos WORLD?", special=False) == [1, 3, 4, 5, 0, 2]
    assert whole.encode("Héllos WORLD?").ids == [1, 3, 4, 5, 0, 2]
    assert tokenizer.decode([3, 4, 5]) == " hellos world"


def test_unigram_pieces_give_the_ids_of_the_library(save: Save) -> None:
    pieces = [("<unk>", 0.0), ("\u2581", -2.0), ("\u2581the", -3.0), ("a", -4.0), ("ab", -5.5), ("b", -4.5)]
    whole = Whole(Unigram(pieces, unk_id=0, byte_fallback=False))
    whole.pre_tokenizer = MetaspaceCut()
    whole.decoder = Metaspace()
    whole.add_special_tokens(["<unk>"])
    tokenizer = Tokenizer.from_directory(save(whole))
    for text in ("the ab", "abab the", "xyz"):
        assert tokenizer.encode(text, special=False) == whole.encode(text).ids
    assert tokenizer.least_tokens("the" * 100) == 0


def test_special_tokens_swallow_the_white_space_that_the_file_says(save: Save) -> None:
    whole = block_vocabulary(cut="split")
    whole.add_special_tokens(
        [
            AddedToken("<|left|>", lstrip=True, normalized=False, special=True),
            AddedToken("<|right|>", rstrip=True, normalized=False, special=True),
        ]
    )
    tokenizer = Tokenizer.from_directory(save(whole, **KEYS))
    for text in ("a \n<|left|> b", "a <|right|>\t\n b", "<|right|>  <|left|>", "<|right|> <|right|> "):
        assert tokenizer.encode(text, special=True) == whole.encode(text).ids, text


def test_added_tokens_keep_the_ids_of_the_file(save: Save) -> None:
    whole = block_vocabulary(cut="split")
    directory = save(whole, **KEYS)
    file = json.loads((directory / "tokenizer.json").read_text())
    tool = next(token for token in file["added_tokens"] if token["content"] == "<tool>")
    tool["id"] += 7  # a gap, as between the vocabulary and the added tokens of Qwen
    save(None, tokenizer__json=file)
    tokenizer = Tokenizer.from_directory(directory, vocab_size=tool["id"] + 3)
    ids = tokenizer.encode("a<tool>b", special=False)
    assert ids[1] == tool["id"]
    assert tokenizer.decode(ids) == "a<tool>b"
    assert tokenizer.vocab_size == tool["id"] + 3
    assert tokenizer.token_bytes(tool["id"] - 1) == tokenizer.token_bytes(tool["id"] + 2) == b""
    # As Gemma 3's text models, whose tokenizer has an image token that they have no row for.
    without = Tokenizer.from_directory(directory, vocab_size=tool["id"])
    assert without.vocab_size == tool["id"]
    assert without.decode(without.encode("a<tool>b", special=True)) == "a<tool>b"
    with pytest.raises(ModelRejected, match="has token id 287; the model's output has 9 rows"):
        Tokenizer.from_directory(directory, vocab_size=9)


def test_the_chat_template_is_found_where_transformers_keeps_it(save: Save) -> None:
    directory = save(None, tokenizer_config__json=CONFIG)
    assert directory_chat_template(directory) is None
    save(None, tokenizer_config__json=CONFIG | {"chat_template": "{{ 1 }}"})
    assert directory_chat_template(directory) == "{{ 1 }}"
    named = [{"name": "rag", "template": "{{ 2 }}"}, {"name": "default", "template": "{{ 3 }}"}]
    save(None, tokenizer_config__json=CONFIG | {"chat_template": named})
    assert directory_chat_template(directory) == "{{ 3 }}"
    save(None, chat_template__jinja="{{ 4 }}\n")
    assert directory_chat_template(directory) == "{{ 4 }}\n"


def test_the_digest_names_what_decides_ids_and_ends(save: Save) -> None:
    directory = save(block_vocabulary(cut="split"), **KEYS)
    digest = directory_tokenizer_digest(directory)
    assert Tokenizer.from_directory(directory).digest == digest
    save(None, tokenizer_config__json=CONFIG | {"chat_template": "{{ 1 }}", "model_max_length": 5})
    assert directory_tokenizer_digest(directory) == digest
    save(None, tokenizer_config__json=CONFIG | {"add_bos_token": False})
    assert directory_tokenizer_digest(directory) != digest
    save(None, tokenizer_config__json=CONFIG, generation_config__json={"eos_token_id": [2, 5]})
    assert directory_tokenizer_digest(directory) != digest
    assert 5 in Tokenizer.from_directory(directory).stop_ids


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({}, "cannot be read: No such file or directory"),
        ({"tokenizer__json": "{"}, "is no valid JSON"),
        ({"tokenizer__json": "[]"}, "must hold a JSON object"),
        ({"tokenizer__json": {"model": []}}, "'model' must be an object"),
        (
            {"tokenizer__json": {"model": {"type": "WordLevel"}}},
            "tokenizer model 'WordLevel' is not supported",
        ),
        ({"tokenizer__json": {"model": {"type": "BPE", "vocab": 1}}}, "cannot be read: "),
        (
            {"tokenizer__json": {"model": {"type": "BPE", "vocab": {"a": 10**9}, "merges": []}}},
            "token id 1,000,000,000; at most 4,194,303",
        ),
        (
            {"tokenizer__json": {"model": {"type": "BPE"}, "normalizer": {"type": {}}}},
            "cannot be read: ",
        ),
        (
            {"tokenizer__json": {"model": {"type": "BPE"}, "added_tokens": [{"id": 0}]}},
            "added_tokens[0] must",
        ),
        (
            {"tokenizer__json": {"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}}},
            "neither byte-level, SentencePiece nor word pieces",
        ),
    ],
)
def test_damaged_files_are_refused(files: dict[str, Any], said: str, save: Save) -> None:
    directory = save(None, **files)
    with pytest.raises(ModelRejected) as refusal:
        Tokenizer.from_directory(directory)
    assert said in refusal.value.message


@pytest.mark.parametrize("named", ["2", [2, "x"], True, 1.5, -1, {}, 10**6, [2, 10**6]], ids=repr)
def test_an_end_that_is_no_token_is_refused(named: object, save: Save) -> None:
    directory = save(block_vocabulary(cut="split"), **KEYS, generation_config__json={"eos_token_id": named})
    with pytest.raises(ModelRejected, match=r"'eos_token_id' (is|names)"):
        Tokenizer.from_directory(directory)


def test_a_chat_template_that_is_not_text_is_refused(save: Save) -> None:
    directory = save(block_vocabulary(cut="split"), **KEYS)
    (directory / "chat_template.jinja").write_bytes(b"\xff\xfe")
    with pytest.raises(ModelRejected, match=r"chat_template\.jinja is not UTF-8"):
        directory_chat_template(directory)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"bos_token": "<nowhere>"}, "'bos_token' is '<nowhere>', which is no added token"),
        ({"bos_token": "<s>", "add_bos_token": "yes"}, "'add_bos_token' is 'yes'; expected true or false"),
    ],
)
def test_a_wrong_config_is_refused(config: dict[str, Any], said: str, save: Save) -> None:
    directory = save(block_vocabulary(cut="split"), tokenizer_config__json=config)
    with pytest.raises(ModelRejected) as refusal:
        Tokenizer.from_directory(directory)
    assert said in refusal.value.message
