"""Replacing what names a person by placeholders that say what stood there, the same for the same within a conversation."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol

from tiltyard.errors import InvalidRequest
from tiltyard.governance.finding import Finding, Kind
from tiltyard.governance.personal_data import NameFinder, find

Policy = Literal["redact", "refuse", "tag"]
"""`redact`: placeholders. `refuse`: an error. `tag`: the text stays, what was found is said."""


class Search(Protocol):
    """What `find` does."""

    def __call__(self, text: str, *, names: NameFinder | None = None) -> tuple[Finding, ...]:
        """Return what is found, from left to right."""


PLACEHOLDER: Final = re.compile(
    r"\[(?:EMAIL|PHONE|CARD|IBAN|NATIONAL_ID|IP_ADDRESS|MAC_ADDRESS|URL_CREDENTIALS|SECRET|PERSON)_[0-9]{1,9}\]"
)
"""What a redacted text may already hold; it is left as it is."""


@dataclass(frozen=True)
class Redacted:
    """A text after a policy, and what was found in the one before."""

    text: str
    findings: tuple[Finding, ...]

    @property
    def counts(self) -> dict[str, int]:
        """How many of each kind: all that may be written down of what was there."""
        return dict(Counter(f.kind for f in self.findings))


@dataclass
class Redactor:
    """Redacts the texts of one conversation.

    >>> one = Redactor()
    >>> one("I am ann@example.com, he is bob@example.com.").text
    'I am [EMAIL_1], he is [EMAIL_2].'
    >>> one("Write to ANN@example.com!").text
    'Write to [EMAIL_1]!'
    """

    policy: Policy = "redact"
    names: NameFinder | None = None
    search: Search = find
    """Finds everything; whoever redacts one text a thousand times brings one that remembers."""
    _numbers: dict[tuple[Kind, str], int] = field(default_factory=dict, init=False, repr=False)
    _last: Counter[Kind] = field(default_factory=Counter, init=False, repr=False)

    def __call__(self, text: str) -> Redacted:
        """Apply the policy; raises `InvalidRequest` naming the kinds, never the words, where the policy is `refuse`."""
        for taken in PLACEHOLDER.findall(text):
            kind, _, number = taken[1:-1].rpartition("_")
            self._last[kind] = max(self._last[kind], int(number))
        findings = self.search(text, names=self.names)
        if findings and self.policy == "refuse":
            kinds = ", ".join(sorted({f.kind.lower().replace("_", " ") for f in findings}))
            raise InvalidRequest(
                f"The message holds what may name or unlock a person: {kinds}. Take it out and send it again.",
                param="messages",
            )
        if self.policy != "redact":
            return Redacted(text, findings)
        parts, at = [], 0
        for one in findings:
            parts += [text[at : one.start], self._placeholder(one.kind, text[one.start : one.end])]
            at = one.end
        return Redacted("".join([*parts, text[at:]]), findings)

    def _placeholder(self, kind: Kind, words: str) -> str:
        same = (kind, _sameness(kind, words))
        if same not in self._numbers:
            self._last[kind] += 1
            self._numbers[same] = self._last[kind]
        return f"[{kind}_{self._numbers[same]}]"


def _sameness(kind: Kind, words: str) -> str:
    """Two ways of writing the same e-mail address, number or card get one placeholder; secrets must be equal."""
    if kind in ("SECRET", "URL_CREDENTIALS"):
        return words
    if kind in ("PHONE", "CARD", "IBAN", "NATIONAL_ID"):
        return re.sub(r"[^0-9a-z+]", "", words.casefold())
    return words.casefold()
