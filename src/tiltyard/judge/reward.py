"""Reward scorers: one interface for whatever puts a number on an answer, and the run that makes its numbers events.

A scorer scores sides of items; its scores compare with each other and with nothing else. `preferred` reads two scores as the chance that the first is
better, where the scorer's scale allows it.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, Protocol

import numpy as np
from pydantic import JsonValue

from tiltyard.errors import Conflict, InvalidRequest
from tiltyard.events.log import EventLog
from tiltyard.events.schema import AnswerScored, Side
from tiltyard.identity.canonical import Digest, digest_of_json
from tiltyard.judge.bias import POINTS
from tiltyard.judge.items import Item, ItemSet
from tiltyard.judge.run import SOURCE, item_key, question_key
from tiltyard.rating.calibration_curve import Calibration, calibrate
from tiltyard.rating.logistic import fit_logistic
from tiltyard.rating.proportions import Interval, mean_interval, share_interval

DAY_US = 86_400_000_000
Kind = Literal["likelihood", "http", "preference"]


class Scorer(Protocol):
    """Puts a number on answers; higher is better."""

    @property
    def name(self) -> str:
        """What people call it."""

    @property
    def kind(self) -> Kind:
        """What it is."""

    def specification(self) -> Mapping[str, JsonValue]:
        """All that its numbers depend on; its digest names it."""

    async def score(self, item: Item, side: Side) -> float:
        """Score one answer; raises a `TiltyardError` when it cannot."""


def digest_of_scorer(scorer: Scorer) -> Digest:
    """Name a scorer."""
    return digest_of_json(dict(scorer.specification()))


RIDGE: Final = 1e-3
"""A prior of standard deviation 32 on the slope: nothing, but where a score tells every outcome."""


@dataclass(frozen=True, slots=True)
class Scored:
    """What a run did."""

    asked: int
    known: int


@dataclass(frozen=True, slots=True)
class ScoredBehaviour:
    """One identity by one scorer."""

    scorer: Digest
    scorer_name: str
    behaviour: Digest | None
    identity: str
    mean: Interval
    """Clustered by question."""


@dataclass(frozen=True, slots=True)
class RewardCalibration:
    """A scorer beside people's votes on pairs."""

    votes: int
    accuracy: Interval
    """Share of decided votes in which the preferred answer has the higher score; equal scores are halves."""
    slope: Interval
    """Log-odds of a vote for one standard deviation of the difference of scores."""
    calibration: Calibration
    """Of the chances that the slope gives, on the same votes: the curve to plot."""


async def score_all(
    log: EventLog,
    scorer: Scorer,
    items: ItemSet,
    *,
    concurrency: int = 16,
    report: Callable[[int, int], None] | None = None,
) -> Scored:
    """Score every side of every item that the log does not have, one event each; a run goes on where it was."""
    if concurrency < 1:
        raise InvalidRequest(f"concurrency is {concurrency}; it must be at least 1", param="concurrency")
    digest = digest_of_scorer(scorer)
    todo = {
        f"score:{digest}:{item_key(log, item)}:{side}": (item, side)
        for item in items.items
        for side in item.sides
    }
    known = await asyncio.to_thread(log.known_keys, todo)
    queue = iter([work for key, work in todo.items() if key not in known])
    done = len(known)

    async def work() -> None:
        nonlocal done
        for item, side in queue:  # shared: each worker takes the next one
            score = await scorer.score(item, side)
            if not math.isfinite(score):
                raise InvalidRequest(
                    f"{scorer.name} scored {item.id!r} as {score}; a score is a number", param="score"
                )
            answer = item.sides[side]
            data = AnswerScored(
                scorer=digest,
                scorer_name=scorer.name,
                kind=scorer.kind,
                item=item_key(log, item),
                item_id=item.id,
                question=question_key(log, item),
                side=side,
                identity=answer.identity,
                behaviour=answer.behaviour,
                generations=answer.generations,
                score=score,
                slices=dict(item.slices),
            )
            with contextlib.suppress(Conflict):  # another run of the same scorer was first
                await log.append(data, subject=digest, source=SOURCE)
            done += 1
            if report is not None:
                report(done, len(todo))

    async with asyncio.TaskGroup() as group:
        for _ in range(min(concurrency, len(todo))):
            group.create_task(work())
    return Scored(len(todo) - len(known), len(known))


