"""What a plan can and cannot find out: samples that each gate needs, and how long they take at current traffic.

The capital of `rating/betting.py` grows by about edge^2 / (2 variance) a sample when the truth is `edge` away from the bound,
until it is 1 / alpha: half of the time n = 2 variance (log(1 / alpha) + 3/4) / edge^2 samples do, and nine times of ten about
twice as many (`tests/release/test_forecast.py` compares both with simulations). Where values hardly vary (no request fails) the capital
grows slower than that: a bet may lose half of it at most (`TRUNCATION`), so a sample brings at most log(1 + edge / (2 room)), where
`room` is how far the worst value lies from the bound.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from tiltyard.events.log import EventLog
from tiltyard.events.schema import GenerationFinished, VoteCast
from tiltyard.rating.betting import TRUNCATION
from tiltyard.rating.quantile_sequence import plausible_ranks
from tiltyard.release.metrics import Sample, is_in, value_of
from tiltyard.release.plan import (
    MEANS,
    QUANTILES,
    RATES,
    SCORES,
    WINS,
    Gate,
    Plan,
    PromoteStage,
    ShadowStage,
    Slice,
)
from tiltyard.release.stage_traffic import traffic_at

REGRET = 0.75
"""What learning to bet costs, in log capital; measured."""
SLOW = 2.1
"""Nine times of ten: so many times the median; measured."""
TIES = 0.5
"""Share of ties where there are no votes to tell."""
LOOK_BACK_S = 86_400.0
MOST = 20_000
"""Generations that are looked at."""


class Traffic(NamedTuple):
    """What the log has of the last day."""

    requests_per_minute: float
    votes_per_minute: float
    ties: float
    samples: tuple[Sample, ...]


def samples_needed(edge: float, variance: float, alpha: float) -> int:
    """Samples within which, half of the time, a mean that is `edge` from its bound is told from it.

    >>> samples_needed(0.04, 0.4, 0.05)
    1873
    """
    return math.ceil(2 * variance * (math.log(1 / alpha) + REGRET) / edge**2)


def fewest_samples(edge: float, room: float, alpha: float) -> int:
    """Samples without which nothing is told, though they vary not at all; `room` is from the bound to the worst value.

    >>> fewest_samples(0.01, 0.99, 0.05)
    595
    """
    return math.ceil(math.log(1 / alpha) / math.log1p(TRUNCATION * edge / room))


def smallest_edge(samples: float, variance: float, alpha: float) -> float:
    """The distance from its bound that so many samples tell, half of the time.

    >>> round(smallest_edge(1873, 0.4, 0.05), 3)
    0.04
    """
    return math.inf if samples < 1 else math.sqrt(2 * variance * (math.log(1 / alpha) + REGRET) / samples)


def current_traffic(log: EventLog, alias: str, *, now_us: int | None = None) -> Traffic:
    """Requests and votes of the last day. Blocks."""
    now = time.time_ns() // 1000 if now_us is None else now_us
    since = now - round(LOOK_BACK_S * 1e6)
    samples: list[Sample] = []
    votes: list[str] = []
    first = now
    for event in log.read(types=(GenerationFinished, VoteCast), newest_first=True, limit=MOST):
        if event.time_us < since:
            break
        first = event.time_us
        if isinstance(event.data, VoteCast):
            votes.append(event.data.choice)
        elif (
            isinstance(event.data, GenerationFinished)
            and event.data.alias == alias
            and event.data.shadow_of is None
        ):
            samples.append(Sample(event.data, event.tenant, event.time_us))
    minutes = max(1.0, (now - first) / 60e6)
    ties = sum(choice in ("tie", "both_bad") for choice in votes) / len(votes) if len(votes) >= 50 else TIES
    return Traffic(len(samples) / minutes, len(votes) / minutes, ties, tuple(samples))


def forecast(log: EventLog, plan: Plan, *, now_us: int | None = None) -> Iterator[str]:
    """Say it, line by line. Blocks."""
    traffic = current_traffic(log, plan.alias, now_us=now_us)
    yield (
        f"{plan.alias}: {traffic.requests_per_minute:,.2g} requests and {traffic.votes_per_minute:,.2g} votes a minute "
        "now (the log's last day)"
    )
    yield (
        f"error {plan.error:g} for the whole plan, {plan.alpha:.3g} for each gate; every gate is looked at all the time"
    )
    for number, stage in enumerate(plan.stages, 1):
        if isinstance(stage, PromoteStage):
            yield f"{number}. promote{': after approval' if stage.approval else ''}"
            continue
        yield f"{number}. {stage.stage}: at most {duration(stage.maximum)}, then {stage.inconclusive}"
        asked = any(gate.metric == "judge_win_rate" for gate in stage.gates)
        if asked and isinstance(stage, ShadowStage) and stage.judge is None:
            yield "   ! no judge is named: its pairs wait until somebody judges them; write judge: and a model served here"
        for gate in stage.gates:
            yield from _gate_lines(plan, number - 1, gate, traffic)


def _gate_lines(plan: Plan, index: int, gate: Gate, traffic: Traffic) -> Iterator[str]:
    stage = plan.stages[index]
    if isinstance(stage, PromoteStage):
        raise AssertionError("promotion has no gates")
    minimum = gate.minimum or stage.minimum
    per_minute, unit = _rate(plan, index, gate, traffic)
    need = _need(plan, gate, traffic)
    if need is None:
        yield f"   {gate.name}: nothing recent in the log to tell its spread from; at least {minimum:,} {unit}"
        return
    if math.isinf(need):
        yield f"   {gate.name}: no number of samples can show it: production itself is at the limit or beyond it"
        return
    n, slow = max(need, minimum), max(need * SLOW, minimum)
    took = ", nobody knows how long: there is no traffic for it now"
    if per_minute:
        took = (
            f": {duration(n / per_minute * 60)}, nine times of ten within {duration(slow / per_minute * 60)}"
        )
    yield f"   {gate.name}: an equal candidate passes within {n:,.0f} {unit} half of the time{took}"
    if per_minute and gate.slice.needs_words:
        yield (
            f"   ! if everybody were in [{gate.slice}]: who is, words say, and none are read here; a tenth of the people takes "
            "ten times as long"
        )
    if per_minute and n / per_minute * 60 > stage.maximum:
        yield from _honest(plan, gate, traffic, stage.maximum, per_minute)


def _honest(plan: Plan, gate: Gate, traffic: Traffic, maximum_s: float, per_minute: float) -> Iterator[str]:
    """What a gate that will most likely be inconclusive could find out, and what would have to be."""
    n = per_minute * maximum_s / 60
    yield f"   ! in {duration(maximum_s)} there are about {n:,.0f}: this gate will most likely be inconclusive"
    variance, need = _variance(gate, traffic), _need(plan, gate, traffic)
    if variance is not None:
        scale = 0.5 if gate.metric in WINS else 1.0
        told = smallest_edge(n, variance, plan.alpha)
        if (
            gate.metric not in MEANS and n >= 1
        ):  # however little they vary: the inverse of `fewest_samples`, from the other side
            far = 2 - _room(gate) if gate.limit is None else gate.limit
            told = max(told, math.expm1(math.log(1 / plan.alpha) / n) * far / TRUNCATION)
        worst = (gate.worse_by or gate.limit or 0.0) + told * scale
        found = f"one that is {worst * 100:.0f} points worse" if worst < scale else "no candidate at all"
        yield f"   ! so few stop {found}"
    if need is not None:
        yield f"   ! it would take {need / (maximum_s / 60):,.2g} a minute"
    if gate.metric == "human_win_rate":
        yield (
            "   ! what can: a shadow stage with judge_win_rate on the same prompts; its pairs come from traffic, not from people"
        )


def _rate(plan: Plan, index: int, gate: Gate, traffic: Traffic) -> tuple[float, str]:
    """Samples a minute, and what they are; 0 where nobody knows how many there will be."""
    stage = plan.stages[index]
    if gate.metric == "fixed_set":
        return 0.0, "items"
    inside = _share_in(gate.slice, traffic)
    if gate.metric == "human_win_rate":
        return traffic.votes_per_minute * inside, "votes"
    if isinstance(stage, ShadowStage):
        return traffic.requests_per_minute * inside * stage.share, "pairs"
    if (
        gate.metric in WINS
    ):  # judges, scorers and experts outside a shadow stage: nobody knows what they will be asked
        return 0.0, "pairs"
    return traffic.requests_per_minute * inside * traffic_at(plan, index).share, "requests of the candidate"


def _share_in(part: Slice, traffic: Traffic) -> float:
    """Share of the recent requests in a slice; what is told from words is taken for everybody: none are read here."""
    known = part.model_copy(update={"writing": None, "language": None})
    if known == Slice() or not traffic.samples:
        return 1.0
    return sum(is_in(known, sample) is True for sample in traffic.samples) / len(traffic.samples)


def _need(plan: Plan, gate: Gate, traffic: Traffic) -> float | None:
    if gate.metric in QUANTILES:
        return _quantile_need(plan, gate, traffic)
    if gate.metric in SCORES and gate.limit is not None:
        return None  # how far the candidate's own score lies from it, no traffic says
    if (variance := _variance(gate, traffic)) is None:
        return None
    if gate.worse_by is not None:
        edge = 2 * gate.worse_by if gate.metric in WINS else gate.worse_by
    else:
        mean = float(np.mean(_values(gate, traffic))) if traffic.samples else 0.0
        edge = (gate.limit or 0.0) - mean
    if edge <= 0:
        return math.inf
    fewest = fewest_samples(edge, _room(gate), plan.alpha)
    return float(max(samples_needed(edge, variance, plan.alpha), fewest if gate.metric not in MEANS else 0))


def _room(gate: Gate) -> float:
    """From the bound to the worst value there can be, in the units of what is averaged."""
    if gate.limit is not None:
        return 1 - gate.limit
    return 1 - (2 if gate.metric in WINS else 1) * min(gate.worse_by or 0.0, 0.49)


def _variance(gate: Gate, traffic: Traffic) -> float | None:
    """Of what is averaged: a difference of two answers, a vote's score; for means relative to the mean."""
    if gate.metric in WINS:
        return 1 - traffic.ties
    if gate.metric == "fixed_set":
        return 0.25
    values = _values(gate, traffic)
    if len(values) < 30:
        return None
    if gate.metric in RATES:
        p = max(float(np.mean(values)), 1 / len(values))
        return p * (1 - p) * (1 if gate.limit is not None else 2)
    mean = float(np.mean(values))
    return 2 * float(np.var(values)) / mean**2 if gate.metric in MEANS and mean > 0 else None


