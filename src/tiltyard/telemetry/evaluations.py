"""What the log says of how good generations were, as OpenTelemetry's `gen_ai.evaluation.result` events.

Made from the log's events alone, so that they are the same whether they are sent as they happen or years later. Each belongs to
the span of the generation that it is about, as far as the log knows it, and names the generation in any case. No words, no
voter, no expert: scores, labels and who judged.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, Literal, NamedTuple

from tiltyard.events.envelope import StoredEvent
from tiltyard.events.log import EventLog
from tiltyard.events.schema import (
    AnswerScored,
    Choice,
    EvalItemFinished,
    EvalItemReviewed,
    EvalRunStarted,
    EvalVerdict,
    EventData,
    GenerationFinished,
    JudgedSide,
    JudgmentMade,
    ReviewGiven,
    RubricRegistered,
    Side,
    VoteCast,
)
from tiltyard.telemetry import genai
from tiltyard.telemetry.trace_context import TraceParent, read_trace
from tiltyard.telemetry.tracing import Attribute

TYPES: Final[tuple[type[EventData], ...]] = (
    JudgmentMade,
    EvalItemFinished,
    EvalItemReviewed,
    VoteCast,
    AnswerScored,
    ReviewGiven,
)
"""Events that say how good an answer was."""
Source = Literal["judge", "fixed_set", "vote", "reward", "expert"]
POINTS: Final[Mapping[str, float]] = {"won": 1.0, "lost": 0.0, "tie": 0.5, "both_bad": 0.0}


class EvaluationResult(NamedTuple):
    """One `gen_ai.evaluation.result`."""

    event: StoredEvent
    """Where it comes from."""
    trace: TraceParent | None
    """The span of the generation, where the log knows it."""
    attributes: Mapping[str, Attribute]
    """Under current names."""


class _Found(NamedTuple):
    name: str
    source: Source
    by: str
    generations: tuple[str, ...]
    model: str
    score: float | None
    label: str | None = None
    error: str | None = None
    more: Mapping[str, Attribute] = {}


class _Run(NamedTuple):
    set_name: str
    alias: str


class Evaluations:
    """Reads what a log's events mean; one for each log. Blocks."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._rubrics: dict[str, str] = {}
        self._runs: dict[str, _Run] = {}

    def results(self, events: Iterable[StoredEvent]) -> Iterator[EvaluationResult]:
        """The results in some events, in their order; about answers of which no generation is known there are none."""
        for event in events:
            for found in self._found(event.data):
                if generations := tuple(filter(None, found.generations)):
                    yield self._result(event, found, generations)

    def _result(self, event: StoredEvent, found: _Found, generations: tuple[str, ...]) -> EvaluationResult:
        judged = generations[-1]  # of a conversation, the answer by which the verdict came
        attributes: dict[str, Attribute | None] = {
            genai.EVALUATION_NAME: found.name,
            genai.SCORE: found.score,
            genai.LABEL: found.label,
            genai.RESPONSE_ID: judged,
            genai.RESPONSE_MODEL: found.model,
            genai.PROVIDER: genai.OUR_NAME,
            genai.ERROR: found.error,
            "tiltyard.evaluation.source": found.source,
            "tiltyard.evaluation.by": found.by,
            "tiltyard.evaluation.generations": generations if len(generations) > 1 else None,
            "tiltyard.event.id": event.id,
            **found.more,
        }
        stored = self._log.find(GenerationFinished, subject=judged)
        trace = read_trace((stored.traceparent if stored else None) or "")
        said = {name: value for name, value in attributes.items() if value not in (None, "")}
        return EvaluationResult(event, trace, said)

    def _found(self, data: EventData) -> Iterator[_Found]:
        match data:
            case JudgmentMade():
                if data.purpose != "attack":  # an item that was spoiled on purpose is nobody's answer
                    yield from self._judgment(data)
            case VoteCast():
                more: dict[str, Attribute] = {"tiltyard.battle": data.battle}
                for side, generations, model in (
                    ("a", data.generations_a, data.identity_a),
                    ("b", data.generations_b, data.identity_b),
                ):
                    label = _label(data.choice, "a" if side == "a" else "b")
                    yield _Found(
                        "human_vote", "vote", "voter", generations, model, POINTS[label], label, more=more
                    )
            case AnswerScored():
                yield _Found(
                    *(data.scorer_name, "reward", data.scorer_name, data.generations, data.identity),
                    score=data.score,
                    more={"tiltyard.item": data.item_id, "tiltyard.scorer": data.scorer},
                )
            case ReviewGiven():
                name = "adjudication" if data.adjudicates else "expert_review"
                for judged in data.sides:
                    yield _sided(judged, data)._replace(name=name, source="expert", by=data.role)
            case EvalItemFinished() | EvalItemReviewed():
                yield from self._item(data)

    def _judgment(self, data: JudgmentMade) -> Iterator[_Found]:
        more: dict[str, Attribute] = {
            "tiltyard.judge": data.judge,
            "tiltyard.rubric": data.rubric,
            "tiltyard.item": data.item_id,
            "tiltyard.judgment.order": data.order,
        }
        name = self._rubric(data.rubric)
        for side in data.sides:
            found = _sided(side, data)
            yield found._replace(name=name, by=data.judge_name, error=data.unscored, more=more)

    def _item(self, data: EvalItemFinished | EvalItemReviewed) -> Iterator[_Found]:
        run = self._run(data.run)
        generations = (
            data.generations
            if isinstance(data, EvalItemFinished)
            else self._generations_of(data.run, data.item, data.sample)
        )
        more: dict[str, Attribute] = {
            "tiltyard.eval.run": data.run,
            "tiltyard.item": data.item,
            "tiltyard.eval.sample": data.sample,
        }
        own_error = data.error if isinstance(data, EvalItemFinished) else None
        whole = EvalVerdict(kind="", score=data.score, code=own_error or _first_code(data.verdicts))
        checks = data.verdicts if len(data.verdicts) > 1 else ()
        for verdict in (whole, *checks):
            name = run.set_name if not verdict.kind else f"{run.set_name}/{verdict.kind}"
            score = verdict.score
            label = None if score is None else "pass" if score == 1 else "fail" if score == 0 else "partial"
            error = (verdict.code or "unscored") if score is None else None
            by = "experts" if isinstance(data, EvalItemReviewed) else "checks"
            yield _Found(name, "fixed_set", by, generations, run.alias, score, label, error, more)

    def _rubric(self, digest: str) -> str:
        if digest not in self._rubrics:
            for event in self._log.read(types=(RubricRegistered,)):
                if isinstance(event.data, RubricRegistered):
                    self._rubrics[event.data.rubric] = event.data.name
        return self._rubrics.get(digest, digest)

    def _run(self, run: str) -> _Run:
        if run not in self._runs:
            stored = self._log.find(EvalRunStarted, subject=run)
            data = None if stored is None else stored.data
            if isinstance(data, EvalRunStarted):
                self._runs[run] = _Run(data.set_name, data.alias)
        return self._runs.get(run, _Run(run, ""))

    def _generations_of(self, run: str, item: str, sample: int) -> tuple[str, ...]:
        for event in self._log.read(types=(EvalItemFinished,), subject=run, newest_first=True):
            data = event.data
            if isinstance(data, EvalItemFinished) and (data.item, data.sample) == (item, sample):
                return data.generations
        return ()


def _sided(side: JudgedSide, said: JudgmentMade | ReviewGiven) -> _Found:
    """What a verdict about a pair, or the rating of a single answer, says of one of the answers."""
    label = None if said.verdict is None else _label(said.verdict, side.side)
    value = said.score if label is None else POINTS[label]
    return _Found("", "judge", "", side.generations, side.identity, value, label)


def _label(choice: Choice, side: Side) -> str:
    if choice in ("tie", "both_bad"):
        return choice
    return "won" if choice == side else "lost"


def _first_code(verdicts: Iterable[EvalVerdict]) -> str | None:
    return next((verdict.code for verdict in verdicts if verdict.score is None and verdict.code), None)
