r"""A small preference model of the arena's own votes: features of an answer, and logistic Bradley-Terry.

    log-odds that a is preferred = w . (phi(question, a) - phi(question, b)) / scales

with a Gaussian prior on w whose strength is chosen out of fold, folds by question. Chances are divided by a temperature, fitted to
out-of-fold votes, so that they hold. It is no judge of truth: it says which of two answers looks like what people here vote for, costs nothing,
and is there for drift and as a canary's first look. `PreferenceModelTrained` is the model, with the lineage to its votes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from pydantic import JsonValue

from tiltyard.errors import InvalidRequest
from tiltyard.events.log import EventLog
from tiltyard.events.schema import PreferenceModelTrained, Side, SubjectErased, VoteCast
from tiltyard.identity.canonical import Digest, digest_of_json
from tiltyard.judge.bias import POINTS
from tiltyard.judge.items import Item
from tiltyard.judge.reward import Kind
from tiltyard.judge.run import SOURCE
from tiltyard.rating.calibration_curve import Calibration, calibrate
from tiltyard.rating.logistic import fit_logistic, logistic
from tiltyard.rating.proportions import Interval, share_interval
from tiltyard.rating.refusal import refuses
from tiltyard.rating.style import style_of

METHOD: Final = "preference-features/2"  # 2: refusals as `rating/refusal.py` tells them
FEATURES: Final = (
    "log_words",
    "headers",
    "bold",
    "list_items",
    "code_blocks",
    "overlap_with_question",
    "repetition",
    "refusal",
    "ends_whole",
    "script_differs",
)
RIDGES: Final = (0.3, 1.0, 3.0, 10.0, 30.0)
FOLDS: Final = 5
LEAST_VOTES: Final = 50
_WORD: Final = re.compile(r"[\w']+")
_WIDE: Final = re.compile(r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff]")


def features_of(question: str, answer: str) -> tuple[float, ...]:
    """What the model sees of an answer, in the order of `FEATURES`."""
    style = style_of(answer)
    words = [word.lower() for word in _WORD.findall(answer)] or [""]
    asked = {word.lower() for word in _WORD.findall(question) if len(word) > 3}
    return (
        math.log1p(style.length),
        math.log1p(style.headers),
        math.log1p(style.bold),
        math.log1p(style.lists),
        math.log1p(answer.count("```") // 2),
        len(asked & set(words)) / len(asked) if asked else 0.0,
        1 - len(set(words)) / len(words),
        float(refuses(answer)),
        float(answer.rstrip()[-1:] in set(".!?。！？`)]}\"'|*") if answer.strip() else 0.0),
        float(bool(_WIDE.search(question)) != bool(_WIDE.search(answer))),
    )


@dataclass(frozen=True, slots=True)
class PreferenceModel:
    """A trained model; also a reward scorer, whose scores are log-odds against an answer of no features."""

    trained: PreferenceModelTrained
    kind: Kind = "preference"

    @property
    def name(self) -> str:
        """Method and digest."""
        return f"{self.trained.method}@{self.trained.model.removeprefix('sha256:')[:12]}"

    def specification(self) -> Mapping[str, JsonValue]:
        """The model itself."""
        return {"kind": self.kind, "model": self.trained.model}

    async def score(self, item: Item, side: Side) -> float:
        """Score one answer; the difference of two is the log-odds that people prefer the first."""
        return self.score_of(item, side)

    def score_of(self, item: Item, side: Side) -> float:
        """The same without waiting for anybody."""
        features = _features(item, side)
        weights = np.array(self.trained.weights) / np.array(self.trained.scales)
        return float(features @ weights) / self.trained.temperature

    def preference(self, item: Item) -> float:
        """The chance that people prefer side a, a tie as half."""
        difference = self.score_of(item, "a") - self.score_of(item, "b")
        return float(logistic(np.array([difference]))[0])


@dataclass(frozen=True, slots=True)
class Training:
    """A model, and what it is worth on votes that it was not fitted to."""

    model: PreferenceModel
    accuracy: Interval
    """Share of decided votes foretold; clustered by question."""
    calibration: Calibration
    """Out of fold: the curve to plot."""


def train(items: Sequence[Item], *, first_sequence: int, last_sequence: int, seed: int = 0) -> Training:
    """Train on the votes (`people`) of items; raises `InvalidRequest` for fewer than 50 votes, or of fewer than 5 questions."""
    rows = [
        (_features(item, "a") - _features(item, "b"), POINTS[vote], "\0".join(item.turns))
        for item in items
        if item.mode == "pairwise"
        for vote in item.people
        if isinstance(vote, str)
    ]
    questions = [question for _, _, question in rows]
    if len(rows) < LEAST_VOTES or len(set(questions)) < FOLDS:
        raise InvalidRequest(
            f"there are {len(rows)} votes on {len(set(questions))} questions; a preference model needs {LEAST_VOTES} "
            f"votes on {FOLDS}",
            param="items",
        )
    raw = np.array([difference for difference, _, _ in rows])
    votes = np.array([vote for _, vote, _ in rows])
    spread = np.sqrt((raw**2).mean(axis=0))
    scales = np.where(spread > 0, spread, 1.0)
    design = raw / scales
    folds = _folds(questions, seed)
    losses = {ridge: _log_loss(_out_of_fold(design, votes, folds, ridge), votes) for ridge in RIDGES}
    ridge = min(losses, key=losses.__getitem__)
    log_odds = _out_of_fold(design, votes, folds, ridge)
    temperature = _temperature(log_odds, votes)
    chances = logistic(log_odds / temperature)
    decided = np.flatnonzero((votes == 0) | (votes == 1))
    right = np.where(log_odds == 0, 0.5, (log_odds > 0) == (votes > 0.5))
    accuracy = share_interval(right[decided], clusters=[questions[int(row)] for row in decided])
    calibration = calibrate(chances, votes, clusters=questions)
    weights = fit_logistic(design, votes, ridge=ridge, clusters=questions).coefficients
    battles = digest_of_json(sorted(item.id for item in items if item.people))
    facts: dict[str, JsonValue] = {
        "method": METHOD,
        "features": list(FEATURES),
        "weights": [float(one) for one in weights],
        "scales": [float(one) for one in scales],
        "temperature": temperature,
        "ridge": ridge,
        "votes": len(rows),
        "battles": battles,
        "first_sequence": first_sequence,
        "last_sequence": last_sequence,
    }
    trained = PreferenceModelTrained.model_validate({
        **facts,
        "model": digest_of_json(facts),
        "accuracy": accuracy.estimate,
        "brier": calibration.brier.estimate,
        "brier_of_ignorance": float(((votes - 0.5) ** 2).mean()),
        "gap": calibration.gap,
    })  # fmt: skip
    return Training(PreferenceModel(trained), accuracy, calibration)


def record_training(log: EventLog, training: Training) -> None:
    """Append the model to the log; blocks."""
    data = training.model.trained
    log.append_blocking(data, subject=data.model, source=SOURCE)


def latest_model(log: EventLog, model: Digest | None = None) -> PreferenceModel:
    """The newest model of a log, or the one with a digest; raises `InvalidRequest` when there is none.

    One of an earlier method cannot be used, since its weights belong to features that are told otherwise now.
    """
    for event in log.read(types=(PreferenceModelTrained,), newest_first=True):
        trained = event.data
        if isinstance(trained, PreferenceModelTrained) and model in (None, trained.model):
            if trained.method != METHOD:
                raise InvalidRequest(
                    f"{trained.model} was trained on {trained.method}; this version scores by {METHOD}: "
                    "train one with `tiltyard judge train`",
                    param="scorer",
                )
            return PreferenceModel(trained)
    raise InvalidRequest(
        "the log has no such preference model; train one with `tiltyard judge train`", param="scorer"
    )


def erased_since(log: EventLog, model: PreferenceModel) -> set[str]:
    """Voters whose votes are in the lineage and who were erased after the training: it has to be trained again."""
    trained = model.trained
    voters = {
        event.data.voter
        for event in log.read(after=trained.first_sequence - 1, types=(VoteCast,))
        if isinstance(event.data, VoteCast) and event.sequence <= trained.last_sequence
    }
    erased = {
        event.data.erased
        for event in log.read(after=trained.last_sequence, types=(SubjectErased,))
        if isinstance(event.data, SubjectErased)
    }
    return voters & erased


def _features(item: Item, side: Side) -> NDArray[np.float64]:
    """Means over turns."""
    turns = zip(item.turns, item.sides[side].texts, strict=True)
    means = np.array([features_of(said, answer) for said, answer in turns]).mean(axis=0)
    return np.asarray(means, dtype=np.float64)


def _folds(questions: Sequence[str], seed: int) -> NDArray[np.intp]:
    """A fold for each vote; votes on one question share one."""
    names = sorted(set(questions))
    drawn = np.random.default_rng(seed).permutation(len(names)) % FOLDS
    place = dict(zip(names, drawn, strict=True))
    return np.array([place[question] for question in questions], dtype=np.intp)


def _out_of_fold(
    design: NDArray[np.float64], votes: NDArray[np.float64], folds: NDArray[np.intp], ridge: float
) -> NDArray[np.float64]:
    log_odds = np.zeros(len(votes))
    for fold in range(FOLDS):
        held = folds == fold
        if held.any() and not held.all():
            fit = fit_logistic(design[~held], votes[~held], ridge=ridge)
            log_odds[held] = design[held] @ fit.coefficients
    return log_odds


def _log_loss(log_odds: NDArray[np.float64], votes: NDArray[np.float64]) -> float:
    return float((np.logaddexp(0, log_odds) - votes * log_odds).mean())


def _temperature(log_odds: NDArray[np.float64], votes: NDArray[np.float64]) -> float:
    """By which to divide; a slope that is not positive foretells nothing, and chances become one half."""
    if not log_odds.any():
        return 1.0
    slope = float(fit_logistic(log_odds[:, None], votes, ridge=1e-6).coefficients[0])
    return 1 / slope if slope > 1e-3 else 1e3
