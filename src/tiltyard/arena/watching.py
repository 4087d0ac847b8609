"""What a watcher of a battle is told: the current turn from its first character until it is settled."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TypeAlias

from tiltyard.arena.pacing import TICK_S, Pacer
from tiltyard.arena.transcript import SIDES, Battle
from tiltyard.arena.troubles import Trouble
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
    trouble: Trouble | None


@dataclass(frozen=True)
class Settled:
    """Both sides have ended and the log knows it; nothing follows."""

    can_vote: bool
    voided: bool = False
    """A side failed the first message: nobody loses, and another pair can be drawn."""


@dataclass(frozen=True)
class Quiet:
    """Nothing was said for a while; a connection that nobody reads shows when this is sent."""


Frame: TypeAlias = TurnBegan | Delta | Done | Settled | Quiet


async def watch(battle: Battle) -> AsyncIterator[Frame]:
    """Yield the current turn from its first character until it is settled.

    That one side has ended is said when both have, so that the watcher learns of speed no more than the
    text shows; a failure is said at once. Where the battle's pace is `equal`, no side shows more than the
    slower one (`arena/pacing.py`).
    """
    if not battle.turns:
        return
    turn = battle.turns[-1]
    sent: dict[Side, int] = {"a": 0, "b": 0}
    done: set[Side] = set()
    pacer = Pacer() if battle.pace == "equal" and not turn.settled else None
    yield TurnBegan(turn.number, turn.attempt)
    while True:
        change = battle.change  # taken before looking, so that no change is missed
        # a failure or a stop ends the race: what there is, is shown
        broken = any(answer.finish in ("failed", "cancelled") for answer in turn.answers.values())
        shown = None if pacer is None or broken else pacer.shown(turn)
        for side in SIDES:
            answer = turn.answers[side]
            if text := answer.text[sent[side] : None if shown is None else shown[side]]:
                sent[side] += len(text)
                yield Delta(side, text)
        behind = any(sent[side] < len(turn.answers[side].text) for side in SIDES)
        for side in SIDES:
            answer = turn.answers[side]
            tellable = (turn.settled and not behind) or answer.finish == "failed"
            if tellable and answer.finish is not None and side not in done:
                done.add(side)
                yield Done(side, answer.finish, answer.trouble)
        if turn.settled and len(done) == len(SIDES):
            yield Settled(battle.vote is None and bool(battle.judged_turns), battle.voided is not None)
            return
        pause_s = TICK_S if behind else HEARTBEAT_S
        try:
            await asyncio.wait_for(change.wait(), pause_s)
        except TimeoutError:
            if not behind:
                yield Quiet()
