"""What was spent in a stretch of the log: what `tiltyard cost`, its API and the Operations page show.

Seconds are always there; money only where a price is set. Where none is, `unpriced` names the setting to fill in.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tiltyard.identity.canonical import Json

PricedBy = Literal["hour", "tokens", "nothing"]


@dataclass(frozen=True)
class CostLine:
    """Requests of one class to one model on one kind of hardware."""

    service_class: str
    """`interactive`, `agent` or `batch`."""
    identity: str
    hardware: str
    """As the deployment manifest names it."""
    priced_by: PricedBy
    """Hours of the worker, tokens, or nothing: no price is set, and all amounts are `None`."""
    requests: int
    prompt_tokens: int
    cached_tokens: int
    """Of them, those that the prefix cache had."""
    completion_tokens: int
    prefill_s: float
    """Engine seconds attributed to reading prompts (`costs/attribution.py`)."""
    decode_s: float
    """Engine seconds attributed to writing answers."""
    untimed: int
    """Requests of which the engine told no times: they have tokens and no seconds."""
    prefill_amount: float | None
    decode_amount: float | None
    saved_s: float | None
    """What the cached tokens would have taken at the pace of those that were computed; `None`: no pace is known."""
    saved_amount: float | None

    @property
    def amount(self) -> float | None:
        """Prefill and decode together."""
        if self.prefill_amount is None or self.decode_amount is None:
            return None
        return self.prefill_amount + self.decode_amount

    @property
    def prefill_million(self) -> float | None:
        """Cost of a million prompt tokens, those from the cache not counted; `None` without a price or a token."""
        return _per_million(self.prefill_amount, self.prompt_tokens - self.cached_tokens)

    @property
    def decode_million(self) -> float | None:
        """Cost of a million answered tokens."""
        return _per_million(self.decode_amount, self.completion_tokens)

    @property
    def prefill_s_million(self) -> float | None:
        """Engine seconds of a million prompt tokens, those from the cache not counted."""
        return _per_million(self.prefill_s, self.prompt_tokens - self.cached_tokens)

    @property
    def decode_s_million(self) -> float | None:
        """Engine seconds of a million answered tokens."""
        return _per_million(self.decode_s, self.completion_tokens)

    def to_json(self) -> dict[str, Json]:
        """Return it as the API shows it."""
        return {
            "service_class": self.service_class,
            "identity": self.identity,
            "hardware": self.hardware,
            "priced_by": self.priced_by,
            "requests": self.requests,
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens,
            "completion_tokens": self.completion_tokens,
            "prefill_s": _rounded(self.prefill_s),
            "decode_s": _rounded(self.decode_s),
            "untimed": self.untimed,
            "prefill_amount": _rounded(self.prefill_amount),
            "decode_amount": _rounded(self.decode_amount),
            "amount": _rounded(self.amount),
            "prefill_million": _rounded(self.prefill_million),
            "decode_million": _rounded(self.decode_million),
            "prefill_s_million": _rounded(self.prefill_s_million),
            "decode_s_million": _rounded(self.decode_s_million),
            "saved_s": _rounded(self.saved_s),
            "saved_amount": _rounded(self.saved_amount),
        }


@dataclass(frozen=True)
class WorkerTime:
    """One worker: how long it was there, how long it worked."""

    worker: str
    hardware: str
    ready_s: float | None
    """`None`: the log does not say when it came (an engine of others)."""
    busy_s: float
    """At least one request was in it; equals the attributed seconds of its requests."""
    hour_price: float | None
    """Of one hour of it; `None`: none is set, or its tokens are priced."""

    @property
    def idle_amount(self) -> float | None:
        """What its idle hours cost: nobody's request, and paid all the same."""
        if self.ready_s is None or self.hour_price is None:
            return None
        return max(0.0, self.ready_s - self.busy_s) / 3600 * self.hour_price

    def to_json(self) -> dict[str, Json]:
        """Return it as the API shows it."""
        return {
            "worker": self.worker,
            "hardware": self.hardware,
            "ready_s": _rounded(self.ready_s),
            "busy_s": _rounded(self.busy_s),
            "hour_price": self.hour_price,
            "idle_amount": _rounded(self.idle_amount),
        }


