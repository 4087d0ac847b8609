"""What a watcher of a battle is told: the current turn from its first character until it is settled."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TypeAlias

from tiltyard.arena.transcript import SIDES, Battle
from tiltyard.events.schema import FinishReason, Side

HEARTBEAT_S = 15.0


@dataclass(frozen=True)
class TurnBegan:
    """What is watched now; text that was shown for an earlier attempt is void."""

    turn: int
    attempt: int


@dataclass(frozen=True)
class Delta:
    """More text of one side."""

    side: Side
    text: str


@dataclass(frozen=True)
class Done:
    """One side has ended."""

    side: Side
    finish_reason: FinishReason
    trouble: str | None


@dataclass(frozen=True)
class Settled:
    """Both sides have ended and the log knows it; nothing follows."""

    can_vote: bool


@dataclass(frozen=True)
class Quiet:
    """Nothing was said for a while; a connection that nobody reads shows when this is sent."""


Frame: TypeAlias = TurnBegan | Delta | Done | Settled | Quiet


async def watch(battle: Battle) -> AsyncIterator[Frame]:
    """Yield the current turn from its first character until it is settled.

    That one side has ended is said when both have, so that the watcher learns of speed no more than the
    text shows; a failure is said at once.
    """
    if not battle.turns:
        return
    turn = battle.turns[-1]
    sent: dict[Side, int] = {"a": 0, "b": 0}
    done: set[Side] = set()
    yield TurnBegan(turn.number, turn.attempt)
    while True:
        change = battle.change  # taken before looking, so that no change is missed
        for side in SIDES:
            answer = turn.answers[side]
            if text := answer.text[sent[side] :]:
                sent[side] += len(text)
                yield Delta(side, text)
        for side in SIDES:
            answer = turn.answers[side]
            tellable = turn.settled or answer.finish == "failed"
            if tellable and answer.finish is not None and side not in done:
                done.add(side)
                yield Done(side, answer.finish, answer.trouble)
        if turn.settled and len(done) == len(SIDES):
            yield Settled(can_vote=battle.vote is None and bool(battle.judged_turns))
            return
        try:
            await asyncio.wait_for(change.wait(), HEARTBEAT_S)
        except TimeoutError:
            yield Quiet()
