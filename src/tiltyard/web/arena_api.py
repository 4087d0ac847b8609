"""The arena for programs: open a battle, watch it, go on, vote. Before the vote nothing here names a side."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Literal

import orjson
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from tiltyard.arena.battle import Arena
from tiltyard.arena.reveal import reveal_of
from tiltyard.arena.transcript import Battle
from tiltyard.arena.voter import Voter
from tiltyard.arena.watching import Delta, Done, Frame, Quiet, Settled, TurnBegan, watch
from tiltyard.errors import InvalidRequest, NotFound
from tiltyard.events.schema import Pace, Side
from tiltyard.identity.canonical import Json
from tiltyard.web.failures import json_response
from tiltyard.web.languages import gettext, spoken
from tiltyard.web.markdown import render_markdown
from tiltyard.web.visitor import Body, address_of, keep_voter, read_json, token_of, voter_of
from tiltyard.wire.sse import frame as sse_frame

BATTLES = "/api/arena/battles"
SNAPSHOT_PAUSE_S = 0.1
"""Rendering an answer anew for every token would cost more than the eye can see."""
SNAPSHOT_REST = 10
"""Pauses at least this many times as long as rendering took, so that long answers do not slow the gateway."""


class Message(Body):
    """One message in OpenAI's shape."""

    role: Literal["user"]
    content: str


class OpenBody(Body):
    """`POST /api/arena/battles`."""

    messages: list[Message]
    consent: str | None = None
    """Version of the text of consent that the voter agrees to; needed once."""
    purposes: list[str] = Field(default_factory=list)
    """With `consent`: what is allowed beside what the arena needs, `train` and `publish`."""
    pace: Pace = "as_written"


class TurnBody(Body):
    """`POST /api/arena/battles/{battle}/turns`."""

    content: str


class VoteBody(Body):
    """`POST /api/arena/battles/{battle}/vote`."""

    vote_token: str
    choice: str


class WithdrawalBody(Body):
    """`POST /api/arena/battles/{battle}/withdraw`."""

    vote_token: str
    reason: str


