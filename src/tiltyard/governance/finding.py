"""A place in a text that names or unlocks a person, and a rule that finds such places."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal

Kind = Literal[
    "EMAIL",
    "PHONE",
    "CARD",
    "IBAN",
    "NATIONAL_ID",
    "IP_ADDRESS",
    "MAC_ADDRESS",
    "URL_CREDENTIALS",
    "SECRET",
    "PERSON",
]
"""What a finding is; the placeholder's name."""

CONTEXT_BEFORE = 48
CONTEXT_AFTER = 16
"""Characters around a finding in which a word may say what it is."""


@dataclass(frozen=True)
class Finding:
    """`text[start:end]` is of this kind; `rule` names the format, such as `us-ssn`."""

    kind: Kind
    rule: str
    start: int
    end: int


@dataclass(frozen=True)
class Rule:
    """A format: a pattern, a check of what it matched, and, where digits alone would say too little, words nearby.

    The finding is group `it` of the pattern where it has one, else the whole match.
    """

    name: str
    kind: Kind
    pattern: re.Pattern[str]
    check: Callable[[str], bool] = field(default=lambda _: True)
    words: re.Pattern[str] | None = None
    """One of these must stand near; `None`: the format speaks for itself."""

    def find(self, text: str) -> Iterator[Finding]:
        """Yield what this rule finds, from left to right."""
        for match in self.pattern.finditer(text):
            group: str | int = "it" if "it" in self.pattern.groupindex else 0
            start, end = match.span(group)
            if self.check(text[start:end]) and (self.words is None or near(self.words, text, start, end)):
                yield Finding(self.kind, self.name, start, end)


def near(words: re.Pattern[str], text: str, start: int, end: int) -> bool:
    """Does one of `words` stand shortly before `text[start:end]`, or right behind it?"""
    return (
        words.search(text, max(0, start - CONTEXT_BEFORE), start) is not None
        or words.search(text, end, min(len(text), end + CONTEXT_AFTER)) is not None
    )


def words(*alternatives: str) -> re.Pattern[str]:
    """A pattern of words in any case; those of the Latin alphabet match whole words only.

    >>> bool(words("ssn", "身分證").search("my SSN is")), bool(words("ssn").search("lessness"))
    (True, False)
    """
    latin = [re.escape(w) for w in alternatives if w.isascii()]
    others = [re.escape(w) for w in alternatives if not w.isascii()]
    parts = ([rf"(?<![a-z])(?:{'|'.join(latin)})(?![a-z])"] if latin else []) + others
    return re.compile("|".join(parts), re.IGNORECASE)
