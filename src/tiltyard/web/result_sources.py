"""What judges, fixed sets and experts have in the log about an identity, for the row beside its rating.

The rooms do not know each other; here their results become estimates of one shape. Nothing is averaged across sources: each judge, set and
form is a source of its own, named with its digest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from tiltyard.events.log import EventLog
from tiltyard.events.schema import (
    EvalItemFinished,
    EvalItemReviewed,
    EvalRunFinished,
    EvalRunStarted,
    ReviewGiven,
    RubricRegistered,
)
from tiltyard.identity.canonical import Digest
from tiltyard.judge.bias import POINTS
from tiltyard.judge.expert_results import ItemResult, results_of
from tiltyard.judge.win_rates import judged_behaviours
from tiltyard.rating.proportions import Interval, share_interval
from tiltyard.rating.sources import Estimate, Kind, Source

SHORT: Final = 12
"""Characters of a digest that tell sources of one name apart."""


def result_sources(log: EventLog) -> tuple[Source, ...]:
    """Return a reader for each kind of result that a log can hold."""
    return JudgeResults(log), FixedSetResults(log), ExpertResults(log)


class JudgeResults:
    """Win rates by judge and rubric; ratings by a judge are left out, since their scale is the rubric's own."""

    def __init__(self, log: EventLog) -> None:
        self._log = log

    def estimates(self) -> Mapping[str, Sequence[Estimate]]:
        """Of every behaviour that a judge compared with another."""
        found: dict[str, list[Estimate]] = {}
        for one in judged_behaviours(self._log):
            if one.behaviour is not None and one.measure == "win_rate" and one.n:
                found.setdefault(one.behaviour, []).append(
                    Estimate("judge", one.source, one.estimate, one.lower, one.upper, one.n)
                )
        return found


class FixedSetResults:
    """Mean scores of the newest finished run of each set and identity; samples of an item count as one, unscored items not at all."""

    def __init__(self, log: EventLog) -> None:
        self._log = log

    def estimates(self) -> Mapping[str, Sequence[Estimate]]:
        """Of every behaviour that a set was asked of to the end."""
        newest: dict[tuple[Digest, Digest], EvalRunStarted] = {}
        begun: dict[str, EvalRunStarted] = {}
        scores: dict[str, dict[str, dict[int, float]]] = {}
        for event in self._log.read(
            types=(EvalRunStarted, EvalItemFinished, EvalItemReviewed, EvalRunFinished)
        ):
            match event.data:
                case EvalRunStarted() as started if started.identified:
                    begun[started.run] = started
                case (
                    EvalItemFinished(score=float() as score)
                    | EvalItemReviewed(score=float() as score) as item
                ):
                    scores.setdefault(item.run, {}).setdefault(item.item, {})[item.sample] = score
                case EvalRunFinished() as finished if finished.run in begun:
                    started = begun[finished.run]
                    newest[started.set_digest, started.behaviour] = started
                case _:
                    pass
        found: dict[str, list[Estimate]] = {}
        for started in newest.values():
            means = [sum(of.values()) / len(of) for of in scores.get(started.run, {}).values()]
            if means:
                name = f"{started.set_name} {_short(started.set_digest)}"
                found.setdefault(started.behaviour, []).append(
                    _estimate("fixed_set", name, share_interval(means))
                )
        return found


class ExpertResults:
    """Win rates by form, of items that both reviewers or an adjudicator settled."""

    def __init__(self, log: EventLog) -> None:
        self._log = log

    def estimates(self) -> Mapping[str, Sequence[Estimate]]:
        """Of every behaviour whose answers experts compared."""
        names: dict[Digest, str] = {}
        forms: dict[Digest, None] = {}
        for event in self._log.read(types=(RubricRegistered, ReviewGiven)):
            match event.data:
                case RubricRegistered() as rubric:
                    names[rubric.rubric] = rubric.name
                case ReviewGiven() as given:
                    forms[given.form] = None
                case _:
                    pass
        found: dict[str, list[Estimate]] = {}
        for form in forms:
            name = f"{names.get(form, 'form')} {_short(form)}"
            values: dict[str, list[tuple[float, str]]] = {}
            for result in results_of(self._log, form):
                for behaviour, points, question in _points(result):
                    values.setdefault(behaviour, []).append((points, question))
            for behaviour, of in values.items():
                interval = share_interval([points for points, _ in of], clusters=[q for _, q in of])
                found.setdefault(behaviour, []).append(_estimate("expert", name, interval))
        return found


def _points(result: ItemResult) -> Iterator[tuple[str, float, str]]:
    """Behaviour, points and question of each side of a pair that is settled."""
    about = (*result.reviews, result.adjudication)[0]
    if result.verdict is None or about is None:
        return
    points = POINTS[result.verdict]
    for side in about.sides:
        if side.behaviour is not None:
            yield side.behaviour, points if side.side == "a" else 1 - points, about.question


def _estimate(kind: Kind, source: str, interval: Interval) -> Estimate:
    return Estimate(kind, source, interval.estimate, interval.lower, interval.upper, interval.n)


def _short(digest: Digest) -> str:
    return digest.removeprefix("sha256:")[:SHORT]
