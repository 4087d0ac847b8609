"""From pair counts to a leaderboard: rows, ranks, notes and a digest that names the whole result.

There is no clock and no chance here: the same votes and settings give the same leaderboard, so its
digest can be published and checked later.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, Literal, TypeAlias

import numpy as np

from tiltyard.errors import InvalidRequest
from tiltyard.identity.canonical import Digest, Json, digest_of_json
from tiltyard.rating.bradley_terry import METHOD, Ratings, fit
from tiltyard.rating.counts import BothBad, PairCounts
from tiltyard.rating.ranks import ranks_by_differences, ranks_by_intervals, ranks_simultaneously
from tiltyard.rating.rated_models import RatedModel, unregistered

Status: TypeAlias = Literal["ranked", "provisional", "unconnected"]
"""With a rank; with too few votes for one; with votes that no chain connects to the main group."""

DECIMALS: Final = 3
"""Ratings are rounded to a thousandth of a point before they are shown or digested, which is far above the
rounding of any machine's linear algebra and far below any interval."""

FORMAT: Final = "tiltyard.leaderboard/1"
"""Of `Leaderboard.document`; another arrangement of the same numbers gets another name."""

NUMBERS: Final = (
    "status",
    "rank",
    "rank_worst",
    "rank_by_differences",
    "rank_by_differences_worst",
    "ranks_simultaneous",
    "rating",
    "lower",
    "upper",
    "votes",
    "wins",
    "losses",
    "ties",
    "both_bad",
    "votes_needed",
    "notes",
)
"""What a row of the document has."""


@dataclass(frozen=True)
class LeaderboardRow:
    """One model."""

    model: RatedModel
    status: Status
    rank: int | None
    """1 + how many ranked models have a lower bound above this one's upper bound."""
    rank_worst: int | None
    """The last place that its interval leaves open."""
    rank_by_differences: int | None
    """1 + how many ranked models are ahead by a significant difference."""
    rank_by_differences_worst: int | None
    """The last place that such differences leave open."""
    ranks_simultaneous: tuple[int, int] | None
    """Best and worst rank that hold for all models at once; `None` unless asked for."""
    rating: float | None
    """Points; `None` without votes, and outside the main group, where it would compare nothing."""
    lower: float | None
    upper: float | None
    votes: int
    """Votes that bear on the rating."""
    wins: int
    losses: int
    ties: int
    both_bad: int
    votes_needed: int
    """How many more votes until a rank is shown."""
    notes: tuple[str, ...]
    """What a reader must know about this row, in plain words."""

    @property
    def half_width(self) -> float | None:
        """Half the interval."""
        return None if self.upper is None or self.lower is None else (self.upper - self.lower) / 2

    @property
    def not_separable(self) -> int:
        """Ranked models from which no significant difference tells it; 0 without a rank."""
        if self.rank_by_differences is None or self.rank_by_differences_worst is None:
            return 0
        return self.rank_by_differences_worst - self.rank_by_differences

    def to_json(self) -> dict[str, Json]:
        """Return the row as the API shows it."""
        model = self.model
        return {
            "rank": self.rank,
            "rank_worst": self.rank_worst,
            "rank_by_differences": self.rank_by_differences,
            "rank_by_differences_worst": self.rank_by_differences_worst,
            **(
                {}
                if self.ranks_simultaneous is None
                else {"ranks_simultaneous": list(self.ranks_simultaneous)}
            ),
            "status": self.status,
            "model": model.key,
            "name": model.name,
            "rating": self.rating,
            "lower": self.lower,
            "upper": self.upper,
            "votes": self.votes,
            "wins": self.wins,
            "losses": self.losses,
            "ties": self.ties,
            "both_bad": self.both_bad,
            "votes_needed": self.votes_needed,
            "not_separable": self.not_separable,
            "notes": list(self.notes),
            "organization": model.organization,
            "license": model.license,
            "description": model.description,
            "behaviour": model.behaviour,
            "superseded": model.superseded,
        }


@dataclass(frozen=True, eq=False)
class Evidence:
    """Where the votes came from, as far as the numbers cannot say it themselves."""

    ruleset: str
    window: str = "all"
    first_sequence: int = 0
    last_sequence: int = 0
    excluded: Mapping[str, int] = field(default_factory=dict)
    data_digest: Digest = ""
    """Names the single votes (`Votes.digest`); empty where only their counts were known."""
    question: Mapping[str, Json] = field(default_factory=dict)
    """All that decided the numbers besides the votes, as an event keeps it; empty where nobody will ask again."""


