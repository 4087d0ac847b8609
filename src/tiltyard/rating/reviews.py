"""What people decided about single votes and voters after looking at them; a ruleset is applied with these in hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

Decision: TypeAlias = Literal["keep", "exclude"]


@dataclass(frozen=True)
class Reviews:
    """The decisions in force; one about a vote comes before one about its voter."""

    votes: Mapping[str, Decision] = field(default_factory=dict)
    """By battle id."""
    voters: Mapping[str, Decision] = field(default_factory=dict)
    """By pseudonymous voter id."""

    def of(self, battle: str, voter: str) -> Decision | None:
        """Return what was decided about a vote; `None` where nobody decided."""
        return self.votes.get(battle) or self.voters.get(voter)
