"""What a release does: stages, traffic, gates, limits; the shape of `plan.yaml`, with its published JSON schema."""

from __future__ import annotations

import re
from typing import Annotated, Literal, TypeAlias

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    ValidationInfo,
    field_validator,
    model_validator,
)

from tiltyard.arena.slices import SliceName
from tiltyard.judge.rubric import shipped_rubrics
from tiltyard.rating.language import LANGUAGES

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_DURATION = re.compile(r"(\d{1,6}(?:\.\d{1,3})?)([smhd])")


def seconds(value: object) -> object:
    """Read `30m`, `24h`, `90s`, `7d`; a number is seconds already.

    >>> seconds("30m"), seconds(90)
    (1800.0, 90)
    """
    if isinstance(value, bool):
        raise ValueError("yes and no are no durations; write 30m")
    if not isinstance(value, str):
        return value
    if (match := _DURATION.fullmatch(value.strip())) is None:
        raise ValueError(f"{value[:40]!r} is no duration; write a number and s, m, h or d, such as 30m")
    return float(match[1]) * _UNITS[match[2]]


def share(value: object) -> object:
    """Read `5%`; a number is a share already.

    >>> share("5%"), share(0.05)
    (0.05, 0.05)
    """
    if isinstance(value, bool):
        raise ValueError("yes and no are no shares; write 5% or 0.05")
    if isinstance(value, str) and value.strip().endswith("%"):
        try:
            return round(float(value.strip()[:-1]) / 100, 12)
        except ValueError:
            raise ValueError(f"{value[:40]!r} is no share; write 5% or 0.05") from None
    return value


_TEXT: dict[str, JsonValue] = {
    "anyOf": [{"type": "number"}, {"type": "string", "pattern": "^[0-9.]+[smhd]$"}]
}
_PERCENT: dict[str, JsonValue] = {
    "anyOf": [{"type": "number"}, {"type": "string", "pattern": "^[0-9.]+ ?%$"}]
}
Seconds: TypeAlias = Annotated[
    float, BeforeValidator(seconds), Field(gt=0, le=90 * 86_400, json_schema_extra=_TEXT)
]
MOST_SAMPLES = 1_000_000_000
Share: TypeAlias = Annotated[float, BeforeValidator(share), Field(ge=0, le=1, json_schema_extra=_PERCENT)]

RATES = ("error_rate", "truncation_rate", "cancelled_rate", "refusal_rate")
QUANTILES = (
    "time_to_first_token_p50",
    "time_to_first_token_p99",
    "per_token_p50",
    "per_token_p99",
    "total_p99",
)
MEANS = ("output_tokens", "cost")
WINS = ("human_win_rate", "judge_win_rate", "reward_win_rate", "expert_win_rate")
SCORES = ("fixed_set",)
Metric: TypeAlias = Literal[
    "error_rate",
    "truncation_rate",
    "cancelled_rate",
    "refusal_rate",
    "time_to_first_token_p50",
    "time_to_first_token_p99",
    "per_token_p50",
    "per_token_p99",
    "total_p99",
    "output_tokens",
    "cost",
    "human_win_rate",
    "judge_win_rate",
    "reward_win_rate",
    "expert_win_rate",
    "fixed_set",
]


