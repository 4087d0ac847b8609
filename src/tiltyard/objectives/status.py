"""How one objective stands at one moment: what `tiltyard objectives`, its API, the metrics and the Operations page show.

Rates follow chapter 5 of the Site Reliability Workbook (Beyer et al., 2018, "Alerting on SLOs"): the *error budget* is the share of bad
events that the target allows, `1 - target`; the *burn rate* of a stretch is its share of bad events over that budget; 1 spends it in exactly
the objective's window.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from tiltyard.identity.canonical import Json

State: TypeAlias = Literal["no data", "ok", "ticket", "page"]
STATES: Final[tuple[State, ...]] = ("no data", "ok", "ticket", "page")
"""From the least to the most urgent; `no data` is never `ok`."""

Reason: TypeAlias = Literal[
    "kept", "nothing_seen", "nothing_lately", "too_few", "burning", "budget_spent", "evidence", "not_zero"
]
"""Why an objective is in its state; `REASONS` has the words."""

REASONS: Final[dict[Reason, str]] = {
    "kept": "kept",
    "nothing_seen": "nothing was seen in its window",
    "nothing_lately": "nothing was seen in the last hour",
    "too_few": "too few were seen to say",
    "burning": "the error budget burns too fast",
    "budget_spent": "the error budget of the window is spent",
    "evidence": "draws do not follow the recorded probabilities",
    "not_zero": "this must never happen and did",
}


@dataclass(frozen=True)
class Counts:
    """Events of a stretch of time; of `availability`, seconds."""

    total: float = 0.0
    bad: float = 0.0

    @property
    def bad_share(self) -> float | None:
        """Share of bad ones; `None` where nothing was seen."""
        return self.bad / self.total if self.total > 0 else None

    def __add__(self, other: Counts) -> Counts:
        return Counts(self.total + other.total, self.bad + other.bad)


@dataclass(frozen=True)
class Burn:
    """One alert: it fires when the budget burns faster than `factor` over both of its windows."""

    severity: Literal["page", "ticket"]
    long: str
    """Long window in words: `1h`, `6h`, `3d`."""
    short: str
    """Short window: `5m`, `30m`, `6h`; ends the alert soon after the cause is gone."""
    factor: float
    """Burn rate above which it fires."""
    long_rate: float | None
    """`None`: nothing was seen in it."""
    short_rate: float | None
    long_total: float
    """What was counted in the long window."""
    short_total: float
    fires: bool

    def to_json(self) -> dict[str, Json]:
        """Return it as the API shows it."""
        return {
            "severity": self.severity,
            "long": self.long,
            "short": self.short,
            "factor": _rounded(self.factor),
            "long_rate": _rounded(self.long_rate),
            "short_rate": _rounded(self.short_rate),
            "long_total": _rounded(self.long_total),
            "short_total": _rounded(self.short_total),
            "fires": self.fires,
        }


@dataclass(frozen=True)
class ObjectiveStatus:
    """One objective."""

    name: str
    kind: str
    """One of `KINDS` (`objectives/declaration.py`)."""
    target: float | None
    """Share that shall be good; `None` for `pair_assignment`, `reveal_before_vote` and `data_lag`, which have no budget."""
    window_days: float
    threshold_ms: float | None
    """Of latencies: up to here is good."""
    slice: dict[str, str]
    """What it is restricted to: `alias`, `tenant`, `class`, `identity`, …; empty: everything."""
    state: State
    reason: Reason
    unit: str
    """What is counted: `requests`, `answers`, `seconds`, `votes`, `battles`, `judgments`."""
    counts: Counts
    """In the whole window."""
    budget_left: float | None
    """Share of the error budget that is left: 1 nothing spent, 0 spent, below 0 overspent; `None` without data or budget."""
    burns: tuple[Burn, ...] = ()
    """Most urgent first; empty where there is no budget."""
    value: float | None = None
    """Where there is no budget: the evidence of `pair_assignment`, the number of `reveal_before_vote` and `data_lag`."""
    do: str = ""
    """What helps, in English; empty where nothing is wrong."""

    @property
    def good_share(self) -> float | None:
        """Share of good ones in the whole window."""
        share = self.counts.bad_share
        return None if share is None else 1.0 - share

    def to_json(self) -> dict[str, Json]:
        """Return it as the API shows it."""
        return {
            "name": self.name,
            "kind": self.kind,
            "target": self.target,
            "window_days": self.window_days,
            "threshold_ms": self.threshold_ms,
            "slice": dict(self.slice),
            "state": self.state,
            "reason": self.reason,
            "says": REASONS[self.reason],
            "do": self.do,
            "unit": self.unit,
            "total": _rounded(self.counts.total),
            "bad": _rounded(self.counts.bad),
            "good_share": _rounded(self.good_share),
            "budget_left": _rounded(self.budget_left),
            "burns": [burn.to_json() for burn in self.burns],
            "value": _rounded(self.value),
        }


@dataclass(frozen=True)
class ObjectivesReport:
    """All objectives at one moment. `Objectives(log, settings).look(now_us)` (`objectives/look.py`) makes it; it blocks."""

    at_us: int
    through: int
    """Sequence of the last event that was read: who recomputes it up to there gets the same."""
    objectives: tuple[ObjectiveStatus, ...]

    @property
    def state(self) -> State:
        """The most urgent of all."""
        return max((one.state for one in self.objectives), key=STATES.index, default="no data")

    def to_json(self) -> dict[str, Json]:
        """Return it as the API shows it."""
        return {
            "at_us": self.at_us,
            "through": self.through,
            "state": self.state,
            "objectives": [one.to_json() for one in self.objectives],
        }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 6)
