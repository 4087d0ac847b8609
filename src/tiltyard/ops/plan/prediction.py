"""What a simulation says, in the figures of the load generator."""

from __future__ import annotations

from array import array
from collections import Counter
from dataclasses import asdict, dataclass, field

from tiltyard.identity.canonical import Json
from tiltyard.ops.load.samples import Objectives, Spread


@dataclass(frozen=True, slots=True)
class Prediction:
    """One fleet under one traffic; times are seconds."""

    replicas: int
    requests: int
    answered: int
    errors: dict[str, int]
    window_s: float
    """From the first arrival to the last end."""
    time_to_first_s: Spread
    per_token_s: Spread
    total_s: Spread
    prompt_tokens: int
    answer_tokens: int
    cached_tokens: int
    requests_per_s: float
    answer_tokens_per_s: float
    met: int
    goodput_per_s: float
    utilisation: float
    """Share of the window in which a replica had a step under way, the mean over replicas."""
    preemptions: int
    steps: int

    @property
    def attained(self) -> float:
        """Share of the requests that met the objectives; who was refused did not."""
        return self.met / self.requests if self.requests else 0.0

    def told(self) -> dict[str, Json]:
        """As JSON."""
        return {**asdict(self), "attained": self.attained}


@dataclass
class Tally:
    """Adds up what becomes of requests."""

    objectives: Objectives
    from_s: float = float("-inf")
    """Requests that arrive before this do not count."""
    first_s: array[float] = field(default_factory=lambda: array("d"))
    each_s: array[float] = field(default_factory=lambda: array("d"))
    total_s: array[float] = field(default_factory=lambda: array("d"))
    errors: Counter[str] = field(default_factory=Counter)
    begins_s: float = float("inf")
    ends_s: float = 0.0
    prompt_tokens: int = 0
    answer_tokens: int = 0
    met: int = 0

    def failed(self, kind: str, arrived_s: float, at_s: float) -> None:
        """A request got no answer."""
        if arrived_s < self.from_s:
            return
        self.begins_s = min(self.begins_s, arrived_s)
        self.errors[kind] += 1
        self.ends_s = max(self.ends_s, at_s)

    def answered(self, arrived_s: float, first_s: float, end_s: float, prompt: int, answer: int) -> None:
        """A request got its whole answer."""
        if arrived_s < self.from_s:
            return
        self.begins_s = min(self.begins_s, arrived_s)
        first, wanted = first_s - arrived_s, self.objectives
        self.first_s.append(first)
        self.total_s.append(end_s - arrived_s)
        each = None
        if answer > 1:
            each = (end_s - first_s) / (answer - 1)
            self.each_s.append(each)
        self.prompt_tokens += prompt
        self.answer_tokens += answer
        self.ends_s = max(self.ends_s, end_s)
        self.met += (wanted.time_to_first_s is None or first <= wanted.time_to_first_s) and (
            wanted.per_token_s is None or each is None or each <= wanted.per_token_s
        )

    def prediction(
        self, *, replicas: int, busy_s: float, cached_tokens: int, preemptions: int, steps: int
    ) -> Prediction:
        """All of them together."""
        window = max(0.0, self.ends_s - self.begins_s) if self.first_s or self.errors else 0.0
        answered = len(self.first_s)

        def rate(count: int) -> float:
            return count / window if window else 0.0

        return Prediction(
            replicas=replicas,
            requests=answered + self.errors.total(),
            answered=answered,
            errors=dict(sorted(self.errors.items())),
            window_s=window,
            time_to_first_s=Spread.of(self.first_s),
            per_token_s=Spread.of(self.each_s),
            total_s=Spread.of(self.total_s),
            prompt_tokens=self.prompt_tokens,
            answer_tokens=self.answer_tokens,
            cached_tokens=cached_tokens,
            requests_per_s=rate(answered),
            answer_tokens_per_s=rate(self.answer_tokens),
            met=self.met,
            goodput_per_s=rate(self.met),
            utilisation=busy_s / (replicas * window) if window else 0.0,
            preemptions=preemptions,
            steps=steps,
        )
