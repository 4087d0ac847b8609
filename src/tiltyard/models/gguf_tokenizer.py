"""A vocabulary from the metadata of a GGUF file: byte-level merges, SentencePiece, or BERT's word pieces."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from enum import IntEnum
from itertools import groupby

from tokenizers import AddedToken
from tokenizers import Tokenizer as FastTokenizer
from tokenizers.models import BPE, WordPiece
from tokenizers.normalizers import BertNormalizer, Prepend, Replace
from tokenizers.normalizers import Sequence as NormalizerSequence
from tokenizers.pre_tokenizers import BertPreTokenizer

from tiltyard.errors import ModelRejected
from tiltyard.identity.canonical import Digest
from tiltyard.models.gguf import GgufFile, MetadataValue
from tiltyard.models.pretokenizers import RULES
from tiltyard.models.vocabulary import (
    BYTE_TOKEN,
    LOOKS_LIKE_CONTROL,
    SPACE,
    ControlTokens,
    Vocabulary,
    bytes_of_byte_level,
    bytes_of_sentence_piece,
    end_of_answer,
    missing_bytes,
)

PREFIX = "tokenizer.ggml."


class TokenType(IntEnum):
    """`tokenizer.ggml.token_type`, as in SentencePiece."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


NORMAL = int(TokenType.NORMAL)
KNOWN_TYPES = frozenset(map(int, TokenType))


def read_gguf(gguf: GgufFile) -> Vocabulary:
    """Read and check a file's vocabulary; raises `ModelRejected` for a kind that we do not reproduce."""
    metadata = _Metadata(gguf)
    builder = KINDS.get(metadata.model)
    if builder is None:
        raise ModelRejected(
            f"{gguf.path}: tokenizer model {metadata.model!r} is not supported; "
            f"supported: {', '.join(map(repr, KINDS))}"
        )
    return builder(metadata)


def tokenizer_digest(gguf: GgufFile) -> Digest:
    """Name a tokenizer by the bytes of its metadata: keys in order, each with its encoded value.

    The chat template, which has a digest of its own, is not part of it.
    """
    hasher = hashlib.sha256()
    for key in sorted(key for key in gguf.metadata if key.startswith(PREFIX)):
        for part in (key.encode(), gguf.metadata_bytes(key)):
            hasher.update(len(part).to_bytes(8, "little") + part)
    return "sha256:" + hasher.hexdigest()


