"""Text to token ids and back, built from the vocabulary inside a GGUF file.

Control tokens (`<|im_end|>`, `</s>`) are cut out here, by one regular expression, before the `tokenizers`
library sees the rest. The library therefore never knows them, and text that is not trusted cannot become one.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from enum import IntEnum

from tokenizers import AddedToken
from tokenizers import Tokenizer as FastTokenizer
from tokenizers.models import BPE
from tokenizers.normalizers import NFC, Prepend, Replace
from tokenizers.normalizers import Sequence as NormalizerSequence

from tiltyard.errors import InvalidRequest, ModelRejected
from tiltyard.identity.canonical import Digest
from tiltyard.models.gguf import GgufFile, MetadataValue
from tiltyard.models.pretokenizers import RULES

PREFIX = "tokenizer.ggml."
SPACE = "\u2581"  # SentencePiece writes a space as this block


LONE_SURROGATE = re.compile("[\ud800-\udfff]")
BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")


class TokenType(IntEnum):
    """`tokenizer.ggml.token_type`, as in SentencePiece."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


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


class Tokenizer:
    """Encodes and decodes for one model; immutable, safe to share between threads."""

    def __init__(
        self,
        *,
        fast: FastTokenizer,
        tokens: Sequence[str],
        pieces: Sequence[bytes],
        control: dict[str, int],
        stop_ids: frozenset[int],
        bos_id: int | None,
        eos_id: int | None,
        add_bos: bool,
        digest: Digest,
        longest: int,
        dropped: bytes,
    ) -> None:
        """Take over a checked vocabulary.

        `longest` is the most bytes of text that one token stands for, `dropped` the bytes that none stands for.
        """
        self._fast = fast
        self._longest = longest
        self._dropped = dropped
        self._nfc = isinstance(fast.normalizer, NFC)
        self._tokens = tokens
        self._pieces = pieces
        self.control_tokens = control
        """Text of each control token, and its id."""
        self._control_ids = frozenset(control.values())
        # Longest first, so that the leftmost longest token wins, as in the reference implementation.
        longest_first = sorted(control, key=len, reverse=True)
        self._control_pattern = re.compile("|".join(map(re.escape, longest_first))) if control else None
        self.stop_ids = stop_ids
        self.bos_id = bos_id
        self.eos_id = eos_id
        self.add_bos = add_bos
        """Whether a raw prompt (not a chat template's text) begins with BOS."""
        self.digest = digest
        self.vocab_size = len(tokens)

    @classmethod
    def from_gguf(cls, gguf: GgufFile) -> Tokenizer:
        """Build from a file's metadata; raises `ModelRejected` for a kind that we do not reproduce."""
        return _Vocabulary(gguf).build()

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
        for segment in segments:
            if isinstance(segment, int):
                ids.append(segment)
            else:
                ids += self._encode_plain(segment)
        return ids

    def least_tokens(self, text: str) -> int:
        """Return a number of tokens that a text has at least, without making them: its bytes over the longest's.

        0 where nothing is known: a model's normalizer (NFC) may shorten a text that is not ASCII.
        """
        if self._nfc and not text.isascii():
            return 0
        spelled = text.encode("utf-8", "surrogatepass").translate(None, self._dropped)
        return -(-len(spelled) // self._longest)

    def split_control(self, text: str) -> list[str | int]:
        """Cut text at its control tokens: `"<|im_end|>\\n"` gives `[2, "\\n"]`."""
        if self._control_pattern is None:
            return [text] if text else []
        segments: list[str | int] = []
        position = 0
        for match in self._control_pattern.finditer(text):
            if match.start() > position:
                segments.append(text[position : match.start()])
            segments.append(self.control_tokens[match.group()])
            position = match.end()
        if position < len(text):
            segments.append(text[position:])
        return segments

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes that a token adds to an answer; control tokens add none. Raises `IndexError`."""
        if token_id < 0:
            raise IndexError(f"token id {token_id} is negative")
        return self._pieces[token_id]

    def token_text(self, token_id: int) -> str:
        """Return a token as the vocabulary spells it, control tokens included. Raises `IndexError`."""
        if token_id < 0:
            raise IndexError(f"token id {token_id} is negative")
        return self._tokens[token_id]

    def decode(self, token_ids: Sequence[int]) -> str:
        """Join tokens to text; bytes that are no UTF-8 become U+FFFD."""
        return b"".join(map(self.token_bytes, token_ids)).decode("utf-8", errors="replace")

    def _encode_plain(self, text: str) -> list[int]:
        if not text:
            return []
        if half := LONE_SURROGATE.search(text):
            raise InvalidRequest(
                f"the text has half of a surrogate pair at character {half.start():,}; send valid Unicode",
                param="messages",
            )
        # A batch of one: `encode` alone keeps Python's lock, which stops every other thread meanwhile.
        (encoding,) = self._fast.encode_batch_fast([text], add_special_tokens=False)
        ids: list[int] = encoding.ids
        # Only a vocabulary that can spell a control token by merging ordinary text gets here.
        if not self._control_ids.isdisjoint(ids):
            raise InvalidRequest(
                "the text spells a control token in this model's vocabulary", param="messages"
            )
        return ids


def tokenizer_digest(gguf: GgufFile) -> Digest:
    """Name a tokenizer by the bytes of its metadata: keys in order, each with its encoded value.

    The chat template, which has a digest of its own, is not part of it.
    """
    hasher = hashlib.sha256()
    for key in sorted(key for key in gguf.metadata if key.startswith(PREFIX)):
        for part in (key.encode(), gguf.metadata_bytes(key)):
            hasher.update(len(part).to_bytes(8, "little") + part)
    return "sha256:" + hasher.hexdigest()


def _is_control(token: str, kind: int) -> bool:
    if kind in (TokenType.CONTROL, TokenType.UNKNOWN):
        return True
    return kind == TokenType.USER_DEFINED and LOOKS_LIKE_CONTROL.fullmatch(token) is not None


def _byte_alphabet() -> dict[str, int]:
    """Return GPT-2's stand-in for each byte: printable bytes are themselves, the rest follow U+0100."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    shifted = (byte for byte in range(256) if byte not in printable)
    alphabet = {chr(byte): byte for byte in printable}
    return alphabet | {chr(0x100 + index): byte for index, byte in enumerate(shifted)}


BYTE_ALPHABET = _byte_alphabet()


def _bytes_of_byte_level(token: str) -> bytes:
    try:
        return bytes([BYTE_ALPHABET[character] for character in token])
    except KeyError:
        # An unused slot that is spelled in plain text.
        return token.encode()


class _Vocabulary:
    """The tokenizer metadata of one file, checked."""

    def __init__(self, gguf: GgufFile) -> None:
        self.gguf = gguf
        self.model = self._text("model")
        self.tokens = self._texts("tokens")
        if not self.tokens:
            raise ModelRejected(f"{gguf.path}: the vocabulary is empty")
        self.types = self._token_types()
        self.ids = {token: token_id for token_id, token in enumerate(self.tokens)}
        if len(self.ids) != len(self.tokens):
            twice = next(token for token_id, token in enumerate(self.tokens) if self.ids[token] != token_id)
            raise ModelRejected(f"{gguf.path}: token {twice!r} occurs twice in the vocabulary")
        self.control = {
            token: token_id
            for token_id, (token, kind) in enumerate(zip(self.tokens, self.types, strict=True))
            if token and _is_control(token, kind)
        }

    def build(self) -> Tokenizer:
        if self.model == "gpt2":
            fast, add_bos, decode = self._byte_level()
        elif self.model == "llama":
            fast, add_bos, decode = self._sentence_piece()
        else:
            raise ModelRejected(
                f"{self.gguf.path}: tokenizer model {self.model!r} is not supported; "
                "supported: 'gpt2', 'llama'"
            )
        added = [
            AddedToken(token, normalized=False, special=False)
            for token, kind in zip(self.tokens, self.types, strict=True)
            if kind == TokenType.USER_DEFINED and token and token not in self.control
        ]
        fast.add_tokens(added)
        bos_id, eos_id = self._id("bos_token_id"), self._id("eos_token_id")
        return Tokenizer(
            fast=fast,
            tokens=self.tokens,
            pieces=decode,
            control=self.control,
            stop_ids=self._stop_ids(eos_id),
            bos_id=bos_id,
            eos_id=eos_id,
            add_bos=self._flag("add_bos_token", add_bos) and bos_id is not None,
            digest=tokenizer_digest(self.gguf),
            longest=max(map(self._most_text, self.tokens, decode)),
            dropped=b"" if self.model == "llama" else self._dropped(),
        )

    def _most_text(self, token: str, piece: bytes) -> int:
        """Return the most bytes of text that become one token; in an answer a control token adds none of them."""
        spelled = token in self.control or self.model == "llama"  # there a space is spelled with three bytes
        return max(len(piece), len(token.encode()) if spelled else 0)

    def _dropped(self) -> bytes:
        return bytes(byte for character, byte in BYTE_ALPHABET.items() if character not in self.ids)

    # The two families.

    def _byte_level(self) -> tuple[FastTokenizer, bool, list[bytes]]:
        name = self.gguf.metadata.get(PREFIX + "pre", "(none)")
        rule = RULES.get(name) if isinstance(name, str) else None
        if rule is None:
            raise ModelRejected(
                f"{self.gguf.path}: pre-tokenizer {name!r} is not supported; "
                f"supported: {', '.join(sorted(RULES))}"
            )
        fast = FastTokenizer(BPE(self.ids, self._merges(), ignore_merges=rule.ignore_merges))
        fast.pre_tokenizer = rule.cut()
        if rule.normalize:
            fast.normalizer = rule.normalize()
        return fast, rule.add_bos, self._pieces(_bytes_of_byte_level)

    def _sentence_piece(self) -> tuple[FastTokenizer, bool, list[bytes]]:
        if missing := [byte for byte in range(256) if f"<0x{byte:02X}>" not in self.ids]:
            raise ModelRejected(f"{self.gguf.path}: the vocabulary has no token for byte 0x{missing[0]:02X}")
        unknown = self._id("unknown_token_id")
        fast = FastTokenizer(
            BPE(
                self.ids,
                self._merges_by_score(),
                byte_fallback=True,
                fuse_unk=True,
                unk_token=None if unknown is None else self.tokens[unknown],
            )
        )
        steps = [Prepend(SPACE)] if self._flag("add_space_prefix", True) else []
        fast.normalizer = NormalizerSequence([*steps, Replace(" ", SPACE)])
        return fast, True, self._pieces(lambda token: token.replace(SPACE, " ").encode())

    def _merges(self) -> list[tuple[str, str]]:
        merges: list[tuple[str, str]] = []
        for index, line in enumerate(self._texts("merges")):
            left, separator, right = line.partition(" ")
            # A merge that makes a control token would let plain text become one.
            known = left in self.ids and right in self.ids and left + right in self.ids
            if not separator or not known or left + right in self.control:
                raise ModelRejected(
                    f"{self.gguf.path}: merge {index:,} ({line!r}) does not join two tokens to a third"
                )
            merges.append((left, right))
        return merges

    def _merges_by_score(self) -> list[tuple[str, str]]:
        """Rewrite SentencePiece scores as byte-pair merges: the best result first, as SentencePiece does."""
        scores = self.gguf.metadata.get(PREFIX + "scores")
        if not isinstance(scores, tuple) or len(scores) != len(self.tokens):
            raise ModelRejected(f"{self.gguf.path}: 'tokenizer.ggml.scores' must hold one number a token")
        mergeable = {
            token: token_id
            for token_id, (token, kind) in enumerate(zip(self.tokens, self.types, strict=True))
            if kind in (TokenType.NORMAL, TokenType.USER_DEFINED) and token not in self.control
        }
        ranked: list[tuple[float, int, int, str, str]] = []
        for token, token_id in mergeable.items():
            score = scores[token_id]
            if not isinstance(score, float):
                raise ModelRejected(f"{self.gguf.path}: the score of token {token_id:,} is no number")
            for cut in range(1, len(token)):
                left, right = mergeable.get(token[:cut]), mergeable.get(token[cut:])
                if left is not None and right is not None:
                    ranked.append((-score, left, right, token[:cut], token[cut:]))
        ranked.sort()
        return [(left, right) for _, _, _, left, right in ranked]

    def _pieces(self, decode: Callable[[str], bytes]) -> list[bytes]:
        """Return the bytes that each token adds to an answer."""
        pieces: list[bytes] = []
        for token, kind in zip(self.tokens, self.types, strict=True):
            if kind == TokenType.BYTE:
                if not (match := BYTE_TOKEN.fullmatch(token)):
                    raise ModelRejected(f"{self.gguf.path}: byte token {token!r} is not of the form '<0x0A>'")
                pieces.append(bytes.fromhex(match.group(1)))
            elif token in self.control:
                pieces.append(b"")
            elif kind == TokenType.USER_DEFINED:
                pieces.append(token.encode())
            else:
                pieces.append(decode(token))
        return pieces

    # Typed access to metadata.

    def _stop_ids(self, eos_id: int | None) -> frozenset[int]:
        named = (eos_id, self._id("eot_token_id"), self._id("eom_token_id"))
        by_text = (token_id for token, token_id in self.control.items() if token in END_OF_ANSWER)
        return frozenset(token_id for token_id in (*named, *by_text) if token_id is not None)

    def _token_types(self) -> tuple[int, ...]:
        types = self.gguf.metadata.get(PREFIX + "token_type")
        if types is None:
            return (TokenType.NORMAL,) * len(self.tokens)
        if not isinstance(types, tuple) or len(types) != len(self.tokens):
            raise ModelRejected(f"{self.gguf.path}: 'tokenizer.ggml.token_type' must hold one number a token")
        checked: list[int] = []
        for token_id, kind in enumerate(types):
            if not isinstance(kind, int) or not TokenType.NORMAL <= kind <= TokenType.BYTE:
                raise ModelRejected(f"{self.gguf.path}: token {token_id:,} has the unknown type {kind!r}")
            checked.append(kind)
        return tuple(checked)

    def _text(self, name: str) -> str:
        value = self.gguf.metadata.get(PREFIX + name)
        if not isinstance(value, str):
            raise ModelRejected(f"{self.gguf.path}: {PREFIX + name!r} must be a string; found {value!r}")
        return value

    def _texts(self, name: str) -> tuple[str, ...]:
        value = self.gguf.metadata.get(PREFIX + name)
        if not isinstance(value, tuple):
            raise ModelRejected(f"{self.gguf.path}: {PREFIX + name!r} must be a list of strings")
        texts: list[str] = []
        for item in value:
            if not isinstance(item, str):
                raise ModelRejected(f"{self.gguf.path}: {PREFIX + name!r} must be a list of strings")
            texts.append(item)
        return tuple(texts)

    def _id(self, name: str) -> int | None:
        value = self.gguf.metadata.get(PREFIX + name)
        # Converters write 2^32 - 1 for "none".
        if value is None or value == 0xFFFFFFFF:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < len(self.tokens):
            raise ModelRejected(f"{self.gguf.path}: {PREFIX + name!r} is {value!r}, which is no token id")
        return value

    def _flag(self, name: str, default: bool) -> bool:
        value: MetadataValue = self.gguf.metadata.get(PREFIX + name, default)
        if not isinstance(value, bool):
            raise ModelRejected(f"{self.gguf.path}: {PREFIX + name!r} is {value!r}; expected true or false")
        return value