@dataclass(frozen=True)
class Spending:
    """What stands behind something: generations, and judge calls at servers that are not this one."""

    generations: int = 0
    judge_calls: int = 0
    """Judgments, whoever answered them."""
    engine_s: float = 0.0
    amount: float = 0.0
    """Of those that have a price."""
    unpriced: int = 0
    """Generations and judge calls without a price: the amount lacks them."""

    def __add__(self, other: Spending) -> Spending:
        return Spending(
            self.generations + other.generations,
            self.judge_calls + other.judge_calls,
            self.engine_s + other.engine_s,
            self.amount + other.amount,
            self.unpriced + other.unpriced,
        )

    @property
    def whole(self) -> bool:
        """Whether every part of it has a price."""
        return self.unpriced == 0

    def to_json(self) -> dict[str, Json]:
        """Return it as the API shows it; the amount only where it is whole."""
        return {
            "generations": self.generations,
            "judge_calls": self.judge_calls,
            "engine_s": _rounded(self.engine_s),
            "amount": _rounded(self.amount) if self.whole else None,
            "unpriced": self.unpriced,
        }


@dataclass(frozen=True)
class VotesCost:
    """What votes cost."""

    votes: int
    """Cast in this stretch and not withdrawn."""
    own: Spending
    """Answers of the battles that these votes ended."""
    without_vote: Spending
    """Answers of battles that brought none, so far or for good."""

    @property
    def own_amount(self) -> float | None:
        """Of one vote: the answers that were voted on."""
        return self.own.amount / self.votes if self.votes and self.own.whole else None

    @property
    def full_amount(self) -> float | None:
        """Of one vote, with the battles that brought none."""
        both = self.own + self.without_vote
        return both.amount / self.votes if self.votes and both.whole else None

    @property
    def full_s(self) -> float | None:
        """Engine seconds of one vote, with the battles that brought none."""
        return (self.own.engine_s + self.without_vote.engine_s) / self.votes if self.votes else None

    def to_json(self) -> dict[str, Json]:
        """Return it as the API shows it."""
        return {
            "votes": self.votes,
            "own": self.own.to_json(),
            "without_vote": self.without_vote.to_json(),
            "own_amount": _rounded(self.own_amount),
            "full_amount": _rounded(self.full_amount),
            "full_s": _rounded(self.full_s),
        }


@dataclass(frozen=True)
class DecisionCost:
    """What one release cost up to its decision, or so far."""

    release: str
    alias: str
    candidate: str
    outcome: str
    """`promoted`, `rolled_back`, `aborted`, or `under way`."""
    evals: Spending
    """Fixed sets asked of candidate and production."""
    shadow: Spending
    """Copies that no user saw."""
    judging: Spending
    """Judge calls about the two."""
    people: Spending
    """Answers of battles between the two."""
    votes: int
    """On those battles."""
    traffic: Spending
    """Requests of users that the candidate answered: they would have been served anyway, and are not in `total`."""

    @property
    def total(self) -> Spending:
        """What would not have been spent without the release."""
        return self.evals + self.shadow + self.judging + self.people

    def to_json(self) -> dict[str, Json]:
        """Return it as the API shows it."""
        return {
            "release": self.release,
            "alias": self.alias,
            "candidate": self.candidate,
            "outcome": self.outcome,
            "votes": self.votes,
            "total": self.total.to_json(),
            "evals": self.evals.to_json(),
            "shadow": self.shadow.to_json(),
            "judging": self.judging.to_json(),
            "people": self.people.to_json(),
            "traffic": self.traffic.to_json(),
        }


@dataclass(frozen=True)
class CostReport:
    """All of it. `Costs(log, settings).look(since_us=, until_us=)` (`costs/look.py`) makes it; it blocks."""

    since_us: int
    until_us: int
    through: int
    """Sequence of the last event that was read."""
    currency: str
    lines: tuple[CostLine, ...]
    """The dearest (or, without prices, the longest) first."""
    workers: tuple[WorkerTime, ...]
    votes: VotesCost
    decisions: tuple[DecisionCost, ...]
    """Newest first; whole releases, whatever their stretch, that ended or run in this one."""
    unpriced: tuple[str, ...]
    """Settings to fill in, such as `costs.hours."Intel Xeon"`; empty where all is priced."""
    unmatched: tuple[str, ...]
    """Names under `costs.hours` that are no worker's and no hardware's."""

    def to_json(self) -> dict[str, Json]:
        """Return it as the API shows it."""
        return {
            "since_us": self.since_us,
            "until_us": self.until_us,
            "through": self.through,
            "currency": self.currency,
            "lines": [line.to_json() for line in self.lines],
            "workers": [worker.to_json() for worker in self.workers],
            "votes": self.votes.to_json(),
            "decisions": [one.to_json() for one in self.decisions],
            "unpriced": list(self.unpriced),
            "unmatched": list(self.unmatched),
        }


def _per_million(amount: float | None, tokens: int) -> float | None:
    return None if amount is None or tokens <= 0 else amount / tokens * 1e6


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 6)