class Part(BaseModel):
    """Frozen; a field that is not known is refused by name."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Slice(Part):
    """Which generations a gate looks at; all that is said must hold."""

    tenant: str | None = None
    service_class: Literal["interactive", "agent", "batch"] | None = None
    prompt_tokens_at_least: int | None = Field(default=None, ge=0, le=MOST_SAMPLES, strict=True)
    prompt_tokens_below: int | None = Field(default=None, ge=1, le=MOST_SAMPLES, strict=True)
    writing: SliceName | None = None
    """Writing of the prompt."""
    language: str | None = Field(default=None, json_schema_extra={"enum": [None, *sorted(LANGUAGES)]})
    """Language of the prompt, as the leaderboard tells it: `en`, `de`, `zh-Hant`, … ; `zh` is all Chinese, `und` where nobody can tell."""

    @model_validator(mode="after")
    def _can_have_samples(self) -> Slice:
        if self.language is not None and self.language not in LANGUAGES:
            raise ValueError(
                f"language {self.language[:20]!r} is never told from a prompt; those that are: {', '.join(sorted(LANGUAGES))}"
            )
        least, below = self.prompt_tokens_at_least, self.prompt_tokens_below
        if least is not None and below is not None and least >= below:
            raise ValueError(f"no prompt has at least {least:,} and fewer than {below:,} tokens")
        return self

    @property
    def needs_words(self) -> bool:
        """Whether the words of a prompt say if it is in it."""
        return self.writing is not None or self.language is not None

    def __str__(self) -> str:
        said = self.model_dump(exclude_none=True)
        return ", ".join(f"{name} {value}" for name, value in said.items())


class Gate(Part):
    """One condition: the candidate is at most `worse_by` worse than the other arm, or within `limit`."""

    metric: Metric
    worse_by: Share | None = None
    """Points of a rate or win rate; a share of the other arm's value for times, tokens and cost."""
    limit: Annotated[float, BeforeValidator(share)] | None = None
    """Of the candidate alone, in the metric's own unit (a share, milliseconds, tokens)."""
    slice: Slice = Slice()
    minimum: int | None = Field(default=None, ge=1, le=MOST_SAMPLES, strict=True)
    """Samples before it may pass; the stage's where left out."""
    set: str | None = None
    """For `fixed_set`: name of the set."""
    scorer: str | None = None
    """For `reward_win_rate`: name or digest of the scorer; scores of two scorers never meet."""

    @model_validator(mode="after")
    def _is_one_condition(self) -> Gate:
        if (self.worse_by is None) == (self.limit is None):
            raise ValueError("a gate needs worse_by or limit, and not both")
        if self.worse_by == 0:
            raise ValueError(
                "worse_by is 0: no number of samples shows that a candidate is not worse at all; allow something"
            )
        if self.limit is not None and self.metric in RATES and not 0 <= self.limit < 1:
            raise ValueError(f"limit is {self.limit:g}; {self.metric} is a share: write 5% or 0.05")
        if self.limit is not None and self.limit < 0:
            raise ValueError(f"limit is {self.limit:g}; {self.metric} is never below 0")
        if self.limit is not None and self.metric in (*WINS, *MEANS):
            raise ValueError(f"{self.metric} compares two identities; write worse_by")
        if (self.set is not None) != (self.metric == "fixed_set"):
            raise ValueError("set names the set of metric fixed_set; they need each other")
        if (self.scorer is not None) != (self.metric == "reward_win_rate"):
            raise ValueError("scorer names the scorer of metric reward_win_rate; they need each other")
        return self

    @property
    def name(self) -> str:
        """What reports call it.

        >>> Gate(metric="error_rate", worse_by=0.01).name
        'error_rate worse_by 0.01'
        """
        bound = f"worse_by {self.worse_by:g}" if self.worse_by is not None else f"limit {self.limit:g}"
        said = str(self.slice)
        of = self.set or self.scorer
        return f"{self.metric}{' ' + of if of else ''} {bound}{' [' + said + ']' if said else ''}"


class _Stage(Part):
    gates: tuple[Gate, ...] = Field(min_length=1)
    minimum: int = Field(default=100, ge=1, le=MOST_SAMPLES, strict=True)
    """Samples before a gate may pass."""
    maximum: Seconds = 7 * 86_400.0
    """How long it may take."""
    inconclusive: Literal["hold", "rollback"] = "hold"
    """What happens when it has taken that long: wait for a person, or go back; never on."""
    approval: bool = False
    """Whether a person must approve it after its gates have passed."""

    @model_validator(mode="after")
    def _gates_are_told_apart(self) -> _Stage:
        names = [gate.name for gate in self.gates]
        if len(set(names)) != len(names):
            raise ValueError("two gates are the same")
        return self


class EvalsStage(_Stage):
    """Fixed sets that were run on both identities, item by item."""

    stage: Literal["evals"]

    @model_validator(mode="after")
    def _asks_what_it_can_know(self) -> EvalsStage:
        for gate in self.gates:
            if gate.metric not in (*SCORES, *WINS) or gate.metric == "human_win_rate":
                raise ValueError(f"{gate.metric} has no data in stage evals: nobody is served there")
        return self


class ShadowStage(_Stage):
    """Copies of production's requests, compared in pairs; no user sees an answer."""

    stage: Literal["shadow"]
    share: Share = 0.1
    """Of the requests."""

    @model_validator(mode="after")
    def _is_seen_by_nobody(self) -> ShadowStage:
        if self.share == 0:
            raise ValueError("share is 0: nothing is ever copied, and no gate can decide; write such as 20%")
        if any(gate.metric == "human_win_rate" for gate in self.gates):
            raise ValueError("human_win_rate has no data in stage shadow: nobody sees its answers")
        return self

    judge: str | None = Field(default=None, min_length=1)
    """Who judges the pairs, for `judge_win_rate`: the name of a model that this tiltyard serves."""
    rubric: str = "pairwise-brief"
    """Under which of our rubrics for pairs; `tiltyard judge rubrics` lists them."""

    @model_validator(mode="after")
    def _can_be_judged(self) -> ShadowStage:
        fit = [one.name for one in shipped_rubrics() if one.mode == "pairwise" and not one.needs_reference]
        if self.rubric not in fit:
            raise ValueError(
                f"rubric {self.rubric[:40]!r} is none of ours for pairs without a reference: {', '.join(fit)}"
            )
        return self


