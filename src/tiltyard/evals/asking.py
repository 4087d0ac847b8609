"""Asks one item: turn by turn, through the users' door, each answer at most once."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from tiltyard.client import AnswerStream, ModelClient, Retries, Usage
from tiltyard.client.asking import Asker
from tiltyard.client.conversation import Conversation
from tiltyard.client.likelihood import NotScored
from tiltyard.client.select import by_log_likelihood
from tiltyard.errors import TiltyardError, UpstreamFailed
from tiltyard.evals.answer import CalledFunction, ItemAnswer, ScoredChoice, TurnAnswer
from tiltyard.evals.checks import MultipleChoice
from tiltyard.evals.item import Item
from tiltyard.evals.plan import RunPlan
from tiltyard.identity.canonical import Json

SUBJECT: Final = "tiltyard-eval"
"""The `user` of every request: under its key the words are kept, apart from what people say."""
LINGER_MS: Final = 60_000
"""How long the server goes on with an answer after we are gone; the next sitting finds it in the log."""
KINDLY: Final = Retries(most=4, patience_s=600.0, after_a_cut=True, linger_ms=LINGER_MS)


@dataclass
class Asked:
    """An item's answer, and what it took."""

    answer: ItemAnswer
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    total_ms: float = 0.0
    tries: int = 0
    generations: list[str] = field(default_factory=list)

    def add(self, usage: Usage | None) -> None:
        """Count one answer."""
        if usage is not None:
            self.prompt_tokens += usage.prompt_tokens
            self.cached_tokens += usage.cached_tokens
            self.completion_tokens += usage.completion_tokens


class Questioner:
    """Asks the items of one run; at most `concurrency` requests are open at a time."""

    def __init__(
        self,
        client: ModelClient,
        plan: RunPlan,
        *,
        concurrency: int,
        service_class: str = "batch",
        retries: Retries = KINDLY,
    ) -> None:
        self._plan = plan
        self._asker = Asker(
            client,
            model=plan.contender.alias,
            user=SUBJECT,
            headers={"x-tiltyard-class": service_class},
            retries=retries,
            concurrency=concurrency,
            dialect=None,
        )

    async def answer(self, item: Item, sample: int) -> Asked:
        """Ask every turn of an item, and score the choices of those checks that have some.

        Raises a `TiltyardError` when an answer could not be had, `UpstreamFailed` (`identity_changed`) when another
        identity answered than the run is of.
        """
        began = time.perf_counter()
        asked = Asked(ItemAnswer())
        conversation = Conversation(group=self._plan.key_of(item, sample, 0)[:64])
        if item.system is not None:
            conversation.say("system", item.system)
        turns: list[TurnAnswer] = []
        for turn, text in enumerate(item.turns):
            conversation.say("user", text)
            if item.only_choices and turn == len(item.turns) - 1:
                break
            said, cut = await self._turn(item, sample, turn, conversation.messages)
            asked.add(said.usage)
            asked.tries += said.tries + cut
            asked.generations.append(said.generation)
            calls = tuple(CalledFunction(call["name"], call["arguments"]) for call in said.calls)
            turns.append(TurnAnswer(said.text, calls, said.finish_reason, said.generation))
            if turn < len(item.turns) - 1:
                conversation.say("assistant", said.text)
        choices, why = await self._choices(item, conversation)
        asked.answer = ItemAnswer(tuple(turns), choices, why)
        asked.total_ms = (time.perf_counter() - began) * 1000
        return asked

    async def _turn(
        self, item: Item, sample: int, turn: int, messages: Sequence[Mapping[str, Json]]
    ) -> tuple[AnswerStream, int]:
        """The whole answer, and how many times it was cut before."""
        plan = self._plan
        fields: dict[str, Json] = {
            **plan.settings,
            "max_tokens": plan.max_tokens_of(item),
            "seed": plan.seed_of(item.id, sample, turn),
        }
        if item.tools:
            fields["tools"] = list(item.tools)
        key = plan.key_of(item, sample, turn)
        tries = 0
        while True:
            entered = False
            try:
                async with self._asker.answer(messages, fields, group=key[:64], key=key) as stream:
                    entered = True
                    async for _ in stream:
                        pass
                self._same_identity(stream)
                return stream, tries
            except TiltyardError as error:
                if (
                    not entered or error.code == "identity_changed"
                ):  # what fails before it was tried again already
                    raise
                await self._asker.wait_after(error, tries, keyed=True)
                tries += 1

    def _same_identity(self, stream: AnswerStream) -> None:
        contender = self._plan.contender
        if contender.identified and stream.identity and stream.identity != contender.behaviour:
            raise UpstreamFailed(
                f"{contender.alias} is served as {stream.identity} now; this run is of {contender.behaviour}. "
                "Start again for a run of the new identity.",
                code="identity_changed",
            )

    async def _choices(
        self, item: Item, conversation: Conversation
    ) -> tuple[dict[int, tuple[ScoredChoice, ...]], str]:
        scores: dict[int, tuple[ScoredChoice, ...]] = {}
        for place, check in enumerate(item.checks):
            if isinstance(check, MultipleChoice):
                try:
                    found = await by_log_likelihood(self._asker, conversation, check.choices)
                except NotScored as why:
                    return {}, str(why)
                scores[place] = tuple(ScoredChoice(one.text, one.logprob, one.tokens) for one in found)
        return scores, ""
