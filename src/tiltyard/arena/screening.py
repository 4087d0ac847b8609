"""What is done with personal data in a message before anything is written or a model sees it.

The arena does not know how personal data is found (`governance/redaction.py` does): it is given something that makes one
`Screen` for each battle, so that a placeholder means the same person over all its turns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from tiltyard.events.schema import DataPolicy


class Screened(Protocol):
    """A message after the policy."""

    @property
    def text(self) -> str:
        """What is written and asked."""

    @property
    def counts(self) -> Mapping[str, int]:
        """How much of each kind was found."""


Screen = Callable[[str], Screened]
"""Screens the messages of one battle in their order; raises `InvalidRequest` where the policy refuses."""


@dataclass(frozen=True)
class AsItIs:
    """A message that nobody looked into."""

    text: str
    counts: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Screening:
    """A deployment's policy."""

    policy: DataPolicy = "keep"
    new: Callable[[], Screen] = lambda: AsItIs
    """Makes the screen of one battle."""
