"""Which votes count: from rows of the event log to pair counts, with a reason for each vote left out.

The first ruleset lets every vote in that compares two behaviours. Votes attach to behaviour digests, since
that is what people judged; a vote left out stays in the log.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

from tiltyard.errors import InvalidRequest
from tiltyard.rating.counts import PairCounts
from tiltyard.rating.outcomes import EVENT_LABELS

RULESET: Final = "every-vote/1"
"""Changes whenever another set of votes would be let in."""

MICROSECONDS_PER_DAY: Final = 86_400_000_000


class VoteLike(Protocol):
    """What is needed of a vote; `EventLog.votes()` gives such rows."""

    @property
    def sequence(self) -> int:
        """Position in the log."""

    @property
    def time_us(self) -> int:
        """Microseconds since 1970, UTC."""

    @property
    def choice(self) -> str:
        """`a`, `b`, `tie` or `both_bad`."""

    @property
    def behaviour_a(self) -> str:
        """Behaviour digest of side a."""

    @property
    def behaviour_b(self) -> str:
        """Behaviour digest of side b."""


@dataclass(frozen=True)
class Window:
    """The last so many days, half-open: `[now - days, now)` in UTC; `None` means all time."""

    days: int | None = None

    @classmethod
    def parse(cls, text: str) -> Window:
        """Read `all` or `<days>d`, such as `30d`; raises `InvalidRequest` naming `window`."""
        if text == "all":
            return cls(None)
        if re.fullmatch(r"[1-9][0-9]{0,3}d", text):
            return cls(int(text[:-1]))
        raise InvalidRequest(
            f"window is {text!r}; it may be 'all', or 1 to 9999 days such as '30d'.", param="window"
        )

    def __str__(self) -> str:
        return "all" if self.days is None else f"{self.days}d"

    def holds(self, time_us: int, now_us: int) -> bool:
        """Say whether a moment lies in the window that ends at `now_us`."""
        return self.days is None or now_us - self.days * MICROSECONDS_PER_DAY <= time_us < now_us


@dataclass(frozen=True)
class Admitted:
    """Votes that count, added up, and what was left out."""

    counts: PairCounts
    """By behaviour digest."""
    first_sequence: int
    """Log position of the first vote that counts; 0 without votes."""
    last_sequence: int
    last_time_us: int
    """When the latest of them was cast; 0 without votes."""
    excluded: Mapping[str, int]
    """Votes left out by the ruleset, by reason; votes outside the window are not among them."""
    ruleset: str = RULESET


Admissible = TypeVar("Admissible", bound=VoteLike)


def admissible(votes: Iterable[Admissible]) -> list[Admissible]:
    """Keep the votes that the ruleset lets in."""
    return [vote for vote in votes if vote.behaviour_a != vote.behaviour_b]


def admit(votes: Iterable[VoteLike], *, window: Window, now_us: int) -> Admitted:
    """Add up the votes that the ruleset and the window let in; `now_us` is the end of the window.

    Raises `InvalidRequest` when a vote says something that is no outcome.
    """
    kept = [vote for vote in votes if window.holds(vote.time_us, now_us)]
    counted = admissible(kept)
    excluded = {}
    if len(counted) < len(kept):
        excluded["same_behaviour_on_both_sides"] = len(kept) - len(counted)
    sequences = [vote.sequence for vote in counted]
    return Admitted(
        counts=PairCounts.from_votes(
            [vote.behaviour_a for vote in counted],
            [vote.behaviour_b for vote in counted],
            [vote.choice for vote in counted],
            vocabulary=EVENT_LABELS,
        ),
        first_sequence=min(sequences, default=0),
        last_sequence=max(sequences, default=0),
        last_time_us=max((vote.time_us for vote in counted), default=0),
        excluded=excluded,
    )
