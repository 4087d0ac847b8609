"""A vocabulary from the files of a Hugging Face directory: `tokenizer.json`, `tokenizer_config.json` and others.

The `tokenizers` library reads its own file, but without the special tokens in it: those we cut out ourselves
(see `tokenizer.py`), so that text cannot become one.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tokenizers import AddedToken
from tokenizers import Tokenizer as FastTokenizer

from tiltyard.errors import ModelRejected
from tiltyard.identity.canonical import Digest
from tiltyard.models.vocabulary import (
    LOOKS_LIKE_CONTROL,
    SPACE,
    ControlTokens,
    Vocabulary,
    bytes_of_byte_level,
    bytes_of_sentence_piece,
    end_of_answer,
    missing_bytes,
)

TOKENIZER = "tokenizer.json"
CONFIG = "tokenizer_config.json"
TEMPLATE = "chat_template.jinja"
END_FILES = ("generation_config.json", "config.json")
"""Files whose `eos_token_id` may name more ends than the tokenizer does."""
CONFIG_KEYS = ("add_bos_token", "add_eos_token", "bos_token", "eos_token", "cls_token", "sep_token")
"""What is read of `tokenizer_config.json`, and so belongs to the digest."""
KEEP_LENGTH = ("NFC", "Prepend", "Sequence")
"""Normalizers after which the length of a text still tells the least number of its tokens."""
BLOCKS_FOR_SPACES = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
"""Another one."""
LONE_SURROGATE = re.compile("[\ud800-\udfff]")
MODELS = ("BPE", "Unigram", "WordPiece")
LARGEST_FILE_BYTES = 256 << 20
MOST_TOKENS = 1 << 22
"""Ids are places in a list: a file that names a token two billion would ask for that much memory."""


@dataclass(frozen=True)
class _Added:
    """One entry of `added_tokens`."""

    id: int
    content: str
    special: bool
    single_word: bool
    lstrip: bool
    rstrip: bool
    normalized: bool

    @property
    def is_control(self) -> bool:
        return self.special or LOOKS_LIKE_CONTROL.fullmatch(self.content) is not None


def read_directory(directory: Path, *, vocab_size: int | None = None) -> Vocabulary:
    """Read and check a directory's tokenizer; raises `ModelRejected` for what is damaged or not reproduced."""
    return _Directory(directory, vocab_size).build()


def directory_chat_template(directory: Path) -> str | None:
    """Return the chat template of a directory: `chat_template.jinja`, or the one in `tokenizer_config.json`.

    Of a list of named templates the one called `default`; None where there is none. Raises `ModelRejected`.
    """
    path = directory / TEMPLATE
    if path.exists():
        try:
            return _read(path).decode()
        except UnicodeDecodeError as error:
            raise ModelRejected(f"{path} is not UTF-8: {error}") from error
    template = _object(directory / CONFIG).get("chat_template")
    if isinstance(template, list):
        named = {item.get("name"): item.get("template") for item in template if isinstance(item, dict)}
        template = named.get("default")
    if template is not None and not isinstance(template, str):
        raise ModelRejected(f"{directory / CONFIG}: 'chat_template' must be a string")
    return template


def directory_tokenizer_digest(directory: Path) -> Digest:
    """Name a directory's tokenizer by the bytes of `tokenizer.json` and what else decides ids and ends.

    The chat template, which has a digest of its own, is not part of it.
    """
    config = _object(directory / CONFIG)
    facts = {
        "config": {key: config[key] for key in CONFIG_KEYS if key in config},
        "ends": _end_ids(directory),
    }
    hasher = hashlib.sha256()
    for part in (_read(directory / TOKENIZER), json.dumps(facts, sort_keys=True).encode()):
        hasher.update(len(part).to_bytes(8, "little") + part)
    return "sha256:" + hasher.hexdigest()