class Rule(Part):
    """Requests that go to one arm whatever the weights."""

    arm: Literal["candidate", "production"]
    tenant: str | None = None
    channel: str | None = None

    @model_validator(mode="after")
    def _says_something(self) -> Rule:
        if self.tenant is None and self.channel is None:
            raise ValueError("a rule needs tenant or channel")
        return self


class CanaryStage(_Stage):
    """A part of the users gets the candidate; as many others are the baseline to compare with."""

    stage: Literal["canary"]
    traffic: Share
    """The candidate's share of the requests."""
    baseline: bool = True
    """Whether as many requests, answered by production, are set apart to compare with; else all of production's are."""
    rules: tuple[Rule, ...] = ()

    @model_validator(mode="after")
    def _leaves_room(self) -> CanaryStage:
        by_rule = any(rule.arm == "candidate" for rule in self.rules)
        if self.traffic == 0 and not (by_rule and not self.baseline):
            raise ValueError(
                "traffic is 0: nobody gets the candidate, and no gate can ever decide; write such as 5%, "
                "or a rule that sends a tenant or channel to the candidate and baseline: false"
            )
        if self.baseline and self.traffic > 0.5:
            raise ValueError(
                f"traffic is {self.traffic:g}; a baseline as large needs at most 0.5, or baseline: false"
            )
        return self


class PreferenceStage(_Stage):
    """People's votes in blind battles between the two identities, beside as much traffic as is said."""

    stage: Literal["preference"]
    traffic: Share | None = None
    """The candidate's share of the requests; left out: that of the stage before it, if users had the candidate there."""


class PromoteStage(Part):
    """Everybody gets the candidate; while it waits for approval, the share of the stage before it stays."""

    stage: Literal["promote"]
    approval: bool = False


Stage: TypeAlias = Annotated[
    EvalsStage | ShadowStage | CanaryStage | PreferenceStage | PromoteStage, Field(discriminator="stage")
]


class HardStop(Part):
    """When the candidate fails so badly that nothing is waited for, not even a person."""

    error_rate: Share = 0.5
    minimum: int = Field(default=5, ge=1, le=MOST_SAMPLES, strict=True)
    """Failed requests."""
    window: Seconds = 60.0


class Prices(Part):
    """For a million tokens; only the ratio of two costs is looked at."""

    prompt: float = Field(default=1.0, ge=0, le=1e9)
    output: float = Field(default=1.0, ge=0, le=1e9)


class Plan(Part):
    """The whole of `plan.yaml`."""

    alias: str = Field(min_length=1)
    """The public model name."""
    candidate: str = Field(min_length=1)
    """The identity of `tiltyard.toml` that shall answer to it."""
    why: str = ""
    error: float = Field(default=0.05, ge=1e-6, lt=0.5)
    """The chance that an equal candidate is stopped, all gates together; and the same that a worse one passes a gate."""
    hard_stop: HardStop = HardStop()
    prices: Prices = Prices()
    stages: tuple[Stage, ...] = Field(min_length=1)

    @field_validator("stages")
    @classmethod
    def _end_with_promotion(cls, stages: tuple[Stage, ...]) -> tuple[Stage, ...]:
        kinds = [stage.stage for stage in stages]
        if kinds.count("promote") != 1 or kinds[-1] != "promote":
            raise ValueError("stages must end with the one promote stage")
        return stages

    @field_validator("stages")
    @classmethod
    def _can_have_data(cls, stages: tuple[Stage, ...]) -> tuple[Stage, ...]:
        served = False  # whether users have the candidate in the stage that is looked at
        for number, stage in enumerate(stages, 1):
            if not isinstance(stage, PreferenceStage):
                served = isinstance(stage, CanaryStage)
                continue
            served = served if stage.traffic is None else stage.traffic > 0
            ours = [gate.metric for gate in stage.gates if gate.metric not in (*WINS, *SCORES)]
            if ours and not served:
                raise ValueError(
                    f"{ours[0]} has no data in stage {number}, preference without traffic: nobody is served there; "
                    "give it traffic, such as 5%, or a canary stage before it"
                )
        return stages

    @field_validator("stages")
    @classmethod
    def _judges_are_apart(cls, stages: tuple[Stage, ...], known: ValidationInfo) -> tuple[Stage, ...]:
        sides = [known.data.get("alias"), known.data.get("candidate")]
        for stage in stages:
            if isinstance(stage, ShadowStage) and stage.judge is not None and stage.judge in sides:
                raise ValueError(
                    f"judge is {stage.judge}, which is what is released; name a model that is no side of it"
                )
        return stages

    @property
    def alpha(self) -> float:
        """Error of each gate: the plan's, shared between all of them."""
        gates = sum(len(stage.gates) for stage in self.stages if not isinstance(stage, PromoteStage))
        return self.error / max(1, gates)


def plan_schema() -> dict[str, JsonValue]:
    """The JSON schema of `plan.yaml`."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **Plan.model_json_schema(),
        "title": "tiltyard release plan",
    }