@dataclass(frozen=True, eq=False)
class Leaderboard:
    """Rows in the order of rank, then provisional rows by rating, then the rest by name."""

    rows: tuple[LeaderboardRow, ...]
    counts: PairCounts
    ratings: Ratings
    evidence: Evidence
    minimum_votes: int
    details: Mapping[str, Json] = field(default_factory=dict)
    """What an unusual method found besides ratings: its options, coefficients, the strength of ties."""

    @property
    def votes(self) -> int:
        """Votes in the pair counts, with those that the policy for both bad leaves out."""
        return self.counts.votes

    @cached_property
    def document(self) -> dict[str, Json]:
        """Every number and setting, in the form that `digest` names; names and licences are not in it.

        `models` is sorted; rows, pairs (`[i, j, wins of i, wins of j, ties, both bad]`) and `components` refer to it
        by position, which keeps the document of 129 models and 3,460 pairs near 110 kB.
        """
        ratings, evidence, counts = self.ratings, self.evidence, self.counts
        place = {key: number for number, key in enumerate(counts.models)}
        rows: list[Json] = []
        for row in sorted(self.rows, key=lambda row: place[row.model.key]):
            shown = row.to_json()
            rows.append({name: shown[name] for name in NUMBERS if name in shown})
        return {
            "format": FORMAT,
            "method": ratings.method,
            "ruleset": evidence.ruleset,
            "window": evidence.window,
            "first_sequence": evidence.first_sequence,
            "last_sequence": evidence.last_sequence,
            "excluded": dict(evidence.excluded),
            "both_bad": ratings.both_bad,
            "confidence": ratings.confidence,
            "anchor": list(ratings.anchor) if ratings.anchor else None,
            "minimum_votes": self.minimum_votes,
            "votes": self.votes,
            "counts_digest": counts.digest,
            "data_digest": evidence.data_digest,
            "question": dict(evidence.question),
            "converged": ratings.converged,
            "components": [[place[key] for key in part] for part in ratings.components],
            "unbounded": dict(ratings.unbounded),
            "model_based": sorted(ratings.model_based),
            "details": dict(self.details),
            "models": list(counts.models),
            "rows": rows,
            "pairs": [
                [i, j, *four]
                for i, j, four in zip(
                    counts.first.tolist(), counts.second.tolist(), counts.counts.tolist(), strict=True
                )
            ],
        }

    @cached_property
    def digest(self) -> Digest:
        """Names the leaderboard: SHA-256 of the canonical JSON of `document`."""
        return digest_of_json(self.document)

    def to_json(self) -> dict[str, Json]:
        """Return the leaderboard as the API shows it; `pairs` has the counts behind every number.

        `model` is the key of a row, of both sides of a pair and of `components`.
        """
        ratings, evidence = self.ratings, self.evidence
        models = self.counts.models
        pairs: list[Json] = [
            {
                "model_a": models[i],
                "model_b": models[j],
                "wins_a": wins,
                "wins_b": losses,
                "ties": ties,
                "both_bad": both_bad,
            }
            for i, j, (wins, losses, ties, both_bad) in zip(
                self.counts.first.tolist(),
                self.counts.second.tolist(),
                self.counts.counts.tolist(),
                strict=True,
            )
        ]
        return {
            "digest": self.digest,
            "method": ratings.method,
            "ruleset": evidence.ruleset,
            "window": evidence.window,
            "both_bad": ratings.both_bad,
            "minimum_votes": self.minimum_votes,
            "confidence": ratings.confidence,
            "anchor": list(ratings.anchor) if ratings.anchor else None,
            "votes": self.votes,
            "first_sequence": evidence.first_sequence,
            "last_sequence": evidence.last_sequence,
            "excluded": dict(evidence.excluded),
            "counts_digest": self.counts.digest,
            "data_digest": evidence.data_digest,
            "question": dict(evidence.question),
            "converged": ratings.converged,
            "iterations": ratings.iterations,
            "components": [list(part) for part in ratings.components],
            "unbounded": dict(ratings.unbounded),
            "model_based": sorted(ratings.model_based),
            **({"details": dict(self.details)} if self.details else {}),
            "rows": [row.to_json() for row in self.rows],
            "pairs": pairs,
        }


def make_leaderboard(
    counts: PairCounts,
    *,
    models: Iterable[RatedModel] = (),
    evidence: Evidence,
    minimum_votes: int,
    both_bad: BothBad = "tie",
    anchor: tuple[str, float] | None = None,
    confidence: float = 0.95,
) -> Leaderboard:
    """Rate the votes and rank the models that have at least `minimum_votes`.

    A model of `models` without votes gets a row that says so; a key with votes that `models` does not know goes by
    that key. Provisional models take part in the fit (their votes are evidence about the others) but
    push nobody down and widen no interval: the mean of the ranked models is held. Raises `InvalidRequest` naming `minimum_votes`, or as `fit` does.
    """
    known = list(models)
    counts = counts.with_models(model.key for model in known)
    ratings = fit(counts, both_bad=both_bad, anchor=anchor, confidence=confidence).about(minimum_votes)
    return lay_out(counts, ratings, models=known, evidence=evidence, minimum_votes=minimum_votes)