class _Directory:
    """The tokenizer files of one directory, parsed."""

    def __init__(self, directory: Path, vocab_size: int | None) -> None:
        self.directory = directory
        self.vocab_size = vocab_size
        self.path = directory / TOKENIZER
        self.file = _object(self.path, required=True)
        self.config = _object(directory / CONFIG)
        self.model = self._part("model")
        self.kind = self.model.get("type", "BPE")
        if self.kind not in MODELS:
            raise ModelRejected(
                f"{self.path}: tokenizer model {self.kind!r} is not supported; supported: {', '.join(MODELS)}"
            )
        # The text models of Gemma 3 share a tokenizer with those that see, and have no row for the image token:
        # such a token does not exist for them.
        self.added = [token for token in self._added_tokens() if vocab_size is None or token.id < vocab_size]

    def build(self) -> Vocabulary:
        control = self._control()
        fast, renumbered = self._fast(self.file)
        tokens, pieces = self._tokens(fast, control)
        ends_named = _end_ids(self.directory)
        if strange := [token_id for token_id in ends_named if token_id >= len(tokens)]:
            raise ModelRejected(
                f"{self.directory}: 'eos_token_id' names token {strange[0]}; the tokenizer has 0 to {len(tokens) - 1}"
            )
        bos_id = self._named_id("bos_token", "cls_token")
        eos_id = self._named_id("eos_token", "sep_token")
        begins, ends = self._post_processor(bos_id, eos_id)
        unknown = self.model.get("unk_token")
        return Vocabulary(
            fast=fast,
            tokens=tokens,
            pieces=pieces,
            control=control,
            stop_ids=end_of_answer(control, eos_id, *ends_named),
            bos_id=bos_id,
            eos_id=eos_id,
            add_bos=self._flag("add_bos_token", begins) and bos_id is not None,
            add_eos=self._flag("add_eos_token", ends) and eos_id is not None,
            digest=directory_tokenizer_digest(self.directory),
            longest=self._longest(tokens, pieces, control),
            dropped=self._dropped(fast),
            shrinks=_has(self.file.get("normalizer"), "NFC"),
            unknown_id=control.ids.get(unknown) if isinstance(unknown, str) else self._unigram_unknown(),
            continuing=self._continuing(),
            renumbered=renumbered,
        )

    # The library's part.

    def _fast(self, file: Mapping[str, object]) -> tuple[FastTokenizer, dict[int, int] | None]:
        """Let the library read its file without special tokens; it may number the other added ones anew."""
        bare = {**file, "added_tokens": [], "post_processor": None, "truncation": None, "padding": None}
        try:
            fast = FastTokenizer.from_str(json.dumps(bare))
        # The library raises a bare Exception for everything that it cannot read.
        except Exception as error:
            raise ModelRejected(f"{self.path} cannot be read: {error}") from error
        ordinary = [token for token in self.added if not token.is_control]
        fast.add_tokens(
            [
                AddedToken(
                    token.content,
                    single_word=token.single_word,
                    lstrip=token.lstrip,
                    rstrip=token.rstrip,
                    normalized=token.normalized,
                    special=False,
                )
                for token in ordinary
            ]
        )
        moved = {
            own: token.id
            for token in ordinary
            if (own := fast.token_to_id(token.content)) is not None and own != token.id
        }
        return fast, moved or None

    def _continuing(self) -> FastTokenizer | None:
        """Make the tokenizer for text behind a control token, where a space goes only in front of the whole."""
        file = self.file
        if any(step.get("prepend_scheme") == "first" for step in _steps(file.get("pre_tokenizer"))):
            return self._fast({**file, "pre_tokenizer": _without_prefix(file.get("pre_tokenizer"))})[0]
        # Special tokens that are looked for after the normalizer has run over the whole text.
        whole = any(token.normalized for token in self.added if token.is_control)
        if whole and _has(file.get("normalizer"), "Prepend"):
            return self._fast({**file, "normalizer": _without_prefix(file.get("normalizer"))})[0]
        return None

    # Tokens.

    def _tokens(self, fast: FastTokenizer, control: ControlTokens) -> tuple[list[str], list[bytes]]:
        vocab_size = self.vocab_size
        spelled = {token_id: token for token, token_id in fast.get_vocab(with_added_tokens=False).items()} | {
            token.id: token.content for token in self.added
        }
        most = max(spelled, default=-1) + 1
        if most > MOST_TOKENS:
            raise ModelRejected(
                f"{self.path} has token id {most - 1:,}; at most {MOST_TOKENS - 1:,} are supported"
            )
        if vocab_size is not None and most > vocab_size:
            raise ModelRejected(
                f"{self.path} has token id {most - 1:,}; the model's output has {vocab_size:,} rows"
            )
        # A gap that nobody named is a row of the matrix that training never saw.
        tokens = [spelled.get(token_id, f"[PAD{token_id}]") for token_id in range(vocab_size or most)]
        decode = self._piece_decoder()
        pieces = [decode(token) if token_id in spelled else b"" for token_id, token in enumerate(tokens)]
        for token in self.added:
            # A block that was added as a token of its own is a space in SentencePiece's alphabet too.
            literal = decode is not bytes_of_sentence_piece
            pieces[token.id] = token.content.encode() if literal else decode(token.content)
        for token_id in control.ids.values():
            pieces[token_id] = b""
        return tokens, pieces

    def _piece_decoder(self) -> Callable[[str], bytes]:
        if self.kind == "WordPiece":
            return _bytes_of_word_piece
        steps = (self.file.get("pre_tokenizer"), self.file.get("decoder"))
        if any(_has(step, "ByteLevel") for step in steps):
            return bytes_of_byte_level
        if self.model.get("byte_fallback") or any(_has(step, "Metaspace") for step in steps):
            return bytes_of_sentence_piece
        raise ModelRejected(
            f"{self.path}: neither byte-level, SentencePiece nor word pieces; tiltyard reads no other kind"
        )

    def _control(self) -> ControlTokens:
        special = [token for token in self.added if token.is_control]
        for token in special:
            if token.single_word:
                raise ModelRejected(
                    f"{self.path}: special token {token.content!r} counts only as a whole word, "
                    "which is not supported"
                )
        return ControlTokens(
            {token.content: token.id for token in special},
            eats_left=frozenset(token.content for token in special if token.lstrip),
            eats_right=frozenset(token.content for token in special if token.rstrip),
        )

    def _longest(self, tokens: Sequence[str], pieces: Sequence[bytes], control: ControlTokens) -> int:
        """Return the most bytes of text that one token stands for, 0 if the normalizer hides it."""
        normalizer = self.file.get("normalizer")
        if self.kind != "BPE" or any(
            step.get("type") not in KEEP_LENGTH and step != BLOCKS_FOR_SPACES for step in _steps(normalizer)
        ):
            return 0
        if any(token.lstrip or token.rstrip for token in self.added):
            return 0
        spelled = (token.encode() for token in (tokens if _has(normalizer, "Replace") else control.ids))
        return max(map(len, (*pieces, *spelled)), default=0)

    def _dropped(self, fast: FastTokenizer) -> bytes:
        if self._piece_decoder() is bytes_of_byte_level:
            return missing_bytes(fast.get_vocab())
        return b""

    # Reading.

    def _added_tokens(self) -> list[_Added]:
        listed = self.file.get("added_tokens") or []
        if not isinstance(listed, list):
            raise ModelRejected(f"{self.path}: 'added_tokens' must be a list")
        added: list[_Added] = []
        for index, item in enumerate(listed):
            token_id = item.get("id") if isinstance(item, dict) else None
            content = item.get("content") if isinstance(item, dict) else None
            if not isinstance(token_id, int) or token_id < 0 or not isinstance(content, str) or not content:
                raise ModelRejected(f"{self.path}: added_tokens[{index:,}] must have an id and a content")
            if LONE_SURROGATE.search(content):
                raise ModelRejected(f"{self.path}: added_tokens[{index:,}] holds half of a surrogate pair")
            flags = {
                name: bool(item.get(name, False))
                for name in ("special", "single_word", "lstrip", "rstrip", "normalized")
            }
            added.append(_Added(token_id, content, **flags))
        if len({token.content for token in added}) != len(added) or len({t.id for t in added}) != len(added):
            raise ModelRejected(f"{self.path}: two entries of 'added_tokens' are the same token")
        return added

    def _named_id(self, *names: str) -> int | None:
        """Return the id of a token that `tokenizer_config.json` names by its text."""
        for name in names:
            value = self.config.get(name)
            text = value.get("content") if isinstance(value, dict) else value
            if text is None:
                continue
            found = next((token.id for token in self.added if token.content == text), None)
            if found is None:
                raise ModelRejected(
                    f"{self.directory / CONFIG}: {name!r} is {text!r}, which is no added token of {TOKENIZER}"
                )
            return found
        return None

    def _post_processor(self, bos_id: int | None, eos_id: int | None) -> tuple[bool, bool]:
        """Return whether the file's template for one text puts BOS in front and EOS behind."""
        ids: list[int | None] = []
        for step in _steps(self.file.get("post_processor")):
            if step.get("type") == "BertProcessing":
                return bos_id is not None, eos_id is not None
            single = step.get("single")
            if step.get("type") == "TemplateProcessing" and isinstance(single, list):
                by_content = {token.content: token.id for token in self.added}
                for part in single:
                    special = part.get("SpecialToken") if isinstance(part, dict) else None
                    ids.append(by_content.get(special["id"]) if special else None)
        begins = bool(ids) and bos_id is not None and ids[0] == bos_id
        return begins, bool(ids) and eos_id is not None and ids[-1] == eos_id

    def _unigram_unknown(self) -> int | None:
        unknown = self.model.get("unk_id")
        return unknown if isinstance(unknown, int) else None

    def _flag(self, name: str, default: bool) -> bool:
        value = self.config.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise ModelRejected(f"{self.directory / CONFIG}: {name!r} is {value!r}; expected true or false")
        return value

    def _part(self, name: str) -> dict[str, object]:
        value = self.file.get(name)
        if not isinstance(value, dict):
            raise ModelRejected(f"{self.path}: {name!r} must be an object")
        return value


