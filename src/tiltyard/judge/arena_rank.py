"""Whether a judge ranks identities as the arena's people do."""

from __future__ import annotations

from dataclasses import dataclass

from tiltyard.errors import InvalidRequest
from tiltyard.events.queries import VoteRow
from tiltyard.judge.judgments import Judgments
from tiltyard.rating.bradley_terry import fit
from tiltyard.rating.counts import PairCounts
from tiltyard.rating.outcomes import EVENT_LABELS
from tiltyard.rating.proportions import Interval
from tiltyard.rating.rank_correlation import kendall, spearman

LEAST_MODELS = 3
"""Fewer make no ranking."""


@dataclass(frozen=True, slots=True)
class RankAgreement:
    """Bradley-Terry ratings of the same identities by people and by a judge."""

    models: tuple[str, ...]
    """Behaviour digests, or names where there are none; the people's best first."""
    people: tuple[float, ...]
    """Points."""
    judge: tuple[float, ...]
    """Points, in another gauge: only their order and distances compare."""
    rho: Interval
    tau: Interval


def judge_counts(judgments: Judgments) -> PairCounts:
    """A judge's pairs as counts; orders that differ are ties, unscored pairs nothing."""
    left: list[str] = []
    right: list[str] = []
    winners: list[str] = []
    for pair in judgments.pairs():
        a, b = (side.behaviour or side.identity for side in pair.sides)
        if pair.outcome is not None and a != b:
            left.append(a)
            right.append(b)
            winners.append("tie" if pair.outcome == "inconsistent" else pair.outcome)
    return PairCounts.from_votes(left, right, winners, vocabulary=EVENT_LABELS)


def rank_agreement(judgments: Judgments, votes: list[VoteRow], *, confidence: float = 0.95) -> RankAgreement:
    """Compare with the votes of a log; raises `InvalidRequest` for fewer than three identities that both have seen."""
    people = fit(
        PairCounts.from_votes(
            [vote.behaviour_a for vote in votes if vote.behaviour_a != vote.behaviour_b],
            [vote.behaviour_b for vote in votes if vote.behaviour_a != vote.behaviour_b],
            [vote.choice for vote in votes if vote.behaviour_a != vote.behaviour_b],
            vocabulary=EVENT_LABELS,
        )
    )
    judge = fit(judge_counts(judgments))
    common = [model for model in people.models if model in judge.models]
    if len(common) < LEAST_MODELS:
        raise InvalidRequest(
            f"people and judge have {len(common)} identities in common; a ranking needs {LEAST_MODELS}",
            param="judge",
        )
    by_people = {model: float(people.ratings[people.models.index(model)]) for model in common}
    by_judge = {model: float(judge.ratings[judge.models.index(model)]) for model in common}
    ranked = sorted(common, key=lambda model: -by_people[model])
    x, y = [by_people[model] for model in ranked], [by_judge[model] for model in ranked]
    return RankAgreement(
        tuple(ranked),
        tuple(x),
        tuple(y),
        rho=spearman(x, y, confidence=confidence),
        tau=kendall(x, y, confidence=confidence),
    )
