"""What a step of the engine costs, fitted to what steps were measured to cost.

::

    seconds = per_step * steps + per_prompt_token * p + per_answer_token * a + per_context_token * c

`p` and `a` are the rows that ran for prompts and for answers, `c` the positions before each row, added up: a prompt of n tokens has
n(n - 1)/2 of them, so the term is bilinear in tokens and context, as attention is. Each coefficient is at least 0. An observation
may be one step or all steps of a phase of an answer, since the formula is linear.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from tiltyard.errors import InvalidRequest
from tiltyard.identity.canonical import Json

FEWEST = 12
"""Observations below which nothing is fitted."""


class Work(NamedTuple):
    """What ran in one step or in several."""

    steps: float
    prompt_tokens: float
    answer_tokens: float
    context_tokens: float


class Observed(NamedTuple):
    """Work and the seconds that it took."""

    work: Work
    seconds: float


@dataclass(frozen=True, slots=True)
class StepCosts:
    """Seconds of a step, by what runs in it.

    >>> round(StepCosts(0.004, 0.001, 0.001, 0).of(Work(1, 16, 2, 0)), 6)
    0.022
    """

    per_step: float
    per_prompt_token: float
    per_answer_token: float
    per_context_token: float

    def of(self, work: Work) -> float:
        """Seconds for so much work."""
        return (
            self.per_step * work.steps
            + self.per_prompt_token * work.prompt_tokens
            + self.per_answer_token * work.answer_tokens
            + self.per_context_token * work.context_tokens
        )


@dataclass(frozen=True, slots=True)
class StepFit:
    """Fitted costs and how far they are off."""

    costs: StepCosts
    observations: int
    residual: float
    """Median of |predicted - measured| / measured."""
    residual_p90: float
    bias: float
    """(Sum of predicted - sum of measured) / sum of measured."""

    def told(self) -> dict[str, Json]:
        """As JSON."""
        return {**asdict(self), "costs": asdict(self.costs)}

    @classmethod
    def read(cls, told: object) -> Self:
        """From what `told` gave; raises `InvalidRequest` naming the field that is missing or wrong."""
        if not isinstance(told, dict):
            raise InvalidRequest(
                "a step model is a JSON object; make one with `tiltyard plan calibrate`", param="steps"
            )
        costs = told.get("costs")
        if not isinstance(costs, dict):
            raise InvalidRequest(
                "the step model has no costs; make one with `tiltyard plan calibrate`", param="costs"
            )
        return cls(
            StepCosts(
                *(
                    _number(costs, name)
                    for name in ("per_step", "per_prompt_token", "per_answer_token", "per_context_token")
                )
            ),
            int(_number(told, "observations")),
            _number(told, "residual"),
            _number(told, "residual_p90"),
            _number(told, "bias", least=-1.0),
        )


def _number(told: dict[str, object], name: str, least: float = 0.0) -> float:
    value = told.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value < float("inf"):
        raise InvalidRequest(
            f"{name} of the step model is {value!r}; it must be a number of at least {least:g}", param=name
        )
    return float(value)


def fit_steps(observed: Sequence[Observed]) -> StepFit:
    """Fit the four coefficients; raises `InvalidRequest` for too few observations.

    Least squares weighted by 1/seconds (the noise of n steps grows as √n), under the condition that no coefficient is negative:
    of all subsets of terms, the best one whose own least squares has none (exact, since there are 15).
    """
    usable = [one for one in observed if one.seconds > 0 and one.work.steps > 0]
    if len(usable) < FEWEST:
        raise InvalidRequest(
            f"{len(usable)} observations of steps are too few to fit their cost; at least {FEWEST} are needed. "
            "Serve some traffic first, or run `tiltyard plan calibrate`.",
            param="trace",
        )
    work = np.array([one.work for one in usable], np.float64)
    seconds = np.array([one.seconds for one in usable], np.float64)
    coefficients = _least_squares(work, seconds, 1 / np.sqrt(seconds))
    off = work @ coefficients - seconds
    relative = np.abs(off) / seconds
    return StepFit(
        StepCosts(*(float(value) for value in coefficients)),
        len(usable),
        float(np.median(relative)),
        float(np.quantile(relative, 0.9)),
        float(off.sum() / seconds.sum()),
    )


def _least_squares(
    work: NDArray[np.float64], seconds: NDArray[np.float64], weights: NDArray[np.float64]
) -> NDArray[np.float64]:
    scale = work.max(axis=0)
    scale[scale == 0] = 1.0
    rows, wanted = work / scale * weights[:, None], seconds * weights
    best, least = np.zeros(work.shape[1]), float("inf")
    for size in range(1, work.shape[1] + 1):
        for terms in itertools.combinations(range(work.shape[1]), size):
            found, *_ = np.linalg.lstsq(rows[:, terms], wanted, rcond=None)
            if (found < 0).any():
                continue
            error = float(((rows[:, terms] @ found - wanted) ** 2).sum())
            if error < least:
                least, best = error, np.zeros(work.shape[1])
                best[list(terms)] = found
    return np.asarray(best / scale, np.float64)