def _bytes_of_word_piece(token: str) -> bytes:
    return token.removeprefix("##").encode() if token.startswith("##") else b" " + token.encode()


# `tokenizer.json` nests its steps: {"type": "Sequence", "normalizers": [{"type": "NFC"}, ...]}.

LISTS = ("normalizers", "pretokenizers", "processors", "decoders")


def _steps(step: object) -> list[dict[str, object]]:
    """Return a step and the steps inside it, however deep."""
    if not isinstance(step, dict):
        return []
    inside = [item for name in LISTS if isinstance(items := step.get(name), list) for item in items]
    return [step, *(found for item in inside for found in _steps(item))]


def _kinds(step: object) -> list[object]:
    return [found.get("type") for found in _steps(step)]


def _has(step: object, kind: str) -> bool:
    return kind in _kinds(step)


def _without_prefix(step: object) -> object:
    """Copy a step so that it puts nothing in front of a text."""
    if isinstance(step, list):
        return [_without_prefix(item) for item in step]
    if not isinstance(step, dict):
        return step
    if step.get("type") == "Prepend":
        return {"type": "Sequence", "normalizers": []}
    copy = {key: _without_prefix(value) for key, value in step.items()}
    return copy | {"prepend_scheme": "never"} if "prepend_scheme" in copy else copy


