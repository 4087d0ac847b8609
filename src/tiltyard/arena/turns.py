"""The turns that are being answered: both sides asked at once, in tasks that outlive the browser, until the log has the end."""

from __future__ import annotations

import asyncio
import logging

from tiltyard.arena.answering import answer_side
from tiltyard.arena.outages import Outages
from tiltyard.arena.screening import Screened
from tiltyard.arena.transcript import SIDES, Battle, Turn, Voided
from tiltyard.arena.troubles import BROKEN_ARENA, INTERRUPTED, NOT_RECORDED
from tiltyard.client import ModelClient
from tiltyard.errors import TiltyardError
from tiltyard.events.ids import new_battle_id
from tiltyard.events.log import EventLog
from tiltyard.events.schema import BattleTurnFinished, BattleTurnStarted, BattleVoided, DataPolicy, Side
from tiltyard.telemetry.trace_context import CURRENT, traceparent_of
from tiltyard.telemetry.tracing import NO_TRACING, Span, Tracing

SOURCE = "tiltyard/arena"

_logger = logging.getLogger(__name__)


class Turns:
    """Asks, stops and settles; whoever calls `begin` holds the battle's gate."""

    def __init__(
        self,
        log: EventLog,
        client: ModelClient,
        outages: Outages,
        *,
        answer_tokens: int,
        policy: DataPolicy,
        tracing: Tracing = NO_TRACING,
    ) -> None:
        self._tracing = tracing
        self.outages = outages
        """Hears how each answer ended."""
        self._log = log
        self._client = client
        self._answer_tokens = answer_tokens
        self._policy = policy
        self._answering: dict[str, dict[Side, asyncio.Task[None]]] = {}
        """By battle."""
        self._settling: set[asyncio.Task[None]] = set()
        self._closing = False

    async def begin(self, battle: Battle, message: Screened, *, number: int, attempt: int) -> None:
        """Record the message, and ask both sides; raises `StorageFailed`, and asks nobody, when the log refuses."""
        content = await asyncio.to_thread(self._log.content, battle.voter, message.text.encode())
        span = self._tracing.begin(
            "battle turn",
            parent=CURRENT.get(),
            attributes={
                "tiltyard.battle": battle.id,
                "tiltyard.battle.turn": number,
                "tiltyard.battle.attempt": attempt,
            },
        )
        await self._log.append(
            BattleTurnStarted(
                battle=battle.id,
                turn=number,
                attempt=attempt,
                message=content.ref,
                policy=self._policy,
                found=dict(message.counts),
            ),
            subject=battle.id,
            source=SOURCE,
            traceparent=traceparent_of(span.trace),
            contents=[content],
        )
        turn = Turn(
            number=number,
            attempt=attempt,
            message=message.text,
            message_ref=content.ref,
            found=message.counts,
        )
        battle.turns[number:] = [turn]
        sides = {
            side: asyncio.create_task(
                answer_side(
                    self._client,
                    battle,
                    turn,
                    side,
                    max_tokens=self._answer_tokens,
                    tracing=self._tracing,
                    trace=span.trace,
                ),
                name=f"{battle.id} {side}",
            )
            for side in SIDES
        }
        self._answering[battle.id] = sides
        supervisor = asyncio.create_task(
            self._settle(battle, turn, sides, span), name=f"{battle.id} turn {number}"
        )
        self._settling.add(supervisor)
        supervisor.add_done_callback(self._settling.discard)
        battle.notify()

    async def stop(self, battle: Battle) -> None:
        """End the answers that are being written and wait until that is recorded; no harm if none is."""
        if not battle.running:
            return
        turn = battle.turns[-1]
        self._cancel(battle.id)
        while not turn.settled:
            await battle.change.wait()

    async def close(self) -> None:
        """End all answers, as failed, and wait until they are recorded."""
        self._closing = True
        for battle in list(self._answering):
            self._cancel(battle)
        if self._settling:
            await asyncio.wait(self._settling)

    async def _settle(
        self, battle: Battle, turn: Turn, sides: dict[Side, asyncio.Task[None]], span: Span
    ) -> None:
        await asyncio.wait(sides.values())
        for side, task in sides.items():
            answer = turn.answers[side]
            if not task.cancelled() and (bug := task.exception()) is not None:
                _logger.error("%s side %s broke", battle.id, side, exc_info=bug)
                answer.fail(BROKEN_ARENA)
            elif answer.finish is None:  # cancelled before its first step
                answer.finish = "cancelled"
            if answer.finish == "cancelled" and self._closing:
                answer.fail(INTERRUPTED)
            if answer.model_failed or answer.finish in ("stop", "length"):
                self.outages.note(battle.contestants[side].behaviour, failed=answer.model_failed)
        first, second = turn.answers["a"], turn.answers["b"]
        failed = [side for side in SIDES if turn.answers[side].model_failed]
        try:
            await self._log.append(
                BattleTurnFinished(
                    battle=battle.id,
                    turn=turn.number,
                    attempt=turn.attempt,
                    generation_a=first.generation,
                    generation_b=second.generation,
                    finish_a=first.finish or "failed",
                    finish_b=second.finish or "failed",
                ),
                subject=battle.id,
                source=SOURCE,
                traceparent=traceparent_of(span.trace),
            )
            if failed and turn.number == 0:
                await self._void(battle, turn, failed)
        except TiltyardError as error:
            _logger.error("%s turn %s was not recorded: %s", battle.id, turn.number, error)
            for answer in (first, second):
                answer.fail(NOT_RECORDED)
        finally:
            turn.settled = True
            self._answering.pop(battle.id, None)
            span.end(error="side_failed" if failed else None)
            battle.notify()

    async def _void(self, battle: Battle, turn: Turn, failed: list[Side]) -> None:
        troubles = [turn.answers[side].trouble for side in failed]
        event = BattleVoided(
            battle=battle.id,
            attempt=turn.attempt,
            failed=tuple(failed),
            causes=tuple("" if trouble is None else trouble.cause for trouble in troubles),
            redraw=new_battle_id(),
        )
        await self._log.append(event, subject=battle.id, source=SOURCE)
        battle.voided = Voided(event.redraw)

    def _cancel(self, battle: str) -> None:
        for task in self._answering.get(battle, {}).values():
            task.cancel()
