"""A judge's verdict as a number: how likely the model finds each verdict, instead of the one that it says.

The verdicts of a rubric are scored by log-likelihood on a server that scores prompts (tiltyard, vLLM), nothing is drawn. For a single answer the score is
the expected rating, `sum_k k P(k)`; for a pair `preference` is the chance of the first, a tie as half, averaged over both orders.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from pydantic import JsonValue

from tiltyard.client import Program
from tiltyard.errors import InvalidRequest
from tiltyard.events.schema import Side
from tiltyard.judge.fence import write_question
from tiltyard.judge.items import Item, SideOrder
from tiltyard.judge.judges import Judge
from tiltyard.judge.reward import Kind
from tiltyard.judge.rubric import Rubric


class LikelihoodScorer:
    """One model under one rubric that asks for a verdict without reasons."""

    kind: Kind = "likelihood"

    def __init__(self, program: Program, judge: Judge, rubric: Rubric) -> None:
        if rubric.form == "two_scores":
            raise InvalidRequest(
                f"rubric {rubric.name!r} asks for two scores; likelihoods need letters or a rating",
                param="rubric",
            )
        self.name = f"{judge.name}, likelihood of {rubric.name}"
        self._program = program
        self._judge = judge
        self._rubric = rubric

    def specification(self) -> Mapping[str, JsonValue]:
        """Judge and rubric."""
        return {
            "kind": self.kind,
            "judge": {**self._judge.specification(), "held": "likelihood"},
            "rubric": self._rubric.digest,
        }

    async def score(self, item: Item, side: Side) -> float:
        """The expected rating of an answer, or the log-odds that this side of a pair is better."""
        if self._rubric.mode == "pairwise":
            chance = await self.preference(item)
            log_odds = math.log(max(chance, 1e-12)) - math.log(max(1 - chance, 1e-12))
            return log_odds if side == "a" else -log_odds
        alone = item if item.mode == "single" else _alone(item, side)
        steps = range(int(self._rubric.lowest), int(self._rubric.highest) + 1)
        chances = await self._chances(alone, "single", tuple(f"[[{step}]]" for step in steps))
        return sum(step * chance for step, chance in zip(steps, chances, strict=True))

    async def preference(self, item: Item) -> float:
        """The chance that side a is better, a tie as half, the mean of both orders; pairs only."""
        tokens = self._rubric.tokens
        total = 0.0
        orders: tuple[SideOrder, SideOrder] = ("ab", "ba")
        for order in orders:
            first, second, *tie = await self._chances(item, order, tokens)
            chance = first if order == "ab" else second
            total += chance + sum(tie) / 2
        return total / 2

    async def _chances(self, item: Item, order: SideOrder, choices: tuple[str, ...]) -> list[float]:
        prompt = self._program.prompt()
        for message in write_question(self._rubric, item, order).messages:
            text = str(message["content"])
            prompt = prompt.system(text) if message["role"] == "system" else prompt.user(text)
        await prompt.select("verdict", choices, normalize="sum", exact=True)
        logprobs = [score.logprob for score in prompt.step("verdict").scores]
        most = max(logprobs)
        weights = [math.exp(logprob - most) for logprob in logprobs]
        return [weight / sum(weights) for weight in weights]


def _alone(item: Item, side: Side) -> Item:
    return Item(item.id, item.turns, {"a": item.sides[side]}, item.reference, item.slices, (), item.subject)