def _end_ids(directory: Path) -> list[int]:
    ends: set[int] = set()
    for name in END_FILES:
        named = _object(directory / name).get("eos_token_id")
        for token_id in named if isinstance(named, list) else [] if named is None else [named]:
            if isinstance(token_id, bool) or not isinstance(token_id, int) or token_id < 0:
                raise ModelRejected(
                    f"{directory / name}: 'eos_token_id' is {named!r:.100}; expected a token id or a list of them"
                )
            ends.add(token_id)
    return sorted(ends)


def _object(path: Path, *, required: bool = False) -> dict[str, object]:
    """Read a JSON object; an empty one where a file that may be absent is absent."""
    if not required and not path.exists():
        return {}
    try:
        value = json.loads(_read(path))
    except (ValueError, RecursionError) as error:
        raise ModelRejected(f"{path} is no valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise ModelRejected(f"{path} must hold a JSON object")
    return value


def _read(path: Path) -> bytes:
    try:
        size = path.stat().st_size
        if size > LARGEST_FILE_BYTES:
            raise ModelRejected(
                f"{path} has {size:,} bytes; the most for such a file is {LARGEST_FILE_BYTES:,}"
            )
        return path.read_bytes()
    except OSError as error:
        raise ModelRejected(f"{path} cannot be read: {error.strerror}") from error
