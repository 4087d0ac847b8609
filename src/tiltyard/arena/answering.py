"""Ask one side of a battle and keep what it says; a failure is named without naming the side."""

from __future__ import annotations

import asyncio
import logging

from tiltyard.arena.transcript import Battle, Turn
from tiltyard.client import ModelClient
from tiltyard.errors import (
    ContextTooLong,
    InvalidRequest,
    NotFound,
    Overloaded,
    TiltyardError,
    Unavailable,
    UpstreamFailed,
)
from tiltyard.events.schema import Side

_logger = logging.getLogger(__name__)


async def answer_side(
    client: ModelClient, battle: Battle, turn: Turn, side: Side, *, max_tokens: int
) -> None:
    """Stream one side into its `Answer`; however it ends, `finish` says so."""
    answer = turn.answers[side]
    contestant = battle.contestants[side]
    try:
        async with client.stream_chat(
            contestant.identity,
            battle.conversation(side),
            max_tokens=max_tokens,
            user=battle.voter,  # the gateway keeps the words under this subject's key: erasure reaches them
        ) as stream:
            answer.generation = stream.generation or None
            if stream.identity and stream.identity != contestant.behaviour:
                raise UpstreamFailed(
                    f"{contestant.identity} is served as {stream.identity}, but {battle.id} drew "
                    f"{contestant.behaviour}",
                    code="identity_changed",
                )
            async for text in stream:
                answer.text += text
                battle.notify()
            answer.generation = answer.generation or stream.generation or None
        if stream.finish_reason == "stop":
            answer.finish = "stop"
        elif stream.finish_reason == "length":
            answer.finish = "length"
        else:
            raise UpstreamFailed(
                f"{contestant.identity} ended with finish_reason {stream.finish_reason!r}",
                code="unknown_finish",
            )
    except TiltyardError as error:
        _logger.warning("%s side %s failed: %s", battle.id, side, error)
        answer.fail(trouble_of(error))
        answer.model_failed = not isinstance(error, InvalidRequest)  # a request can be too long for one side
    except asyncio.CancelledError:
        answer.finish = "cancelled"
        raise
    battle.notify()


def trouble_of(error: TiltyardError) -> str:
    """What the voter may hear of a failure: its cause, without the server's words, which may hold a name."""
    if isinstance(error, ContextTooLong):
        return "The conversation no longer fits what this side can read. Start a new round."
    if isinstance(error, Overloaded):
        return "This side has too many requests waiting. Try again in a moment."
    if isinstance(error, NotFound | Unavailable):
        return "This side cannot be reached just now. Try again in a moment."
    if isinstance(error, InvalidRequest):
        return "This side refused the request."
    if error.code == "timed_out":
        return "This side sent nothing for too long."
    if error.code == "identity_changed":
        return "This side was replaced while the battle went on. Start a new round."
    return "This side broke off before its answer was complete. Try again."