def _quantile_need(plan: Plan, gate: Gate, traffic: Traffic) -> float | None:
    """Tries numbers of samples on the log's own distribution, until the interval is narrow enough."""
    values = np.sort(_values(gate, traffic))
    p = 0.99 if gate.metric.endswith("99") else 0.5
    if values.size < 100:
        return None
    n = 50
    while n < 10_000_000:
        alpha = plan.alpha if gate.limit is not None else plan.alpha / 2
        first, last = plausible_ranks(n, p, alpha)
        if first >= 1 and last < n:
            low, high = (float(np.quantile(values, min(1.0, rank / n))) for rank in (first, last + 1))
            bound = gate.limit if gate.limit is not None else low * (1 + (gate.worse_by or 0))
            if high <= bound:
                return float(n)
        n = math.ceil(n * 1.1)
    return math.inf


def _values(gate: Gate, traffic: Traffic) -> Sequence[float]:
    if gate.metric == "refusal_rate":
        return ()
    from_log = (value_of(gate.metric, sample, _PRICES) for sample in traffic.samples)
    return [value for value in from_log if value is not None]


_PRICES = Plan.model_fields["prices"].default


def duration(seconds: float) -> str:
    """Write a time as people say it.

    >>> duration(90), duration(5400), duration(200_000)
    ('1.5 min', '1.5 h', '2.3 days')
    """
    for unit, size in (("days", 86_400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= size:
            return f"{seconds / size:,.1f}".removesuffix(".0") + f" {unit}"
    return f"{seconds:.0f} s"
