"""What a tokenizer is made of, however its file spells it; the readers beside this file make it.

`gguf_tokenizer.py` reads the metadata of a GGUF file, `directory_tokenizer.py` a Hugging Face `tokenizer.json`.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tokenizers import Tokenizer as FastTokenizer

from tiltyard.identity.canonical import Digest

SPACE = "\u2581"  # SentencePiece writes a space as this block

BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")

LOOKS_LIKE_CONTROL = re.compile(r"<\|.*\|>|<｜.*｜>", re.DOTALL)
"""Some converters mark chat markup as user-defined; text of this shape is never ordinary text."""

END_OF_ANSWER = frozenset(
    (
        "<|im_end|>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<|end|>",
        "<end_of_turn>",
        "<｜end▁of▁sentence｜>",
        "</s>",
    )
)
"""Control tokens that end an answer even where the file names only one of them as end of sequence."""


@dataclass(frozen=True)
class ControlTokens:
    """The tokens that text cannot become, cut out by us before the `tokenizers` library sees the rest."""

    ids: dict[str, int]
    eats_left: frozenset[str] = frozenset()
    """Those that swallow white space in front of them (`lstrip` of a `tokenizer.json`)."""
    eats_right: frozenset[str] = frozenset()
    """Those that swallow white space behind them (`rstrip`)."""


@dataclass(frozen=True)
class Vocabulary:
    """A checked vocabulary and the way text is cut by it."""

    fast: FastTokenizer
    """Encodes text that holds no control token; knows none."""
    tokens: Sequence[str]
    """Spelling of each token in the vocabulary's own way, control tokens included."""
    pieces: Sequence[bytes]
    """Bytes that each token adds to an answer; control tokens add none."""
    control: ControlTokens
    stop_ids: frozenset[int]
    bos_id: int | None
    eos_id: int | None
    add_bos: bool
    """Whether a raw prompt (not a chat template's text) begins with BOS."""
    add_eos: bool
    """Whether a raw prompt ends with EOS."""
    digest: Digest
    longest: int
    """Most bytes of text that one token stands for; 0 where nothing is known (text may be folded or shortened)."""
    dropped: bytes = b""
    """Bytes that no token stands for."""
    shrinks: bool = False
    """Whether a normalizer (NFC) may shorten a text that is not ASCII."""
    unknown_id: int | None = None
    """The token that stands for what cannot be spelled, where the model has one and emits it."""
    continuing: FastTokenizer | None = None
    """Encodes text behind a control token, where that differs: no space is put in front of it."""
    renumbered: dict[int, int] | None = None
    """Ids of `fast` that are not the vocabulary's own."""


def end_of_answer(control: ControlTokens, *named: int | None) -> frozenset[int]:
    """Return the ids that end an answer: those that the file names, and those known by their text."""
    by_text = (token_id for token, token_id in control.ids.items() if token in END_OF_ANSWER)
    return frozenset(token_id for token_id in (*named, *by_text) if token_id is not None)


def _byte_alphabet() -> dict[str, int]:
    """Return GPT-2's stand-in for each byte: printable bytes are themselves, the rest follow U+0100."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    shifted = (byte for byte in range(256) if byte not in printable)
    alphabet = {chr(byte): byte for byte in printable}
    return alphabet | {chr(0x100 + index): byte for index, byte in enumerate(shifted)}


BYTE_ALPHABET = _byte_alphabet()
_BYTE_OF = {ord(character): byte for character, byte in BYTE_ALPHABET.items()}


def bytes_of_byte_level(token: str) -> bytes:
    """Return the bytes that GPT-2's alphabet spells; an unused slot may be spelled in plain text."""
    try:
        return codecs.charmap_encode(token, "strict", _BYTE_OF)[0]
    except UnicodeEncodeError:
        return token.encode()


def bytes_of_sentence_piece(token: str) -> bytes:
    """Return the bytes of a SentencePiece token: `<0x0A>` is a byte, the block is a space.

    >>> bytes_of_sentence_piece("\\u2581the"), bytes_of_sentence_piece("<0x0A>")
    (b' the', b'\\n')
    """
    if match := BYTE_TOKEN.fullmatch(token):
        return bytes.fromhex(match.group(1))
    return token.replace(SPACE, " ").encode()


def missing_bytes(tokens: Mapping[str, int]) -> bytes:
    """Return the bytes that a byte-level vocabulary has no token for: text loses them, as in the original."""
    return bytes(byte for character, byte in BYTE_ALPHABET.items() if character not in tokens)
