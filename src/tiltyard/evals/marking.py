"""Marks an answer by its item's checks: one place where each kind meets the code that carries it out."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from tiltyard.evals.answer import ItemAnswer
from tiltyard.evals.checks import (
    Check,
    Code,
    Contains,
    Exact,
    Expert,
    Instruction,
    JsonSchema,
    Language,
    MultipleChoice,
    Numeric,
    PiiLeak,
    Refusal,
    Regex,
    Rubric,
    ToolCall,
)
from tiltyard.evals.code_check import check_code
from tiltyard.evals.item import Item
from tiltyard.evals.pii import check_pii
from tiltyard.evals.refusal import check_refusal
from tiltyard.evals.structured_checks import check_json, check_tool_calls
from tiltyard.evals.text_checks import (
    check_contains,
    check_exact,
    check_instruction,
    check_language,
    check_numeric,
    check_regex,
)
from tiltyard.evals.verdict import Verdict
from tiltyard.identity.canonical import Json


@dataclass(frozen=True, slots=True)
class Graded:
    """What a judge or an expert says of an answer."""

    score: float | None
    """Share of the rubric's scale, 0 to 1; `None`: unscored."""
    code: str | None = None
    """Why there is no score: `no_verdict`, `cut`."""
    why: str = ""
    """The raw words."""


class Grader(Protocol):
    """A judge model or a desk of experts; `cli` hands one in, so that this room needs to know neither.

    It must be idempotent by `key`: asked again after a crash, it gives the same verdict without judging anew.
    """

    @property
    def name(self) -> str:
        """Names who grades, by a digest: verdicts of two judges never meet in one run."""
        ...

    async def grade(self, check: Rubric | Expert, item: Item, answer: ItemAnswer, *, key: str) -> Graded:
        """Grade one answer; `key` names item, identity and sample."""
        ...


class Marker:
    """Carries out checks. Code runs only if allowed; judges and experts only if there are some."""

    def __init__(
        self, *, allow_code: bool = False, judge: Grader | None = None, experts: Grader | None = None
    ) -> None:
        self._allow_code = allow_code
        self._judge = judge
        self._experts = experts

    def terms(self, items: Iterable[Item]) -> dict[str, Json]:
        """What these items' checks leave open, as it is decided here; runs that differ in it are two runs."""
        kinds = {check.kind for item in items for check in item.checks}
        terms: dict[str, Json] = {}
        if "code" in kinds:
            terms["code"] = self._allow_code
        for kind, grader in (("judge", self._judge), ("expert", self._experts)):
            if kind in kinds:
                terms[kind] = None if grader is None else grader.name
        return terms

    async def mark(self, item: Item, answer: ItemAnswer, *, key: str) -> tuple[Verdict, ...]:
        """One verdict for each check, in their order."""
        return tuple(
            [await self._one(place, check, item, answer, key) for place, check in enumerate(item.checks)]
        )

    async def _one(self, place: int, check: Check, item: Item, answer: ItemAnswer, key: str) -> Verdict:
        if isinstance(check, MultipleChoice):
            return check_choice(check, place, answer)
        said = answer.at(check.turn)
        match check:
            case Exact():
                return check_exact(check, said.text)
            case Contains():
                return check_contains(check, said.text)
            case Regex():
                return await asyncio.to_thread(check_regex, check, said.text)
            case Numeric():
                return check_numeric(check, said.text)
            case Language():
                return check_language(check, said.text)
            case Instruction():
                return check_instruction(check, said.text)
            case JsonSchema():
                return check_json(check, said.text)
            case ToolCall():
                return check_tool_calls(check, said.calls)
            case Refusal():
                return check_refusal(check, said.text)
            case PiiLeak():
                return check_pii(check, said.text)
            case Code():
                return await asyncio.to_thread(check_code, check, said.text, allowed=self._allow_code)
            case Rubric():
                return await _graded(self._judge, "no_judge", check, item, answer, key)
            case Expert():
                return await _graded(self._experts, "no_review", check, item, answer, key)


def check_choice(check: MultipleChoice, place: int, answer: ItemAnswer) -> Verdict:
    """Whether the right choice is the likeliest; choices without scores leave the item unscored."""
    scored = answer.choices.get(place)
    if scored is None:
        return Verdict.unscored("multiple_choice", "no_log_probabilities", answer.no_scores)
    values = [one.logprob / one.tokens if check.normalize == "mean" else one.logprob for one in scored]
    best = max(range(len(values)), key=values.__getitem__)
    told = ", ".join(f"{one.text[:40]!r} {value:.3f}" for one, value in zip(scored, values, strict=True))
    return Verdict.of("multiple_choice", best == check.answer, "other", told)


async def _graded(  # noqa: PLR0917  # what `Grader.grade` takes, and who grades
    grader: Grader | None, lacking: str, check: Rubric | Expert, item: Item, answer: ItemAnswer, key: str
) -> Verdict:
    if grader is None:
        return Verdict.unscored(check.kind, lacking)
    graded = await grader.grade(check, item, answer, key=key)
    if graded.score is None or not isinstance(check, Rubric) or check.at_least is None:
        return Verdict(check.kind, graded.score, graded.code, graded.why)
    return Verdict.of(check.kind, graded.score >= check.at_least, "below", graded.why)
