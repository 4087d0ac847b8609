"""Everything in a text that names or unlocks a person, without overlaps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from tiltyard.governance.accounts import ACCOUNT_RULES
from tiltyard.governance.contact import CONTACT_RULES, ipv4, phones
from tiltyard.governance.credentials import SECRET_RULES
from tiltyard.governance.finding import Finding, Kind
from tiltyard.governance.folding import fold
from tiltyard.governance.national_ids import NATIONAL_ID_RULES

NameFinder = Callable[[str], Iterable[Finding]]
"""Finds names of people, by a model that somebody installed."""

_STRENGTH: Final[tuple[Kind, ...]] = (
    "SECRET",
    "URL_CREDENTIALS",
    "IBAN",
    "EMAIL",
    "CARD",
    "NATIONAL_ID",
    "IP_ADDRESS",
    "MAC_ADDRESS",
    "PHONE",
    "PERSON",
)
"""Of two findings that overlap the one of the kind that comes first here stands; of one kind the longer."""


def find(text: str, *, names: NameFinder | None = None) -> tuple[Finding, ...]:
    """Return what is found, from left to right.

    >>> [(f.kind, f.rule) for f in find("mail me at ann@example.com, card 4111 1111 1111 1111")]
    [('EMAIL', 'email'), ('CARD', 'card')]
    """
    folded = fold(text)
    found = [
        *(Finding(one.kind, one.rule, *folded.origin(one.start, one.end)) for one in _all(folded.text)),
        *(names(text) if names else ()),
    ]
    found.sort(key=lambda f: (_STRENGTH.index(f.kind), f.start - f.end, f.start))
    kept: list[Finding] = []
    for one in found:
        if all(one.end <= other.start or other.end <= one.start for other in kept):
            kept.append(one)
    return tuple(sorted(kept, key=lambda f: f.start))


def _all(text: str) -> Iterator[Finding]:
    for rule in (*SECRET_RULES, *ACCOUNT_RULES, *CONTACT_RULES, *NATIONAL_ID_RULES):
        yield from rule.find(text)
    yield from ipv4(text)
    yield from phones(text)
