"""What was measured of one request, and what many of them say together.

All times are seconds of one clock, from the beginning of the run. A latency counts from the moment at which the request was
*meant* to be sent: where the generator or the server falls behind, those who would have had to wait are not left out
(coordinated omission). How far the generator itself fell behind is said beside it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tiltyard.errors import InvalidRequest
from tiltyard.rating.shares import quantile

INTERRUPTED = "interrupted"
"""The kind of a request that was under way when the run was stopped: no fault of the server, and no success."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One request."""

    intended_s: float
    """When it was meant to be sent."""
    sent_s: float
    """When it was."""
    first_s: float | None = None
    """When the first token came; `None`: none came."""
    last_s: float | None = None
    """When the last one came."""
    prompt_tokens: int = 0
    """As the server counted them, or as many as were asked for where it does not say."""
    answer_tokens: int = 0
    """As the server counted them, or as many pieces as came."""
    cached_tokens: int | None = None
    """Prompt tokens that the server had in its cache, where it says so."""
    error: str = ""
    """The kind of failure; empty: it was answered whole."""
    session: str = ""
    """Whose turn it is, in a conversation."""
    turn: int = 0
    """From 0."""
    answer_id: str = ""
    """What the server calls its answer; a tiltyard's log has it under this name."""
    pieces: tuple[float, ...] = ()
    """When each piece of the answer came."""

    @property
    def ok(self) -> bool:
        """Whether it was answered whole."""
        return not self.error and self.first_s is not None

    @property
    def time_to_first_s(self) -> float | None:
        """From the moment at which it was meant to be sent to the first token."""
        return None if self.first_s is None else self.first_s - self.intended_s

    @property
    def per_token_s(self) -> float | None:
        """Mean time of a token after the first; `None` for an answer of one."""
        if self.first_s is None or self.last_s is None or self.answer_tokens < 2:
            return None
        return (self.last_s - self.first_s) / (self.answer_tokens - 1)

    @property
    def total_s(self) -> float | None:
        """From the moment at which it was meant to be sent to the last token."""
        return None if self.last_s is None else self.last_s - self.intended_s


@dataclass(frozen=True, slots=True)
class Objectives:
    """What a user can put up with; `None`: nothing is asked of it."""

    time_to_first_s: float | None = None
    per_token_s: float | None = None

    def met(self, sample: Sample) -> bool:
        """Whether a request was answered whole and in time."""
        if not sample.ok:
            return False
        first, each = sample.time_to_first_s, sample.per_token_s
        return (self.time_to_first_s is None or (first is not None and first <= self.time_to_first_s)) and (
            self.per_token_s is None or each is None or each <= self.per_token_s
        )


@dataclass(frozen=True, slots=True)
class Spread:
    """How values are spread; `None` where there are none."""

    mean: float | None
    p50: float | None
    p90: float | None
    p99: float | None
    most: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Of any number of values."""
        mean = math.fsum(values) / len(values) if values else None
        return cls(mean, *(quantile(values, share) for share in (0.5, 0.9, 0.99, 1.0)))


@dataclass(frozen=True)
class Summary:
    """What a run says, its warm-up left out."""

    requests: int
    """Measured ones, failed ones included."""
    warmup: int
    """Requests that were sent first and do not count."""
    answered: int
    errors: Mapping[str, int]
    """By kind; interrupted ones are `interrupted`."""
    window_s: float
    """From when the first measured request was meant to be sent until the last one ended."""
    time_to_first_s: Spread
    per_token_s: Spread
    between_pieces_s: Spread
    """Gaps between pieces of the same answer: where streaming stalls."""
    total_s: Spread
    behind_s: Spread
    """How late the generator itself sent: where this is not small beside the latencies, they are partly its own."""
    prompt_tokens: int
    answer_tokens: int
    """Of answered requests."""
    cached_tokens: int | None
    requests_per_s: float
    answer_tokens_per_s: float
    all_tokens_per_s: float
    """Prompts and answers."""
    met: int
    """Requests that met the objectives."""
    goodput_per_s: float
    """Those a second."""
    objectives: Objectives = field(default_factory=Objectives)

    @property
    def attained(self) -> float | None:
        """Share of the measured requests that met the objectives, interrupted ones aside; `None` of none."""
        counted = self.requests - self.errors.get(INTERRUPTED, 0)
        return self.met / counted if counted else None


def measured(samples: Sequence[Sample], warmup: int) -> list[Sample]:
    """All but the `warmup` that were meant to be sent first, in the order in which they were meant to be sent."""
    return sorted(samples, key=lambda s: (s.intended_s, s.sent_s))[warmup:]


def summarize(samples: Sequence[Sample], *, warmup: int = 0, objectives: Objectives | None = None) -> Summary:
    """Reduce samples, in any order; the `warmup` that were meant to be sent first do not count.

    A rate is over the window from the first measured request's intended time to the last one's end.
    Raises `InvalidRequest` for a negative warm-up.
    """
    if warmup < 0:
        raise InvalidRequest(f"a warm-up of {warmup} requests is no warm-up; say 0 or more", param="warmup")
    wanted = objectives or Objectives()
    counted = measured(samples, warmup)
    good = [s for s in counted if s.ok]
    ends = [s.sent_s if s.last_s is None else s.last_s for s in counted]
    window = max(ends) - counted[0].intended_s if counted else 0.0
    cached = [s.cached_tokens for s in good if s.cached_tokens is not None]
    prompt, answer = sum(s.prompt_tokens for s in good), sum(s.answer_tokens for s in good)
    met = sum(map(wanted.met, counted))

    def rate(count: int) -> float:
        return count / window if window > 0 else 0.0

    return Summary(
        requests=len(counted),
        warmup=len(samples) - len(counted),
        answered=len(good),
        errors=dict(sorted(Counter(s.error for s in counted if not s.ok).items())),
        window_s=window,
        time_to_first_s=Spread.of([t for s in good if (t := s.time_to_first_s) is not None]),
        per_token_s=Spread.of([t for s in good if (t := s.per_token_s) is not None]),
        between_pieces_s=Spread.of(
            [after - before for s in good for before, after in zip(s.pieces, s.pieces[1:], strict=False)]
        ),
        total_s=Spread.of([t for s in good if (t := s.total_s) is not None]),
        behind_s=Spread.of([s.sent_s - s.intended_s for s in counted]),
        prompt_tokens=prompt,
        answer_tokens=answer,
        cached_tokens=sum(cached) if cached else None,
        requests_per_s=rate(len(good)),
        answer_tokens_per_s=rate(answer),
        all_tokens_per_s=rate(prompt + answer),
        met=met,
        goodput_per_s=rate(met),
        objectives=wanted,
    )