class _Metadata:
    """Typed access to the tokenizer metadata of one file, checked."""

    def __init__(self, gguf: GgufFile) -> None:
        self.gguf = gguf
        self.model = self.text("model")
        self.tokens = self.texts("tokens")
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
            if kind != NORMAL and token and _is_control(token, kind)
        }

    def user_defined(self) -> list[AddedToken]:
        """Return the tokens that text becomes before anything else is cut or merged."""
        return [
            AddedToken(token, normalized=False, special=False)
            for token, kind in zip(self.tokens, self.types, strict=True)
            if kind == TokenType.USER_DEFINED and token and token not in self.control
        ]

    def pieces(self, decode: Callable[[str], bytes]) -> list[bytes]:
        """Return the bytes that each token adds to an answer."""
        pieces = list(map(decode, self.tokens))
        for token_id in self.control.values():
            pieces[token_id] = b""
        for token_id, kind in enumerate(self.types):
            if kind == NORMAL:  # nearly all
                continue
            token = self.tokens[token_id]
            if kind == TokenType.BYTE:
                if not (match := BYTE_TOKEN.fullmatch(token)):
                    raise ModelRejected(f"{self.gguf.path}: byte token {token!r} is not of the form '<0x0A>'")
                pieces[token_id] = bytes.fromhex(match.group(1))
            elif kind == TokenType.USER_DEFINED and token not in self.control:
                pieces[token_id] = token.encode()
        return pieces

    def merges(self) -> list[tuple[str, str]]:
        """Return `tokenizer.ggml.merges` as pairs of tokens, each of which makes a third."""
        lines = self.texts("merges")
        cut = [line.partition(" ") for line in lines]
        merges = [(left, right) for left, _, right in cut]
        # A merge that makes a control token would let plain text become one.
        allowed = self.ids.keys() - self.control.keys()
        if not (
            allowed.issuperset([left + right for left, right in merges])
            and all(separator for _, separator, _ in cut)
            and self.ids.keys() >= {token for merge in merges for token in merge}
        ):
            for index, (left, separator, right) in enumerate(cut):
                if not (separator and left in self.ids and right in self.ids and left + right in allowed):
                    raise ModelRejected(
                        f"{self.gguf.path}: merge {index:,} ({lines[index]!r}) does not join two tokens to a third"
                    )
        return merges

    def scores(self) -> tuple[float, ...]:
        """Return `tokenizer.ggml.scores`: one a token."""
        scores = self.gguf.metadata.get(PREFIX + "scores")
        if not isinstance(scores, tuple) or len(scores) != len(self.tokens):
            raise ModelRejected(f"{self.gguf.path}: 'tokenizer.ggml.scores' must hold one number a token")
        checked: list[float] = []
        for token_id, score in enumerate(scores):
            if not isinstance(score, float):
                raise ModelRejected(f"{self.gguf.path}: the score of token {token_id:,} is no number")
            checked.append(score)
        return tuple(checked)

    def text(self, name: str) -> str:
        """Return a string that must be there."""
        value = self.gguf.metadata.get(PREFIX + name)
        if not isinstance(value, str):
            raise ModelRejected(f"{self.gguf.path}: {PREFIX + name!r} must be a string; found {value!r}")
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        """Return a list of strings that must be there."""
        value = self.gguf.metadata.get(PREFIX + name)
        if not isinstance(value, tuple):
            raise ModelRejected(f"{self.gguf.path}: {PREFIX + name!r} must be a list of strings")
        texts = tuple(item for item in value if isinstance(item, str))
        if len(texts) != len(value):
            raise ModelRejected(f"{self.gguf.path}: {PREFIX + name!r} must be a list of strings")
        return texts

    def id(self, *names: str) -> int | None:
        """Return the first of these ids that the file gives."""
        for name in names:
            value = self.gguf.metadata.get(PREFIX + name)
            # Converters write 2^32 - 1 for "none".
            if value is None or value == 0xFFFFFFFF:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < len(self.tokens):
                raise ModelRejected(f"{self.gguf.path}: {PREFIX + name!r} is {value!r}, which is no token id")
            return value
        return None

    def flag(self, name: str, default: bool) -> bool:
        """Return a truth value, or what holds where the file is silent."""
        value: MetadataValue = self.gguf.metadata.get(PREFIX + name, default)
        if not isinstance(value, bool):
            raise ModelRejected(f"{self.gguf.path}: {PREFIX + name!r} is {value!r}; expected true or false")
        return value

    def _token_types(self) -> tuple[int, ...]:
        types = self.gguf.metadata.get(PREFIX + "token_type")
        if types is None:
            return (TokenType.NORMAL,) * len(self.tokens)
        if not isinstance(types, tuple) or len(types) != len(self.tokens):
            raise ModelRejected(f"{self.gguf.path}: 'tokenizer.ggml.token_type' must hold one number a token")
        checked = tuple(kind for kind in types if isinstance(kind, int) and kind in KNOWN_TYPES)
        if len(checked) != len(types):
            token_id, kind = next(
                (i, k) for i, k in enumerate(types) if not isinstance(k, int) or k not in KNOWN_TYPES
            )
            raise ModelRejected(f"{self.gguf.path}: token {token_id:,} has the unknown type {kind!r}")
        return checked


def _is_control(token: str, kind: int) -> bool:
    if kind in (TokenType.CONTROL, TokenType.UNKNOWN):
        return True
    return kind == TokenType.USER_DEFINED and LOOKS_LIKE_CONTROL.fullmatch(token) is not None


# The three families.


def _byte_level(metadata: _Metadata) -> Vocabulary:
    name = metadata.gguf.metadata.get(PREFIX + "pre", "(none)")
    rule = RULES.get(name) if isinstance(name, str) else None
    if rule is None:
        raise ModelRejected(
            f"{metadata.gguf.path}: pre-tokenizer {name!r} is not supported; "
            f"supported: {', '.join(sorted(RULES))}"
        )
    fast = FastTokenizer(BPE(metadata.ids, metadata.merges(), ignore_merges=rule.ignore_merges))
    fast.pre_tokenizer = rule.cut()
    if rule.normalize:
        fast.normalizer = rule.normalize()
    fast.add_tokens(metadata.user_defined())
    pieces = metadata.pieces(bytes_of_byte_level)
    # In an answer a control token adds nothing, but text may spell it.
    longest = max(map(len, (*pieces, *(token.encode() for token in metadata.control))))
    return _assemble(
        metadata,
        fast,
        pieces,
        add_bos=rule.add_bos,
        longest=longest,
        dropped=missing_bytes(metadata.ids),
        shrinks=rule.normalize is not None,
    )


def _sentence_piece(metadata: _Metadata) -> Vocabulary:
    if missing := [byte for byte in range(256) if f"<0x{byte:02X}>" not in metadata.ids]:
        raise ModelRejected(f"{metadata.gguf.path}: the vocabulary has no token for byte 0x{missing[0]:02X}")
    unknown = metadata.id("unknown_token_id")
    fast = FastTokenizer(
        BPE(
            metadata.ids,
            _merges_by_score(metadata),
            byte_fallback=True,
            fuse_unk=True,
            unk_token=None if unknown is None else metadata.tokens[unknown],
        )
    )
    steps = [Prepend(SPACE)] if metadata.flag("add_space_prefix", True) else []
    fast.normalizer = NormalizerSequence([*steps, Replace(" ", SPACE)])
    fast.add_tokens(metadata.user_defined())
    return _assemble(
        metadata,
        fast,
        metadata.pieces(bytes_of_sentence_piece),
        add_bos=True,
        longest=max(len(token.encode()) for token in metadata.tokens),
    )


