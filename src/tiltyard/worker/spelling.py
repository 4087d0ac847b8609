"""What a token adds to an answer's text, and which control tokens are shown by their names."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol


class TokenSpelling(Protocol):
    """What an answer needs of the tokenizer."""

    @property
    def control_tokens(self) -> Mapping[str, int]:
        """Control tokens by their names."""

    def token_bytes(self, token_id: int) -> bytes:
        """The UTF-8 bytes that a token stands for; not always whole characters, and none for control tokens."""


class SpelledOut:
    """A spelling that shows control tokens by their names, for `skip_special_tokens: false`."""

    def __init__(self, spelling: TokenSpelling) -> None:
        self.control_tokens = spelling.control_tokens
        self._names = {token: name.encode() for name, token in spelling.control_tokens.items()}
        self._spelling = spelling

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that a reader of the raw stream sees."""
        name = self._names.get(token_id)
        return self._spelling.token_bytes(token_id) if name is None else name


class MarksShown:
    """A spelling that shows the control tokens of some names: those that begin and end calls of tools."""

    def __init__(self, spelling: TokenSpelling, marks: Collection[str]) -> None:
        self.control_tokens = spelling.control_tokens
        self._shown = {
            token: name.encode() for name, token in spelling.control_tokens.items() if name in marks
        }
        self._spelling = spelling

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that a parser of calls sees."""
        name = self._shown.get(token_id)
        return self._spelling.token_bytes(token_id) if name is None else name
