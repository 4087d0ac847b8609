"""Ask one side of a battle and keep what it says; a failure is named without naming the side."""

from __future__ import annotations

import asyncio
import logging

from tiltyard.arena.transcript import Battle, Turn
from tiltyard.arena.troubles import trouble_of
from tiltyard.client import ModelClient
from tiltyard.errors import InvalidRequest, TiltyardError, UpstreamFailed
from tiltyard.events.schema import Side
from tiltyard.telemetry.trace_context import TraceParent, headers_of
from tiltyard.telemetry.tracing import CANCELLED, NO_TRACING, Tracing

_logger = logging.getLogger(__name__)


async def answer_side(
    client: ModelClient,
    battle: Battle,
    turn: Turn,
    side: Side,
    *,
    max_tokens: int,
    tracing: Tracing = NO_TRACING,
    trace: TraceParent | None = None,
) -> None:
    """Stream one side into its `Answer`; however it ends, `finish` says so. The trace is the battle's turn."""
    answer = turn.answers[side]
    span = tracing.begin(
        f"answer side {side}",
        parent=trace,
        kind="client",
        attributes={"tiltyard.battle": battle.id, "tiltyard.battle.side": side},
    )
    ended: str | None = None
    contestant = battle.contestants[side]
    try:
        async with client.stream_chat(
            contestant.identity,
            battle.conversation(side),
            max_tokens=max_tokens,
            headers=headers_of(span.trace),
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
        ended = error.code
        answer.fail(trouble_of(error))
        answer.model_failed = not isinstance(error, InvalidRequest)  # a request can be too long for one side
    except asyncio.CancelledError:
        answer.finish, ended = "cancelled", CANCELLED
        raise
    finally:
        span.end(error=ended)
    battle.notify()
