"""How a leaderboard is to be computed, as a value: which votes, which weights, which ties, what is controlled.

`rate` turns votes and options into ratings. The options are part of the method's name, which is part of a
leaderboard's digest: two boards of other options are never one board.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from tiltyard.errors import InvalidRequest
from tiltyard.identity.canonical import Json
from tiltyard.identity.manifest import Frozen
from tiltyard.rating import davidson
from tiltyard.rating.bootstrap import bootstrap
from tiltyard.rating.bradley_terry import METHOD, Ratings, fit
from tiltyard.rating.counts import BothBad, PairCounts
from tiltyard.rating.slices import Condition, Period, rolling, where
from tiltyard.rating.style import SPEED, STYLE, differences, left_side
from tiltyard.rating.vote_fit import VoteFit, fit_votes
from tiltyard.rating.votes import Votes
from tiltyard.rating.weights import inverse_probability, pair_balance, recency, to_mean_one, voter_cap

Ties: TypeAlias = Literal["half", "davidson"]

GROUPS: Final[Mapping[str, tuple[str, ...]]] = {"style": STYLE, "speed": SPEED}
"""Short names for several covariates."""
LEFT_SIDE: Final = "left_side"
_DECIMALS: Final = 6


@dataclass(frozen=True)
class Weight:
    """One factor of a vote's weight: `inverse-probability`, `pair-balance`, `half-life=30d` or `voter-cap=50`."""

    name: str
    number: int = 0

    @classmethod
    def parse(cls, text: str) -> Weight:
        """Read a weight; raises `InvalidRequest` naming `weight`.

        >>> Weight.parse("half-life=30d")
        Weight(name='half-life', number=30)
        """
        if text in ("inverse-probability", "pair-balance"):
            return cls(text)
        found = re.fullmatch(r"(half-life)=([1-9][0-9]{0,4})d|(voter-cap)=([1-9][0-9]{0,8})", text)
        if found is None:
            raise InvalidRequest(
                f"{text[:60]!r} is no weight; it may be inverse-probability, pair-balance, half-life=30d or "
                "voter-cap=50 (any whole number).",
                param="weight",
            )
        return cls(found[1] or found[3], int(found[2] or found[4]))

    def __str__(self) -> str:
        return {"half-life": f"half-life={self.number}d", "voter-cap": f"voter-cap={self.number}"}.get(
            self.name, self.name
        )

    def of(self, votes: Votes, now_us: int) -> NDArray[np.float64]:
        """Return the factors; shape `(votes,)`."""
        if self.name == "inverse-probability":
            return inverse_probability(votes)
        if self.name == "pair-balance":
            return pair_balance(votes)
        if self.name == "half-life":
            return recency(votes, half_life_days=self.number, now_us=now_us)
        return voter_cap(votes, self.number)


MOST_SEED: Final = 2**31 - 1


