"""What a model said to one item: a text or calls for each turn, or a score for each choice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

from tiltyard.identity.canonical import Json, canonical_json


@dataclass(frozen=True, slots=True)
class CalledFunction:
    """A call as the model wrote it; `arguments` is its text."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class TurnAnswer:
    """The answer to one turn."""

    text: str
    calls: tuple[CalledFunction, ...] = ()
    finish_reason: str | None = None
    generation: str = ""


@dataclass(frozen=True, slots=True)
class ScoredChoice:
    """One choice, with the sum of its tokens' log-probabilities in nats."""

    text: str
    logprob: float
    tokens: int


@dataclass(frozen=True, slots=True)
class ItemAnswer:
    """All of it."""

    turns: tuple[TurnAnswer, ...] = ()
    choices: dict[int, tuple[ScoredChoice, ...]] = field(default_factory=dict)
    """By the place of a `multiple_choice` check among the item's checks."""
    no_scores: str = ""
    """Why choices have no scores, if they have none."""

    def at(self, turn: int) -> TurnAnswer:
        """The answer to a turn, from 0, or from the end below it."""
        return self.turns[turn]

    def to_json(self) -> dict[str, Json]:
        """What the model said, and nothing of how long it took or who recorded it; equal for equal outputs."""
        turns: list[Json] = [
            {
                "text": turn.text,
                "calls": [{"name": call.name, "arguments": call.arguments} for call in turn.calls],
                "finish_reason": turn.finish_reason,
            }
            for turn in self.turns
        ]
        choices: dict[str, Json] = {
            # As text: canonical JSON would write 1.0 as 1, and every bit shall count.
            str(place): [
                {"text": one.text, "logprob": one.logprob.hex(), "tokens": one.tokens} for one in scored
            ]
            for place, scored in self.choices.items()
        }
        return {"turns": turns, "choices": choices}

    @property
    def output(self) -> bytes:
        """The same as canonical JSON: the bytes that runs are compared by."""
        return canonical_json(self.to_json())


def answer_of(value: Json, generations: Sequence[str] = ()) -> ItemAnswer:
    """Read what `to_json` wrote."""
    whole = cast(dict[str, Json], value)
    turns = []
    for at, one in enumerate(cast(list[dict[str, Json]], whole["turns"])):
        calls = cast(list[dict[str, str]], one["calls"])
        turns.append(
            TurnAnswer(
                str(one["text"]),
                tuple(CalledFunction(call["name"], call["arguments"]) for call in calls),
                cast(str | None, one["finish_reason"]),
                generations[at] if at < len(generations) else "",
            )
        )
    choices = {
        int(place): tuple(
            ScoredChoice(str(one["text"]), float.fromhex(str(one["logprob"])), cast(int, one["tokens"]))
            for one in cast(list[dict[str, Json]], scored)
        )
        for place, scored in cast(dict[str, Json], whole["choices"]).items()
    }
    return ItemAnswer(tuple(turns), choices)
