"""A judge beside people: how far it agrees with them, and what both together say.

Agreement is with each vote, not with a majority that hides how far people agree among themselves. Orders that differ count as a tie
(MT-Bench's setup 1) and are left out with the ties in the second figure (its setup 2: both sides decided).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final

from tiltyard.errors import InvalidRequest
from tiltyard.events.log import EventLog
from tiltyard.events.schema import Choice, JudgedSide
from tiltyard.identity.canonical import Digest
from tiltyard.judge.bias import POINTS
from tiltyard.judge.items import Item
from tiltyard.judge.judgments import Judgments, PairVerdict
from tiltyard.judge.run import item_key
from tiltyard.rating.agreement import Label, Level, cohen_kappa, krippendorff_alpha, raw_agreement
from tiltyard.rating.ppi import MINIMUM, Powered, powered_mean
from tiltyard.rating.proportions import Interval
from tiltyard.rating.rank_correlation import spearman

EVERYTHING: Final = "all"


@dataclass(frozen=True, slots=True)
class Votes:
    """What people said of one item."""

    choices: tuple[Choice, ...] = ()
    ratings: tuple[float, ...] = ()

    @property
    def points(self) -> float:
        """Mean points of side a."""
        return sum(POINTS[one] for one in self.choices) / len(self.choices)


@dataclass(frozen=True, slots=True)
class Agreement:
    """A judge and people on one slice; all intervals are clustered by question."""

    slice: str
    """`all`, or `name=value`."""
    items: int
    votes: int
    raw: Interval
    """Share of votes that say what the judge says; a tie, and orders that differ, are a tie."""
    kappa: Interval
    """Cohen's, of the same."""
    decided: Interval
    """Share among votes and verdicts that are both decided."""
    decided_kappa: Interval
    people_among_themselves: Interval
    """Share of pairs of people on one item who say the same; the most that can be asked of a judge."""
    alpha_people: Interval
    """Krippendorff's, of people alone."""
    alpha_with_judge: Interval
    """Krippendorff's, with the judge as one more rater: below the other, it adds noise."""
    correlation: Interval
    """Spearman's rho of ratings and people's means; of pairs, NaN."""


@dataclass(frozen=True, slots=True)
class PoweredRate:
    """One identity's win rate, or mean rating, by people and judge together."""

    identity: str
    behaviour: Digest | None
    powered: Powered


def votes_of(log: EventLog, items: Sequence[Item]) -> dict[str, Votes]:
    """What people said, by item key; items that nobody voted on are left out."""
    found: dict[str, Votes] = {}
    for item in items:
        choices = tuple(one for one in item.people if isinstance(one, str))
        ratings = tuple(one for one in item.people if not isinstance(one, str))
        if choices or ratings:
            found[item_key(log, item)] = Votes(choices, ratings)
    return found


def agreement_with(
    judgments: Judgments, people: Mapping[str, Votes], *, confidence: float = 0.95
) -> list[Agreement]:
    """Compare a judge with people: all items first, then each slice; raises `InvalidRequest` when nobody voted."""
    seen = _seen(judgments, people)
    if not seen:
        raise InvalidRequest(
            f"people voted on none of the items that {judgments.line.label} judged; give items with `people`, "
            "or judge battles",
            param="items",
        )
    names = sorted({f"{name}={value}" for one in seen for name, value in one.slices.items()})
    found = [_agreement(EVERYTHING, seen, confidence)]
    for name in names:
        found.append(_agreement(name, [one for one in seen if name in one.slice_names], confidence))
    return found


def powered_rates(
    judgments: Judgments, people: Mapping[str, Votes], *, confidence: float = 0.95
) -> list[PoweredRate]:
    """Win rates, or mean ratings, by prediction-powered inference; identities on fewer than two voted items are left out.

    Valid where the voted items are a random sample of the judged ones.
    """
    both: dict[str, list[tuple[float, float, str]]] = {}
    alone: dict[str, list[tuple[float, str]]] = {}
    who: dict[str, JudgedSide] = {}
    for side, judged, said, question in _values(judgments, people):
        key = side.behaviour or side.identity
        who[key] = side
        if said is None:
            alone.setdefault(key, []).append((judged, question))
        else:
            both.setdefault(key, []).append((said, judged, question))
    rates: list[PoweredRate] = []
    for key, voted in both.items():
        if len(voted) < MINIMUM:
            continue
        rest = alone.get(key, [])
        powered = powered_mean(
            [said for said, _, _ in voted],
            [judged for _, judged, _ in voted],
            [judged for judged, _ in rest],
            clusters=[question for _, _, question in voted],
            clusters_only=[question for _, question in rest],
            share=bool(judgments.pairs()),
            confidence=confidence,
        )
        rates.append(PoweredRate(who[key].identity, who[key].behaviour, powered))
    return sorted(rates, key=lambda rate: -rate.powered.together.estimate)