def lay_out(
    counts: PairCounts,
    ratings: Ratings,
    *,
    models: Iterable[RatedModel] = (),
    evidence: Evidence,
    minimum_votes: int,
    simultaneous: bool = False,
    details: Mapping[str, Json] | None = None,
) -> Leaderboard:
    """Rank ratings that were fitted elsewhere, such as by `fit_votes` or `fit_davidson`, of the same `counts`.

    `simultaneous` adds rank ranges that hold for all models at once (`ranks_simultaneously`, seed 0). Raises
    `InvalidRequest` naming `minimum_votes`, or `models` when counts and ratings have different ones.
    """
    if minimum_votes < 1:
        raise InvalidRequest(f"minimum_votes is {minimum_votes}; it starts at 1.", param="minimum_votes")
    if counts.models != ratings.models:
        raise InvalidRequest("the counts and the ratings have different models.", param="models")
    known = {model.key: model for model in models}
    confidence = ratings.confidence
    statuses = _statuses(ratings, minimum_votes)
    ranked = np.array([status == "ranked" for status in statuses], dtype=np.bool_)
    by_interval = ranks_by_intervals(ratings.lower[ranked], ratings.upper[ranked])
    by_difference = ranks_by_differences(
        ratings.ratings[ranked], ratings.covariance[np.ix_(ranked, ranked)], confidence
    )
    together: list[tuple[int, int] | None] = [None] * len(by_interval.best)
    if simultaneous:
        best, worst = ranks_simultaneously(
            ratings.ratings[ranked], ratings.covariance[np.ix_(ranked, ranked)], confidence
        ).ranks
        together = list(zip(best.tolist(), worst.tolist(), strict=True))
    places = iter(
        zip(
            by_interval.best.tolist(),
            by_interval.worst.tolist(),
            by_difference.best.tolist(),
            by_difference.worst.tolist(),
            together,
            strict=True,
        )
    )
    rows = []
    for node, (key, status) in enumerate(zip(counts.models, statuses, strict=True)):
        rank, last, by_differences, differences_last, at_once = (
            next(places) if status == "ranked" else (None, None, None, None, None)
        )
        shown = status != "unconnected" and int(ratings.component[node]) == 0
        votes = int(ratings.votes[node])
        wins, losses, ties, bad = counts.tally[node].tolist()
        rows.append(
            LeaderboardRow(
                model=known.get(key) or unregistered(key),
                status=status,
                rank=rank,
                rank_worst=last,
                rank_by_differences=by_differences,
                rank_by_differences_worst=differences_last,
                ranks_simultaneous=at_once,
                rating=round(float(ratings.ratings[node]), DECIMALS) if shown else None,
                lower=round(float(ratings.lower[node]), DECIMALS) if shown else None,
                upper=round(float(ratings.upper[node]), DECIMALS) if shown else None,
                votes=votes,
                wins=wins,
                losses=losses,
                ties=ties,
                both_bad=bad,
                votes_needed=max(0, minimum_votes - votes),
                notes=_notes(ratings, node, minimum_votes),
            )
        )
    return Leaderboard(in_order(rows), counts, ratings, evidence, minimum_votes, details or {})


def _statuses(ratings: Ratings, minimum_votes: int) -> list[Status]:
    statuses: list[Status] = []
    for votes, component in zip(ratings.votes.tolist(), ratings.component.tolist(), strict=True):
        if votes < minimum_votes:
            statuses.append("provisional")
        else:
            statuses.append("ranked" if component == 0 else "unconnected")
    return statuses


_UNBOUNDED_NOTES: Final = {
    "undefeated": "undefeated: only half a virtual loss keeps its rating finite",
    "winless": "winless: only half a virtual win keeps its rating finite",
    "separated": "separated: its votes against the rest all point one way; half virtual wins keep it finite",
}


def _notes(ratings: Ratings, node: int, minimum_votes: int) -> tuple[str, ...]:
    model, votes = ratings.models[node], int(ratings.votes[node])
    notes = []
    if votes < minimum_votes:
        missing = minimum_votes - votes
        notes.append(f"needs {missing:,} more vote{'s' if missing > 1 else ''}")
    if votes and ratings.component[node] > 0:
        notes.append("no chain of votes connects it to the main group, so it has no rating beside it")
    elif (why := ratings.unbounded.get(model)) is not None:
        notes.append(_UNBOUNDED_NOTES[why])
    if not ratings.converged and votes:
        notes.append("the fit did not converge; do not rely on this rating")
    return tuple(notes)


def in_order(rows: Iterable[LeaderboardRow]) -> tuple[LeaderboardRow, ...]:
    """Put rows in the board's order: of rank, then provisional rows by rating, then the rest by name."""
    return tuple(sorted(rows, key=_order))


def _order(row: LeaderboardRow) -> tuple[int, int, float, str]:
    group = ("ranked", "provisional", "unconnected").index(row.status)
    rating = -np.inf if row.rating is None else row.rating
    return group, row.rank or 0, -float(rating), row.model.name


__all__ = [
    "DECIMALS",
    "METHOD",
    "Evidence",
    "Leaderboard",
    "LeaderboardRow",
    "Status",
    "lay_out",
    "make_leaderboard",
]