def _merges_by_score(metadata: _Metadata) -> list[tuple[str, str]]:
    """Rewrite SentencePiece scores as byte-pair merges: the best result first, as SentencePiece does."""
    scores = metadata.scores()
    mergeable = {
        token: token_id
        for token_id, (token, kind) in enumerate(zip(metadata.tokens, metadata.types, strict=True))
        if kind in (TokenType.NORMAL, TokenType.USER_DEFINED) and token not in metadata.control
    }
    merges: list[tuple[str, str]] = []
    best_first = sorted(mergeable, key=lambda token: -scores[mergeable[token]])
    for _, equals in groupby(best_first, key=lambda token: scores[mergeable[token]]):
        splits: list[tuple[int, int, str, str]] = []
        for token in equals:
            for cut in range(1, len(token)):
                left = mergeable.get(token[:cut])
                if left is not None and (right := mergeable.get(token[cut:])) is not None:
                    splits.append((left, right, token[:cut], token[cut:]))
        merges += [(left, right) for _, _, left, right in sorted(splits)]
    return merges


def _word_piece(metadata: _Metadata) -> Vocabulary:
    """BERT's own: lower case without accents, words, then the longest known pieces from the left."""
    spelled = [
        _as_bert_spells(token, kind) for token, kind in zip(metadata.tokens, metadata.types, strict=True)
    ]
    cased = next((token for token in spelled if not token.startswith("[") and token.lower() != token), None)
    if cased is not None:
        raise ModelRejected(
            f"{metadata.gguf.path}: the vocabulary has upper case ({cased!r}), and a GGUF file does not say how "
            "text is folded for it. Serve the model from its Hugging Face directory."
        )
    unknown = metadata.id("unknown_token_id")
    if unknown is None:
        raise ModelRejected(f"{metadata.gguf.path}: 'tokenizer.ggml.unknown_token_id' must be given")
    ids = {token: token_id for token_id, token in enumerate(spelled)}
    fast = FastTokenizer(WordPiece(ids, unk_token=metadata.tokens[unknown]))
    fast.normalizer = BertNormalizer(lowercase=True)
    fast.pre_tokenizer = BertPreTokenizer()
    fast.add_tokens(metadata.user_defined())
    return _assemble(
        metadata,
        fast,
        metadata.pieces(bytes_of_sentence_piece),
        add_bos=True,
        add_eos=True,
        longest=0,
        unknown_id=unknown,
    )


def _as_bert_spells(token: str, kind: int) -> str:
    """Undo the converter: `\\u2581word` was `word`, `ing` was `##ing`; `[SEP]` and `[unused7]` stay."""
    if token.startswith(SPACE):
        return token.removeprefix(SPACE)
    if kind != TokenType.NORMAL or (token.startswith("[") and token.endswith("]")):
        return token
    return "##" + token


def _assemble(
    metadata: _Metadata,
    fast: FastTokenizer,
    pieces: Sequence[bytes],
    *,
    add_bos: bool,
    longest: int,
    add_eos: bool = False,
    dropped: bytes = b"",
    shrinks: bool = False,
    unknown_id: int | None = None,
) -> Vocabulary:
    bos_id = metadata.id("bos_token_id", "cls_token_id")
    # The misspelling is GGUF's own.
    eos_id = metadata.id("eos_token_id", "seperator_token_id")
    control = ControlTokens(metadata.control)
    return Vocabulary(
        fast=fast,
        tokens=metadata.tokens,
        pieces=pieces,
        control=control,
        stop_ids=end_of_answer(control, eos_id, metadata.id("eot_token_id"), metadata.id("eom_token_id")),
        bos_id=bos_id,
        eos_id=eos_id,
        add_bos=metadata.flag("add_bos_token", add_bos) and bos_id is not None,
        add_eos=metadata.flag("add_eos_token", add_eos) and eos_id is not None,
        digest=tokenizer_digest(metadata.gguf),
        longest=longest,
        dropped=dropped,
        shrinks=shrinks,
        unknown_id=unknown_id,
    )


KINDS: dict[str, Callable[[_Metadata], Vocabulary]] = {
    "gpt2": _byte_level,
    "llama": _sentence_piece,
    "bert": _word_piece,
}
"""How a vocabulary is read, by `tokenizer.ggml.model`."""
