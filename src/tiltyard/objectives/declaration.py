"""`[objectives.NAME]`: what is promised, and the objectives that hold where nobody said anything.

Those of the settings file come on top of the defaults; one of the same name replaces it, `enabled = false` takes it away.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Literal, NamedTuple

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from tiltyard.identity.manifest import Frozen, Number, Whole
from tiltyard.objectives.burning import LEAST_DAYS, RULES

Kind = Literal[
    "time_to_first_token",
    "time_per_output_token",
    "error_rate",
    "availability",
    "vote_write",
    "pair_assignment",
    "reveal_before_vote",
    "data_lag",
    "judge_parse_failures",
]

MOST_DAYS: Final = 90


class KindOf(NamedTuple):
    """What can be said of a kind."""

    unit: str
    """What is counted."""
    slices: frozenset[str] = frozenset()
    """Keys of `slice` that it knows."""
    threshold: bool = False
    """Whether it needs `threshold_ms`."""
    budget: bool = True
    """Whether some may be bad: it needs a `target`."""


_REQUESTS: Final = frozenset(
    {"alias", "identity", "tenant", "service_class", "prompt_tokens_at_least", "prompt_tokens_below"}
)
KINDS: Final[Mapping[Kind, KindOf]] = MappingProxyType(
    {
        "time_to_first_token": KindOf("requests", _REQUESTS, threshold=True),
        "time_per_output_token": KindOf("answers", _REQUESTS, threshold=True),
        "error_rate": KindOf("requests", _REQUESTS),
        "availability": KindOf("seconds", frozenset({"identity"})),
        "vote_write": KindOf("votes"),
        "pair_assignment": KindOf("battles", budget=False),
        "reveal_before_vote": KindOf("reveals", budget=False),
        "data_lag": KindOf("votes", budget=False),
        "judge_parse_failures": KindOf("judgments"),
    }
)


class ObjectiveSlice(Frozen):
    """`slice`: which requests; all that is said must hold."""

    alias: str | None = Field(default=None, min_length=1)
    identity: str | None = Field(default=None, min_length=1)
    tenant: str | None = Field(default=None, min_length=1)
    service_class: Literal["interactive", "agent", "batch"] | None = None
    prompt_tokens_at_least: Whole | None = Field(default=None, ge=0)
    prompt_tokens_below: Whole | None = Field(default=None, ge=1)

    @property
    def said(self) -> dict[str, str | int]:
        """What it is restricted to."""
        return self.model_dump(exclude_none=True)


class ObjectiveSettings(Frozen):
    """`[objectives.NAME]`."""

    kind: Kind
    enabled: bool = Field(default=True, strict=True)
    target: Number | None = Field(default=None, gt=0, lt=1)
    """Share that shall be good."""
    window_days: Number = Field(default=30, ge=LEAST_DAYS, le=MOST_DAYS)
    threshold_ms: Number | None = Field(default=None, gt=0)
    """Up to here a latency is good."""
    minimum: Whole = Field(default=20, ge=1)
    """With fewer in the longer window of an alert it does not fire, and the state is `no data`."""
    slice: ObjectiveSlice = ObjectiveSlice()

    @model_validator(mode="after")
    def fits_its_kind(self) -> ObjectiveSettings:
        """What a kind needs is there, and what it does not know is not."""
        kind = KINDS[self.kind]
        if kind.budget and self.target is None:
            raise _wrong(f"kind {self.kind} needs a target, such as target = 0.99")
        if not kind.budget and self.target is not None:
            raise _wrong(f"kind {self.kind} has no target: leave it out")
        if kind.threshold and self.threshold_ms is None:
            raise _wrong(f"kind {self.kind} needs threshold_ms, up to which a latency is good")
        if not kind.threshold and self.threshold_ms is not None:
            raise _wrong(f"kind {self.kind} is no latency: leave threshold_ms out")
        if unknown := sorted(set(self.slice.said) - kind.slices):
            known = ", ".join(sorted(kind.slices)) or "none"
            raise _wrong(f"kind {self.kind} cannot be sliced by {unknown[0]}; by: {known}")
        slowest = min(rule.factor for rule in RULES if rule.severity == "page")
        if self.target is not None and 1 / (1 - self.target) <= slowest:
            raise _wrong(
                f"with target {self.target:g} the error budget burns at most {1 / (1 - self.target):.3g} times too fast, and nothing "
                f"pages below {slowest:g} times; choose a target above {1 - 1 / slowest:.4g}"
            )
        return self

    @property
    def window_minutes(self) -> int:
        """The window in whole minutes."""
        return round(self.window_days * 1440)


def _wrong(what: str) -> PydanticCustomError:
    return PydanticCustomError("inconsistent", "{what}", {"what": what})


DEFAULTS: Final[Mapping[str, ObjectiveSettings]] = MappingProxyType(
    {
        # two seconds are how long a person waits for a sign of life without thinking of something else
        "first-token": ObjectiveSettings(
            kind="time_to_first_token",
            target=0.95,
            threshold_ms=2000,
            slice=ObjectiveSlice(service_class="interactive"),
        ),
        # people read about five tokens a second; a slower answer makes them wait for each word
        "token-time": ObjectiveSettings(
            kind="time_per_output_token",
            target=0.95,
            threshold_ms=200,
            slice=ObjectiveSlice(service_class="interactive"),
        ),
        "errors": ObjectiveSettings(kind="error_rate", target=0.99),
        "availability": ObjectiveSettings(kind="availability", target=0.99),
        "vote-write": ObjectiveSettings(kind="vote_write", target=0.999),
        "pair-assignment": ObjectiveSettings(kind="pair_assignment"),
        "reveal-before-vote": ObjectiveSettings(kind="reveal_before_vote"),
        "data-lag": ObjectiveSettings(kind="data_lag"),
        "judge-parsing": ObjectiveSettings(kind="judge_parse_failures", target=0.95),
    }
)
"""What holds without a word in `tiltyard.toml`."""


def in_force(said: Mapping[str, ObjectiveSettings]) -> dict[str, ObjectiveSettings]:
    """The defaults and what the settings file says, without those that it takes away."""
    return {name: one for name, one in ({**DEFAULTS, **said}).items() if one.enabled}