class ArenaApi:
    """The routes under `/api/arena`; errors go up to the app's handler, which answers in OpenAI's shape."""

    def __init__(self, arena: Arena, *, replay: str) -> None:
        self._arena = arena
        self._replay = replay

    def routes(self) -> list[BaseRoute]:
        """All routes of the API."""
        one = BATTLES + "/{battle}"
        return [
            Route(BATTLES, self.open, methods=["POST"]),
            Route(one + "/events", self.events, methods=["GET"]),
            Route(one + "/turns", self.turn, methods=["POST"]),
            Route(one + "/stop", self.stop, methods=["POST"]),
            Route(one + "/regenerate", self.regenerate, methods=["POST"]),
            Route(one + "/redraw", self.redraw, methods=["POST"]),
            Route(one + "/vote", self.vote, methods=["POST"]),
            Route(one + "/withdraw", self.withdraw, methods=["POST"]),
            Route(one + "/share", self.share, methods=["POST"]),
        ]

    async def open(self, request: Request) -> Response:
        """Open a battle; the answers stream from its `events`."""
        body = await read_json(request, OpenBody)
        if len(body.messages) != 1:
            raise InvalidRequest(
                f"messages has {len(body.messages)} entries; a battle opens with 1 user message. Send later "
                f"ones to {BATTLES}/{{battle}}/turns.",
                param="messages",
            )
        voter = voter_of(request) or Voter.new()
        battle = await self._arena.open(
            voter,
            body.messages[0].content or "",
            address=address_of(request),
            pace=body.pace,
            consent=body.consent,
            purposes=body.purposes,
            language=spoken().tag,
        )
        response = json_response({"battle": battle.id, "vote_token": voter.vote_token(battle.id)}, status=201)
        keep_voter(request, response, voter)
        return response

    async def events(self, request: Request) -> Response:
        """Stream the current turn from its start until both sides have ended.

        With `?as=html`, `html` frames take the place of `delta`: all that a side has said, rendered and
        sanitised.
        """
        battle = await self._battle(request)
        shape = request.query_params.get("as", "text")
        if shape not in ("text", "html"):
            raise InvalidRequest(f"as is {shape[:40]!r}; it must be text or html", param="as")
        return StreamingResponse(
            self._snapshots(battle) if shape == "html" else self._frames(battle),
            media_type="text/event-stream",
            headers={"cache-control": "no-store", "x-accel-buffering": "no"},
        )

    async def turn(self, request: Request) -> Response:
        """Send a further message."""
        battle = await self._battle(request)
        body = await read_json(request, TurnBody)
        await self._arena.say(battle, body.content)
        return _now(battle)

    async def stop(self, request: Request) -> Response:
        """End the answers that are being written."""
        battle = await self._battle(request)
        await self._arena.stop(battle)
        return _now(battle)

    async def regenerate(self, request: Request) -> Response:
        """Have the last message answered anew."""
        battle = await self._battle(request)
        await self._arena.regenerate(battle)
        return _now(battle)

    async def redraw(self, request: Request) -> Response:
        """Ask another pair the question of a battle that is void; needs the cookie of its voter."""
        voter, battle = await self._own(request)
        again = await self._arena.redraw(battle, voter, address=address_of(request))
        return json_response({"battle": again.id, "vote_token": voter.vote_token(again.id)}, status=201)

    async def withdraw(self, request: Request) -> Response:
        """Take the vote back, while there is time."""
        body = await read_json(request, WithdrawalBody)
        battle = await self._arena.find(
            request.path_params["battle"], voter=voter_of(request), token=body.vote_token
        )
        await self._arena.withdraw(battle, token=body.vote_token, reason=body.reason)
        return json_response({"battle": battle.id, "withdrawn": True, "reason": body.reason})

    async def share(self, request: Request) -> Response:
        """Make a link under which others may read the battle; needs the cookie of its voter."""
        voter, battle = await self._own(request)
        secret = await self._arena.share(battle, voter)
        return json_response({"battle": battle.id, "link": f"/shared/{battle.id}/{secret}"})

    async def vote(self, request: Request) -> Response:
        """Cast the vote and learn who was who."""
        body = await read_json(request, VoteBody)
        battle = await self._arena.find(
            request.path_params["battle"], voter=voter_of(request), token=body.vote_token
        )
        await self._arena.vote(battle, token=body.vote_token, choice=body.choice)
        revealed = await reveal_of(battle, self._arena.log, self._arena.contestants(), replay=self._replay)
        return json_response(revealed.to_json())

    async def _own(self, request: Request) -> tuple[Voter, Battle]:
        battle = await self._battle(request)
        voter = voter_of(request)
        if voter is None or voter.id != battle.voter:
            raise NotFound("this needs the cookie of the browser that opened the battle")
        return voter, battle

    async def _battle(self, request: Request) -> Battle:
        return await self._arena.find(
            request.path_params["battle"], voter=voter_of(request), token=token_of(request)
        )

    async def _frames(self, battle: Battle) -> AsyncIterator[bytes]:
        async for frame in watch(battle):
            yield encode(frame)

    async def _snapshots(self, battle: Battle) -> AsyncIterator[bytes]:
        said: dict[Side, str] = {"a": "", "b": ""}
        async for frame in watch(battle):
            if isinstance(frame, Delta):
                said[frame.side] += frame.text
                began = time.perf_counter()
                html = render_markdown(said[frame.side])
                spent_s = time.perf_counter() - began
                yield _event("html", {"side": frame.side, "html": html})
                # what comes meanwhile goes into the next one
                await asyncio.sleep(max(SNAPSHOT_PAUSE_S, SNAPSHOT_REST * spent_s))
            elif isinstance(frame, Done) and frame.trouble is not None:
                yield encode(
                    replace(frame, trouble=replace(frame.trouble, words=gettext(frame.trouble.words)))
                )
            else:
                yield encode(frame)


def encode(frame: Frame) -> bytes:
    r"""Write one server-sent event; a `Quiet` is a comment, which readers skip.

    >>> encode(Delta("a", "hi"))
    b'event: delta\ndata: {"side":"a","text":"hi"}\n\n'
    """
    event: str
    data: Json
    match frame:
        case Quiet():
            return b": still here\n\n"
        case TurnBegan(turn, attempt):
            event, data = "turn", {"turn": turn, "attempt": attempt}
        case Delta(side, text):
            event, data = "delta", {"side": side, "text": text}
        case Done(side, finish_reason, trouble):
            event = "done"
            data = {
                "side": side,
                "finish_reason": finish_reason,
                "trouble": None if trouble is None else trouble.words,
                "cause": None if trouble is None else trouble.cause,
            }
        case Settled(can_vote, voided):
            event, data = "settled", {"can_vote": can_vote, "voided": voided}
    return _event(event, data)


def _event(event: str, data: Json) -> bytes:
    return sse_frame(orjson.dumps(data), event=event)


def _now(battle: Battle) -> Response:
    if not battle.turns:  # the log refused its first message
        return json_response({"battle": battle.id, "turn": None, "attempt": None, "running": False})
    last = battle.turns[-1]
    return json_response(
        {"battle": battle.id, "turn": last.number, "attempt": last.attempt, "running": battle.running}
    )
