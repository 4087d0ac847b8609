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
from tiltyard.evals.structured_checks import check_tool_calls
from tiltyard.evals.text_checks import (
    check_contains,
    check_exact,
    check_instruction,
    check_language,
    check_numeric,
)
from tiltyard.evals.trial import Trial
from tiltyard.evals.verdict import AWAITING, Verdict
from tiltyard.identity.canonical import Digest, Json


@dataclass(frozen=True, slots=True)
class Graded:
    """What a judge or an expert says of an answer."""

    score: float | None
    """Share of the rubric's scale, 0 to 1; `None`: unscored."""
    code: str | None = None
    """Why there is no score: `no_verdict`, `cut`."""
    why: str = ""
    """The raw words."""
    reviewed: str = ""
    """Under which key experts' reviews are in the log."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where an answer that is graded comes from; graders show none of it to whoever decides."""

    key: str
    """Names item, identity, settings and sample."""
    alias: str
    behaviour: Digest


@dataclass(frozen=True, slots=True)
class Reviewed:
    """An answer's verdicts once experts were asked about it again."""

    verdicts: tuple[Verdict, ...]
    reviewed: tuple[str, ...]
    """Under which keys the reviews are in the log."""

    @property
    def open(self) -> bool:
        """Whether somebody has to decide still."""
        return any(one.code == AWAITING for one in self.verdicts)


class Grader(Protocol):
    """A judge model or a desk of experts; `cli` hands one in, so that this room needs to know neither.

    It must be idempotent: asked again after a crash, it gives the same verdict without judging anew.
    """

    @property
    def name(self) -> str:
        """Names who grades, by a digest: verdicts of two judges never meet in one run."""
        ...

    async def grade(
        self, check: Rubric | Expert, item: Item, answer: ItemAnswer, *, origin: Origin
    ) -> Graded:
        """Grade one answer."""
        ...


class Marker:
    """Carries out checks. Code runs only if allowed; judges and experts only if there are some."""

    def __init__(
        self, *, allow_code: bool = False, judge: Grader | None = None, experts: Grader | None = None
    ) -> None:
        self._allow_code = allow_code
        self._judge = judge
        self._experts = experts
        self._trial = Trial()

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

    async def mark(self, item: Item, answer: ItemAnswer, *, origin: Origin) -> tuple[Verdict, ...]:
        """One verdict for each check, in their order. Experts are asked last, and only where nothing is surely wrong."""
        found: dict[int, Verdict] = {}
        for place, check in enumerate(item.checks):
            if not isinstance(check, Expert):
                found[place] = await self._one(place, check, item, answer, origin)
        wrong = any(one.score == 0.0 for one in found.values())
        for place, check in enumerate(item.checks):
            if isinstance(check, Expert):
                found[place] = (
                    Verdict.unscored(check.kind, "not_needed", "wrong without asking anybody")
                    if wrong
                    else await self._expert(check, item, answer, origin, [])
                )
        return tuple(found[place] for place in range(len(item.checks)))

    async def review(
        self, item: Item, answer: ItemAnswer, verdicts: tuple[Verdict, ...], *, origin: Origin
    ) -> Reviewed:
        """Ask experts again for what they had not decided; every other verdict stays."""
        keys: list[str] = []
        found = [
            await self._expert(check, item, answer, origin, keys)
            if isinstance(check, Expert) and self._experts is not None and before.code == AWAITING
            else before
            for check, before in zip(item.checks, verdicts, strict=True)
        ]
        return Reviewed(tuple(found), tuple(keys))

    async def _expert(
        self, check: Expert, item: Item, answer: ItemAnswer, origin: Origin, keys: list[str]
    ) -> Verdict:
        if self._experts is None:
            return Verdict.unscored(check.kind, "no_review")
        graded = await self._experts.grade(check, item, answer, origin=origin)
        if graded.reviewed:
            keys.append(graded.reviewed)
        return _verdict(check, graded)

    async def _one(self, place: int, check: Check, item: Item, answer: ItemAnswer, origin: Origin) -> Verdict:
        if isinstance(check, MultipleChoice):
            return check_choice(check, place, answer)
        said = answer.at(check.turn)
        match check:
            case Exact():
                return check_exact(check, said.text)
            case Contains():
                return check_contains(check, said.text)
            case Regex() | JsonSchema():
                return await asyncio.to_thread(self._trial.check, check, said.text)
            case Numeric():
                return check_numeric(check, said.text)
            case Language():
                return check_language(check, said.text)
            case Instruction():
                return check_instruction(check, said.text)
            case ToolCall():
                return check_tool_calls(check, said.calls)
            case Refusal():
                return check_refusal(check, said.text)
            case PiiLeak():
                return check_pii(check, said.text)
            case Code():
                return await asyncio.to_thread(check_code, check, said.text, allowed=self._allow_code)
            case Rubric():
                if self._judge is None:
                    return Verdict.unscored(check.kind, "no_judge")
                return _verdict(check, await self._judge.grade(check, item, answer, origin=origin))
            case Expert():
                return await self._expert(check, item, answer, origin, [])


def check_choice(check: MultipleChoice, place: int, answer: ItemAnswer) -> Verdict:
    """Whether the right choice is the likeliest; choices without scores leave the item unscored."""
    scored = answer.choices.get(place)
    if scored is None:
        return Verdict.unscored("multiple_choice", "no_log_probabilities", answer.no_scores)
    values = [one.logprob / one.tokens if check.normalize == "mean" else one.logprob for one in scored]
    best = max(range(len(values)), key=values.__getitem__)
    told = ", ".join(f"{one.text[:40]!r} {value:.3f}" for one, value in zip(scored, values, strict=True))
    return Verdict.of("multiple_choice", best == check.answer, "other", told)


def _verdict(check: Rubric | Expert, graded: Graded) -> Verdict:
    if graded.score is None or check.at_least is None:
        return Verdict(check.kind, graded.score, graded.code, graded.why)
    return Verdict.of(check.kind, graded.score >= check.at_least, "below", graded.why)