@dataclass(frozen=True)
class RatingOptions:
    """Everything that decides ratings besides the votes; the default is the page's."""

    both_bad: BothBad = "tie"
    ties: Ties = "half"
    anchor: tuple[str, float] | None = None
    confidence: float = 0.95
    conditions: tuple[Condition, ...] = ()
    weights: tuple[Weight, ...] = ()
    by_voter: bool = False
    controls: tuple[str, ...] = ()
    """Names of covariates: `left_side`, or any `n` for which the votes have the traits `n_a` and `n_b`."""
    ridge: float = 0.0
    bootstrap: int = 0
    """Resamples for bootstrap intervals beside the sandwich ones; 0 is none."""
    seed: int = 0
    """Of the resamples."""

    def __post_init__(self) -> None:
        """Refuse numbers that no event could hold; raises `InvalidRequest` naming `ridge` or `seed`."""
        if not (math.isfinite(self.ridge) and self.ridge >= 0):
            raise InvalidRequest(f"ridge is {self.ridge}; it is a number from 0.", param="ridge")
        if not 0 <= self.seed <= MOST_SEED:
            raise InvalidRequest(
                f"seed is {self.seed}; it is a whole number from 0 to {MOST_SEED:,}.", param="seed"
            )

    def to_json(self) -> dict[str, Json]:
        """Write the options as they go into an event; `from_json` reads them."""
        return {
            "both_bad": self.both_bad,
            "ties": self.ties,
            "anchor": list(self.anchor) if self.anchor else None,
            "confidence": self.confidence,
            "where": [str(condition) for condition in self.conditions],
            "weights": [str(weight) for weight in self.weights],
            "by_voter": self.by_voter,
            "controls": list(self.controls),
            "ridge": self.ridge,
            "bootstrap": self.bootstrap,
            "seed": self.seed,
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Json]) -> RatingOptions:
        """Read what `to_json` wrote; raises `InvalidRequest` naming the first option that is none.

        >>> RatingOptions.from_json(RatingOptions(by_voter=True).to_json()) == RatingOptions(by_voter=True)
        True
        """
        try:
            given = _WrittenOptions.model_validate(document)
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False)[0]
            name = ".".join(str(part) for part in first["loc"])
            raise InvalidRequest(f"the options cannot be read: {name}: {first['msg']}", param=name) from error
        return cls(
            both_bad=given.both_bad,
            ties=given.ties,
            anchor=given.anchor,
            confidence=given.confidence,
            conditions=tuple(map(Condition.parse, given.where)),
            weights=tuple(map(Weight.parse, given.weights)),
            by_voter=given.by_voter,
            controls=given.controls,
            ridge=given.ridge,
            bootstrap=given.bootstrap,
            seed=given.seed,
        )

    @property
    def depends_on_time(self) -> bool:
        """Whether the ratings change when only time passes."""
        return any(weight.name == "half-life" for weight in self.weights)

    @property
    def single_votes(self) -> bool:
        """Whether pair counts are not enough."""
        return bool(self.weights or self.by_voter or self.controls)

    @property
    def method(self) -> str:
        """Names the method with its options."""
        parts = [davidson.METHOD if self.ties == "davidson" else METHOD]
        parts += [str(weight) for weight in self.weights]
        parts += ["by-voter"] if self.by_voter else []
        if self.controls:
            ridge = f"; ridge {self.ridge:g}" if self.ridge else ""
            parts.append(f"control({', '.join(expanded(self.controls))}{ridge})")
        parts += [f"where {condition}" for condition in self.conditions]
        return " + ".join(parts)


class _WrittenOptions(Frozen):
    both_bad: BothBad
    ties: Ties
    anchor: tuple[str, float] | None
    confidence: float
    where: tuple[str, ...]
    weights: tuple[str, ...]
    by_voter: bool
    controls: tuple[str, ...]
    ridge: float
    bootstrap: int
    seed: int


class Rated(NamedTuple):
    """What `rate` found."""

    counts: PairCounts
    ratings: Ratings
    details: dict[str, Json]
    """Coefficients, tie strength, effective votes and voters, as far as the options gave them."""
    tie_strength: float = 0.0
    """Davidson's nu, as `win_matrix` takes it; 0 with ties as half wins."""


def anchor_of(text: str) -> tuple[str, float]:
    """Read `MODEL=POINTS`; raises `InvalidRequest` naming `anchor`."""
    name, _, points = text.rpartition("=")
    try:
        number = float(points)
    except ValueError:
        number = math.nan
    if not name or not math.isfinite(number):
        raise InvalidRequest(
            f"the anchor is {text[:80]!r}; write MODEL=POINTS, such as mixtral-8x7b-instruct-v0.1=1114.",
            param="anchor",
        )
    return name, number


def expanded(controls: tuple[str, ...]) -> tuple[str, ...]:
    """Write `style` and `speed` out; each name once.

    >>> expanded(("speed", "left_side"))
    ('time_to_first_token', 'tokens_per_second', 'left_side')
    """
    return tuple(dict.fromkeys(name for given in controls for name in GROUPS.get(given, (given,))))


def rate(votes: Votes, options: RatingOptions, *, now_us: int, minimum_votes: int = 1) -> Rated:
    """Rate the votes as `options` say; `now_us` is the moment at which a vote's age is taken.

    The mean of the models with `minimum_votes` is held (`Ratings.about`): those that a board ranks.

    Raises `InvalidRequest` naming the option that the votes cannot serve. Davidson's ties take pair counts
    only: with weights, voters or controls they are refused (param `ties`).
    """
    chosen = where(votes, options.conditions)
    details: dict[str, Json] = {}
    tie_strength = 0.0
    if options.ties == "davidson":
        if options.single_votes:
            raise InvalidRequest(
                "ties='davidson' is fitted to pair counts, without weights, voters or controls; leave those "
                "out, or use ties='half'.",
                param="ties",
            )
        tied = davidson.fit_davidson(
            chosen.counts, both_bad=options.both_bad, anchor=options.anchor, confidence=options.confidence
        )
        bounds = (tied.tie_strength, tied.tie_strength_lower, tied.tie_strength_upper)
        details["tie_strength"] = [round(value, _DECIMALS) for value in bounds]
        ratings, tie_strength = tied.ratings, tied.tie_strength
    elif options.single_votes:
        fitted = _fit_single(chosen, options, now_us)
        details |= _details(fitted)
        ratings = fitted.ratings
    else:
        ratings = fit(
            chosen.counts, both_bad=options.both_bad, anchor=options.anchor, confidence=options.confidence
        )
    if options.bootstrap:
        details["bootstrap"] = _bootstrap(chosen.counts, ratings.about(minimum_votes), options, minimum_votes)
    named = _named(ratings.about(minimum_votes), options.method)
    return Rated(chosen.counts, named, details, tie_strength)