def _values(
    judgments: Judgments, people: Mapping[str, Votes]
) -> Iterator[tuple[JudgedSide, float, float | None, str]]:
    """For each answer: who gave it, what the judge made of it, what people did (`None`: nobody voted), the question."""
    for pair in judgments.pairs():
        points = pair.points
        if points is None or pair.sample:
            continue
        votes = people.get(pair.item)
        said = votes.points if votes is not None and votes.choices else None
        yield pair.sides[0], points, said, pair.question
        yield pair.sides[1], 1 - points, None if said is None else 1 - said, pair.question
    for one in judgments.singles():
        if one.data.score is None or one.data.sample:
            continue
        votes = people.get(one.data.item)
        rated = votes.ratings if votes is not None else ()
        said = sum(rated) / len(rated) if rated else None
        yield one.data.sides[0], one.data.score, said, one.data.question


@dataclass(frozen=True, slots=True)
class _Seen:
    question: str
    slices: Mapping[str, str]
    verdict: Label
    votes: tuple[Label, ...]

    @property
    def slice_names(self) -> set[str]:
        return {f"{name}={value}" for name, value in self.slices.items()}


def _seen(judgments: Judgments, people: Mapping[str, Votes]) -> list[_Seen]:
    seen = [
        _Seen(pair.question, pair.slices, verdict, tuple(map(_as_tie, people[pair.item].choices)))
        for pair in judgments.pairs()
        if pair.item in people and people[pair.item].choices and (verdict := _verdict(pair)) is not None
    ]
    seen += [
        _Seen(one.data.question, one.data.slices, one.data.score, people[one.data.item].ratings)
        for one in judgments.singles()
        if one.data.item in people and people[one.data.item].ratings and one.data.score is not None
    ]
    return seen


def _verdict(pair: PairVerdict) -> str | None:
    outcome = pair.outcome
    return "tie" if outcome == "inconsistent" else outcome


def _as_tie(choice: Choice) -> str:
    return "tie" if choice == "both_bad" else choice


def _agreement(name: str, seen: Sequence[_Seen], confidence: float) -> Agreement:
    votes = [(vote, one.verdict, one.question) for one in seen for vote in one.votes]
    decided = [row for row in votes if "tie" not in row[:2]]
    pairs = [(a, b, one.question) for one in seen for a, b in combinations(one.votes, 2)]
    questions = [one.question for one in seen]
    rated = all(not isinstance(one.verdict, str) for one in seen)
    level: Level = "interval" if rated else "nominal"
    means = [sum(float(vote) for vote in one.votes) / len(one.votes) for one in seen] if rated else []

    def raw(rows: Sequence[tuple[Label, Label, str]]) -> Interval:
        first, second, clusters = zip(*rows, strict=True) if rows else ((), (), ())
        return raw_agreement(first, second, clusters=clusters, confidence=confidence)

    def kappa(rows: Sequence[tuple[Label, Label, str]]) -> Interval:
        first, second, clusters = zip(*rows, strict=True) if rows else ((), (), ())
        return cohen_kappa(first, second, clusters=clusters, confidence=confidence)

    def alpha(units: Sequence[Sequence[Label]]) -> Interval:
        return krippendorff_alpha(units, level=level, clusters=questions, confidence=confidence)

    return Agreement(
        slice=name,
        items=len(seen),
        votes=len(votes),
        raw=raw(votes),
        kappa=kappa(votes),
        decided=raw(decided),
        decided_kappa=kappa(decided),
        people_among_themselves=raw(pairs),
        alpha_people=alpha([one.votes for one in seen]),
        alpha_with_judge=alpha([(*one.votes, one.verdict) for one in seen]),
        correlation=spearman(
            means, [float(one.verdict) for one in seen] if rated else [], confidence=confidence
        ),
    )
