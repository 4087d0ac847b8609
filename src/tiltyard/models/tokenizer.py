"""Text to token ids and back.

Control tokens (`<|im_end|>`, `</s>`) are cut out here, by one regular expression, before the `tokenizers`
library sees the rest. The library therefore never knows them, and text that is not trusted cannot become one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer as FastTokenizer

from tiltyard.errors import InvalidRequest
from tiltyard.models.directory_tokenizer import read_directory
from tiltyard.models.gguf import GgufFile
from tiltyard.models.gguf_tokenizer import read_gguf, tokenizer_digest
from tiltyard.models.vocabulary import ControlTokens, Vocabulary

__all__ = ["Tokenizer", "tokenizer_digest"]

LONE_SURROGATE = re.compile("[\ud800-\udfff]")
WHITE_SPACE = "\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(
    map(chr, range(0x2000, 0x200B))
)
"""Unicode's White_Space: what a control token that strips swallows."""


class Tokenizer:
    """Encodes and decodes for one model; immutable, safe to share between threads."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        """Take over a checked vocabulary."""
        self._vocabulary = vocabulary
        self._cut = _cutter(vocabulary.control)
        self._never_text = frozenset(vocabulary.control.ids.values()) - {vocabulary.unknown_id}
        self.control_tokens = vocabulary.control.ids
        """Text of each control token, and its id."""
        self.stop_ids = vocabulary.stop_ids
        self.bos_id = vocabulary.bos_id
        self.eos_id = vocabulary.eos_id
        self.add_bos = vocabulary.add_bos
        """Whether a raw prompt (not a chat template's text) begins with BOS."""
        self.add_eos = vocabulary.add_eos
        """Whether a raw prompt ends with EOS."""
        self.digest = vocabulary.digest
        self.vocab_size = len(vocabulary.tokens)

    @classmethod
    def from_gguf(cls, gguf: GgufFile) -> Tokenizer:
        """Build from a file's metadata; raises `ModelRejected` for a kind that we do not reproduce."""
        return cls(read_gguf(gguf))

    @classmethod
    def from_directory(cls, directory: Path, *, vocab_size: int | None = None) -> Tokenizer:
        """Build from `tokenizer.json` and `tokenizer_config.json` of a Hugging Face directory.

        `vocab_size` is the number of rows in the model's output; rows beyond the vocabulary become tokens that
        stand for nothing. Raises `ModelRejected` for a missing or damaged file and for what we do not reproduce.
        """
        return cls(read_directory(directory, vocab_size=vocab_size))

    def encode(self, text: str, *, special: bool) -> list[int]:
        """Turn text into ids, without BOS.

        With `special`, control tokens in the text become control tokens; without, they are plain text.
        Bytes for which the vocabulary has no token (SmolLM2: U+001D and five other control characters) are
        dropped, as the original tokenizer does.

        >>> tokenizer.encode("<|im_end|>", special=True)
        [2]
        """
        return self.encode_segments(self.split_control(text) if special else [text])

    def encode_segments(self, segments: Sequence[str | int]) -> list[int]:
        """Turn text pieces and ready control ids into ids; the text cannot become a control token."""
        ids: list[int] = []
        for index, segment in enumerate(segments):
            if isinstance(segment, int):
                ids.append(segment)
            else:
                ids += self._encode_plain(segment, first=index == 0)
        return ids

    def least_tokens(self, text: str) -> int:
        """Return a number of tokens that a text has at least, without making them: its bytes over the longest's.

        0 where nothing is known: a model's normalizer may shorten a text.
        """
        vocabulary = self._vocabulary
        if vocabulary.longest == 0 or (vocabulary.shrinks and not text.isascii()):
            return 0
        spelled = text.encode("utf-8", "surrogatepass").translate(None, vocabulary.dropped)
        return -(-len(spelled) // vocabulary.longest)

    def split_control(self, text: str) -> list[str | int]:
        """Cut text at its control tokens: `"<|im_end|>\\n"` gives `[2, "\\n"]`."""
        if self._cut is None:
            return [text] if text else []
        control = self._vocabulary.control
        segments: list[str | int] = []
        position = 0
        for match in self._cut.finditer(text):
            token = match.group()
            if match.start() < position:
                continue  # its first white space belongs to the token before
            before = text[position : match.start()]
            if token in control.eats_left:
                before = before.rstrip(WHITE_SPACE)
            if before:
                segments.append(before)
            segments.append(control.ids[token])
            position = match.end()
            while token in control.eats_right and position < len(text) and text[position] in WHITE_SPACE:
                position += 1
        if position < len(text):
            segments.append(text[position:])
        return segments

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes that a token adds to an answer; control tokens add none. Raises `IndexError`."""
        if token_id < 0:
            raise IndexError(f"token id {token_id} is negative")
        return self._vocabulary.pieces[token_id]

    def token_text(self, token_id: int) -> str:
        """Return a token as the vocabulary spells it, control tokens included. Raises `IndexError`."""
        if token_id < 0:
            raise IndexError(f"token id {token_id} is negative")
        return self._vocabulary.tokens[token_id]

    def decode(self, token_ids: Sequence[int]) -> str:
        """Join tokens to text; bytes that are no UTF-8 become U+FFFD."""
        return b"".join(map(self.token_bytes, token_ids)).decode("utf-8", errors="replace")

    def _encode_plain(self, text: str, *, first: bool) -> list[int]:
        if not text:
            return []
        if half := LONE_SURROGATE.search(text):
            raise InvalidRequest(
                f"the text has half of a surrogate pair at character {half.start():,}; send valid Unicode",
                param="messages",
            )
        ids = self._encode_fast(text, first=first)
        # Only a vocabulary that can spell a control token by merging ordinary text gets here.
        if not self._never_text.isdisjoint(ids):
            raise InvalidRequest(
                "the text spells a control token in this model's vocabulary", param="messages"
            )
        return ids

    def _encode_fast(self, text: str, *, first: bool) -> list[int]:
        vocabulary = self._vocabulary
        fast: FastTokenizer = vocabulary.fast
        if not first and vocabulary.continuing is not None:
            fast = vocabulary.continuing
        # A batch of one: `encode` alone keeps Python's lock, which stops every other thread meanwhile.
        (encoding,) = fast.encode_batch_fast([text], add_special_tokens=False)
        ids: list[int] = encoding.ids
        if vocabulary.renumbered:
            return [vocabulary.renumbered.get(token_id, token_id) for token_id in ids]
        return ids


def _cutter(control: ControlTokens) -> re.Pattern[str] | None:
    if not control.ids:
        return None
    # Longest first, so that the leftmost longest token wins, as in the reference implementation.
    longest_first = sorted(control.ids, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)))