def rate_over_time(
    votes: Votes, options: RatingOptions, *, days: int = 30, step_days: int = 1, minimum_votes: int = 1
) -> Iterator[tuple[Period, Rated]]:
    """Rate each rolling window of the votes alone (`slices.rolling`); ages are taken at its end."""
    chosen = where(votes, options.conditions)
    for period in rolling(chosen, days=days, step_days=step_days):
        part = period.of(chosen)
        if len(part):
            yield period, rate(part, options, now_us=period.end_us, minimum_votes=minimum_votes)


def covariates_of(votes: Votes, controls: tuple[str, ...]) -> dict[str, NDArray[np.float64]]:
    """Make the covariates that `controls` name; raises `InvalidRequest` naming `control` and the missing columns."""
    covariates: dict[str, NDArray[np.float64]] = {}
    for name in expanded(controls):
        if name == LEFT_SIDE:
            covariates |= left_side(len(votes))
            continue
        sides = [votes.traits.get(f"{name}_{side}") for side in "ab"]
        a, b = sides
        if a is None or b is None or a.dtype.kind != "f" or b.dtype.kind != "f":
            raise InvalidRequest(
                f"to control {name} each vote needs the numbers {name}_a and {name}_b; these votes have "
                f"{', '.join(sorted(votes.traits)) or 'no such columns'}.",
                param="control",
            )
        covariates |= differences({name: (a, b)})
    return covariates


def _fit_single(votes: Votes, options: RatingOptions, now_us: int) -> VoteFit:
    weights = None
    if options.weights:
        weights = np.ones(len(votes))
        for weight in options.weights:
            weights = weights * weight.of(votes, now_us)
        weights = to_mean_one(weights)
    return fit_votes(
        votes,
        weights=weights,
        by_voter=options.by_voter,
        covariates=covariates_of(votes, options.controls),
        ridge=options.ridge,
        both_bad=options.both_bad,
        anchor=options.anchor,
        confidence=options.confidence,
    )


def _bootstrap(counts: PairCounts, ratings: Ratings, options: RatingOptions, minimum_votes: int) -> Json:
    """Bounds of each model; moved by the anchor as its rating was."""
    if options.ties == "davidson" or options.single_votes:
        raise InvalidRequest(
            "bootstrap refits pair counts with ties as half wins; leave out weights, by_voter, controls and "
            "Davidson's ties, whose intervals are sandwich intervals.",
            param="bootstrap",
        )
    drawn = bootstrap(
        counts,
        seed=options.seed,
        resamples=options.bootstrap,
        both_bad=options.both_bad,
        confidence=options.confidence,
        about=ratings,
        minimum_votes=minimum_votes,
    )
    free = fit(counts, both_bad=options.both_bad).about(minimum_votes).ratings
    moved = ratings.ratings - free  # by the anchor; nothing where there is none
    bounds: dict[str, Json] = {
        model: [round(float(value), 3) for value in (low, middle, high)]
        for model, low, middle, high in zip(
            drawn.models, drawn.lower + moved, drawn.median + moved, drawn.upper + moved, strict=True
        )
        if np.isfinite(middle)
    }
    return {
        "seed": drawn.seed,
        "resamples": drawn.resamples,
        "completed": drawn.completed,
        "converged": drawn.converged,
        "bounds": bounds,
    }


def _named(ratings: Ratings, method: str) -> Ratings:
    return ratings if ratings.method == method else replace(ratings, method=method)


def _details(fitted: VoteFit) -> dict[str, Json]:
    details: dict[str, Json] = {"effective_votes": round(fitted.effective_votes, 3)}
    if fitted.voters is not None:
        details["voters"] = fitted.voters
    if fitted.effects:
        details["effects"] = [
            {
                "name": effect.name,
                "coefficient": round(effect.coefficient, _DECIMALS),
                "lower": round(effect.lower, _DECIMALS),
                "upper": round(effect.upper, _DECIMALS),
                "deviation": round(effect.deviation, _DECIMALS),
                "points": round(effect.points, 3),
            }
            for effect in fitted.effects
        ]
    return details