@dataclass(frozen=True, slots=True)
class RecordedScore:
    """One score and when it was given."""

    data: AnswerScored
    time_us: int


Scores = Mapping[tuple[str, Side], RecordedScore]
"""Of one scorer, by item and side."""


@dataclass(frozen=True, slots=True)
class ScoreWindow:
    """Whole days (UTC) in which answers were scored."""

    start_us: int
    mean: Interval
    drift: Interval
    """This window's mean minus the first one's, in standard deviations of the first: what a scorer or its world moved."""


def read_scores(log: EventLog, scorer: Digest) -> dict[tuple[str, Side], RecordedScore]:
    """The scores of one scorer by item and side; blocks."""
    found: dict[tuple[str, Side], RecordedScore] = {}
    for event in log.read(types=(AnswerScored,), subject=scorer):
        if isinstance(event.data, AnswerScored):
            found[event.data.item, event.data.side] = RecordedScore(event.data, event.time_us)
    return found


def score_trend(
    scores: Iterable[RecordedScore], *, days: int = 7, confidence: float = 0.95
) -> list[ScoreWindow]:
    """Mean scores by window, oldest first, each beside the first: drift."""
    windows: dict[int, list[AnswerScored]] = {}
    for one in scores:
        windows.setdefault(one.time_us // (days * DAY_US), []).append(one.data)
    found: list[ScoreWindow] = []
    first: Interval | None = None
    spread = 1.0
    for number, inside in sorted(windows.items()):
        values = [one.score for one in inside]
        mean = mean_interval(values, clusters=[one.question for one in inside], confidence=confidence)
        half = 0.0  # the first window beside itself has not moved; the others are independent of it
        if first is None:
            first, spread = mean, float(np.std(values)) or 1.0
        else:
            half = math.hypot(mean.half, first.half) / spread
        shift = (mean.estimate - first.estimate) / spread
        drift = Interval(shift, shift - half, shift + half, mean.n, mean.clusters)
        found.append(ScoreWindow(number * days * DAY_US, mean, drift))
    return found


def scored_behaviours(scores: Scores, *, confidence: float = 0.95) -> list[ScoredBehaviour]:
    """Mean score of each identity, the best first; all scores are of one scorer, as `read_scores` gives them."""
    by: dict[str, list[AnswerScored]] = {}
    for one in scores.values():
        by.setdefault(one.data.behaviour or one.data.identity, []).append(one.data)
    rows = [
        ScoredBehaviour(
            of[0].scorer,
            of[0].scorer_name,
            of[0].behaviour,
            of[0].identity,
            mean_interval(
                [one.score for one in of], clusters=[one.question for one in of], confidence=confidence
            ),
        )
        for of in by.values()
    ]
    return sorted(rows, key=lambda row: -row.mean.estimate)


def calibrate_scores(
    scores: Scores,
    people: Mapping[str, Sequence[str]],
    *,
    confidence: float = 0.95,
) -> RewardCalibration:
    """Set differences of scores beside votes (`a`, `b`, `tie`, `both_bad`) by item; raises `InvalidRequest` without votes."""
    rows = [
        (
            scores[item, "a"].data.score - scores[item, "b"].data.score,
            POINTS[vote],
            scores[item, "a"].data.question,
        )
        for item, votes in people.items()
        if (item, "a") in scores and (item, "b") in scores
        for vote in votes
    ]
    if not rows:
        raise InvalidRequest("people voted on none of the pairs that were scored", param="items")
    differences = np.array([difference for difference, _, _ in rows])
    votes = np.array([vote for _, vote, _ in rows])
    questions = [question for _, _, question in rows]
    spread = float(np.sqrt((differences**2).mean())) or 1.0
    design = (differences / spread)[:, None]
    fit = fit_logistic(design, votes, ridge=RIDGE, clusters=questions)
    decided = np.flatnonzero(votes != 0.5)  # exact: a tie is this half
    right = np.where(differences == 0, 0.5, (differences > 0) == (votes > 0.5))
    return RewardCalibration(
        votes=len(rows),
        accuracy=share_interval(
            right[decided], clusters=[questions[int(row)] for row in decided], confidence=confidence
        ),
        slope=fit.interval(0, confidence=confidence),
        calibration=calibrate(fit.chances(design), votes, clusters=questions, confidence=confidence),
    )
