"""Bring a battle back from the log and the vault, after a restart or when memory has let it go."""

from __future__ import annotations

import asyncio
from typing import TypedDict

import orjson

from tiltyard.arena.transcript import SIDES, Answer, Battle, CastVote, Turn, Voided
from tiltyard.arena.troubles import INCOMPLETE, INTERRUPTED, TROUBLES, WORDS_GONE
from tiltyard.errors import ContentMissing, NotFound
from tiltyard.events.envelope import StoredEvent
from tiltyard.events.log import EventLog
from tiltyard.events.schema import (
    BattleOpened,
    BattleShared,
    BattleTurnFinished,
    BattleTurnStarted,
    BattleVoided,
    ContentRef,
    FinishReason,
    VoteCast,
    VoteWithdrawn,
)


class _StoredChoice(TypedDict):
    index: int
    text: str


class _StoredResponse(TypedDict):
    choices: list[_StoredChoice]


async def restore(log: EventLog, battle: str) -> Battle | None:
    """Return the battle as the log has it, or `None` if it was never opened.

    A turn that was being answered when the server died comes back as failed on both sides, so that the voter
    can have it answered anew. Words that were erased are empty, and the battle says so.
    """
    return await asyncio.to_thread(_restore, log, battle)


async def words_gone(log: EventLog, battle: Battle) -> bool:
    """Whether the words of a battle in memory were erased since, by this process or another."""
    return bool(battle.turns) and await asyncio.to_thread(_gone, log, battle.turns[0].message_ref)


def _gone(log: EventLog, ref: ContentRef) -> bool:
    try:
        log.own_words("arena/restore").read(ref)
    except ContentMissing:
        return True
    return False


def cast_vote_of(event: StoredEvent, vote: VoteCast) -> CastVote:
    """What a `VoteCast` event means for its battle."""
    return CastVote(
        choice=vote.choice,
        receipt=event.id,
        time_us=event.time_us,
        turns=vote.turns,
        generations_a=vote.generations_a,
        generations_b=vote.generations_b,
        cut=vote.cut,
    )


def _restore(log: EventLog, name: str) -> Battle | None:
    battle: Battle | None = None
    for event in log.read(subject=name):
        match event.data:
            case BattleOpened() as opened:
                battle = Battle(
                    id=opened.battle,
                    voter=opened.voter,
                    contestants={"a": opened.contestants[0], "b": opened.contestants[1]},
                    pair_probability=opened.pair_probability,
                    side_probability=opened.side_probability,
                    vote_token_digest=opened.vote_token_digest,
                    pace=opened.pace,
                    redraws=opened.redraws,
                    redrawn_after=opened.redrawn_after,
                )
            case BattleTurnStarted() as started if battle is not None:
                try:
                    message = log.own_words("arena/restore").read(started.message).decode()
                except ContentMissing:
                    message, battle.erased = "", True
                battle.turns[started.turn :] = [
                    Turn(
                        started.turn,
                        started.attempt,
                        message,
                        started.message,
                        found=started.found,
                        settled=True,
                    )
                ]
                for side in SIDES:
                    battle.turns[-1].answers[side] = Answer(finish="failed", trouble=INTERRUPTED)
            case BattleTurnFinished() as finished if battle is not None:
                answers = battle.turns[-1].answers
                answers["a"] = _answer(log, finished.generation_a, finished.finish_a)
                answers["b"] = _answer(log, finished.generation_b, finished.finish_b)
            case VoteCast() as vote if battle is not None:
                battle.vote = cast_vote_of(event, vote)
            case VoteWithdrawn() as withdrawn if battle is not None:
                battle.withdrawn = withdrawn.reason
            case BattleVoided() as voided if battle is not None:
                battle.voided = Voided(voided.redraw)
                for side, cause in zip(voided.failed, voided.causes, strict=False):
                    battle.turns[-1].answers[side].trouble = TROUBLES.get(cause, INCOMPLETE)
            case BattleShared() as shared if battle is not None:
                battle.link_digest = shared.link_digest
            case _:
                pass  # an event of a later version that is about this battle too
    if battle is not None and battle.erased:
        battle.forget_words()
    return battle


def _answer(log: EventLog, generation: str | None, finish: FinishReason) -> Answer:
    if finish == "failed":
        return Answer(generation=generation, finish=finish, trouble=INCOMPLETE)
    if generation is None:
        return Answer(finish=finish)
    try:
        text = response_text(log, generation)
    except (ContentMissing, NotFound):
        return Answer(generation=generation, finish=finish, trouble=WORDS_GONE)
    return Answer(text=text, generation=generation, finish=finish)


def response_text(log: EventLog, generation: str) -> str:
    """Read the words of a generation from the vault; raises `NotFound` or `ContentMissing`."""
    response = log.generation(generation).response
    if response is None:
        raise ContentMissing(f"a policy kept no words of {generation}")
    stored: _StoredResponse = orjson.loads(log.own_words("arena/restore").read(response))
    return stored["choices"][0]["text"]
