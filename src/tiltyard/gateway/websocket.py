"""`/v1/chat/ws`: many turns of one conversation on one socket (`docs/http-api.md` describes the frames)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from contextlib import aclosing
from typing import cast

import orjson
from fastapi import APIRouter
from starlette.websockets import WebSocket, WebSocketDisconnect

from tiltyard.errors import Conflict, InvalidRequest, TiltyardError, to_http
from tiltyard.gateway.caller import current_caller
from tiltyard.gateway.door import Door
from tiltyard.gateway.errors import BodyTooLarge
from tiltyard.gateway.generation import Generation, as_served
from tiltyard.gateway.sessions import Session
from tiltyard.gateway.waiting import rough_tokens
from tiltyard.identity.canonical import Json
from tiltyard.telemetry.trace_context import CURRENT
from tiltyard.wire.leniency import read_leniently, rule_of
from tiltyard.wire.openai import ChatCompletionRequest, chat_request
from tiltyard.wire.problems import parse_object, shown
from tiltyard.wire.renaming import rename
from tiltyard.wire.terms import ServiceTerms

_logger = logging.getLogger(__name__)

OWN_FIELDS = frozenset({"type", "session", "content", "prompt", "messages"})
NOT_HERE = ("stream", "stream_options", "n")
"""Fields that have no meaning on the socket: every turn is one streamed answer with its usage."""


def socket_routes(door: Door) -> APIRouter:
    """The WebSocket route."""
    routes = APIRouter()

    @routes.websocket("/v1/chat/ws")
    async def chat_socket(socket: WebSocket) -> None:
        await socket.accept()
        with door.metrics.sockets.track_inprogress():
            await Conversation(door, socket).run()

    return routes


class Conversation:
    """One socket: its conversation, or those that it names, and the answer that is being given, if any."""

    def __init__(self, door: Door, socket: WebSocket) -> None:
        self._door = door
        self._socket = socket
        self._own = door.sessions.nameless()
        """The conversation without a name, which ends with the socket."""
        self._answering: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Serve frames until the client goes; an answer under way is cancelled then."""
        try:
            while True:
                text = await self._receive()
                try:
                    await self._take(text)
                except TiltyardError as error:
                    await self._send_error(error)
        except (WebSocketDisconnect, OSError):
            pass  # the client is gone; there is nobody to tell
        finally:
            await self._cancel()

    async def _receive(self) -> bytes:
        message = await self._socket.receive()
        if message["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(message.get("code", 1000))
        text = cast(str | None, message.get("text"))
        return cast(bytes, message.get("bytes") or b"") if text is None else text.encode()

    async def _take(self, text: bytes) -> None:
        if len(text) > self._door.max_body_bytes:
            raise BodyTooLarge(
                f"the frame has {len(text):,} bytes; at most {self._door.max_body_bytes:,} are read"
            )
        message = parse_object(text)
        match message.get("type", "turn"):
            case "cancel":
                await self._cancel()
            case "turn":
                if self._answering is not None and not self._answering.done():
                    raise Conflict("an answer is being given; wait for its done frame or send a cancel")
                await self._start(message)
            case other:
                raise InvalidRequest(f"type is {shown(other)}; it must be 'turn' or 'cancel'", param="type")

    async def _start(self, turn: Mapping[str, Json]) -> None:
        await self._door.gate.renew(current_caller())  # the socket may be older than the end of its key
        session = self._own
        if (name := turn.get("session")) is not None:
            session = self._door.sessions.named(current_caller().tenant, name)
        request, dropped = self._request(session, turn)
        terms = ServiceTerms.read(self._socket.headers, request.service_tier)
        waiting, identity = self._door.waiting, self._door.router.resolve(request.model)
        await waiting.wait(identity, rough_tokens(request))
        generation = Generation(
            self._door,
            await as_served(self._door, request),
            trace=CURRENT.get(),
            terms=terms.of_session(str(name or f"socket {id(self)}")),
        )
        session.begin(
            [message.to_json() for message in request.messages],
            request.model,
            current_caller().subject(request.user),
        )
        self._answering = asyncio.create_task(self._answer(generation, session, dropped))
        self._door.answering.add(self._answering)
        self._answering.add_done_callback(self._door.answering.discard)
        await asyncio.sleep(0)  # let it take its first step: a task cancelled before that would end unseen

    def _request(
        self, session: Session, turn: Mapping[str, Json]
    ) -> tuple[ChatCompletionRequest, tuple[str, ...]]:
        """The turn as a chat request: the conversation so far with the new content, or new messages.

        And the fields that were dropped for it, where the rule says so.
        """
        for name in NOT_HERE:
            if name in turn:
                raise InvalidRequest(f"{name} has no meaning on this socket; remove it", param=name)
        words = [name for name in ("content", "prompt", "messages") if turn.get(name) is not None]
        if len(words) != 1:
            raise InvalidRequest(
                "a turn needs either content (the next message; prompt means the same) or messages (a whole "
                "conversation)",
                param="content",
            )
        content, messages = turn.get(words[0]), turn.get("messages")
        body = {name: value for name, value in turn.items() if name not in OWN_FIELDS}
        if body.get("model") is None and session.model is not None:
            body["model"] = session.model
        if messages is None:
            messages = [*session.messages, {"role": "user", "content": content}]
        body |= {"messages": messages, "stream": True, "stream_options": {"include_usage": True}}
        rule = rule_of(self._socket.headers, self._door.unknown_fields)
        try:
            return read_leniently(chat_request, body) if rule == "drop" else (chat_request(body), ())
        except InvalidRequest as error:
            if words[0] != "messages":
                rename(error, {f"messages[{len(session.messages)}].content": words[0]})
            raise

    async def _answer(self, generation: Generation, session: Session, dropped: tuple[str, ...]) -> None:
        """Stream one answer; an answer that was stopped stays in the conversation as far as it came."""
        choice = generation.collected.choices[0]
        named = _named(session)
        try:
            async with aclosing(generation.chunks()) as chunks:
                async for chunk in chunks:
                    for piece in cast(list[dict[str, dict[str, Json]]], chunk["choices"]):
                        if text := piece["delta"].get("content"):
                            await self._send({**named, "type": "delta", "content": text})
                        if calls := piece["delta"].get("tool_calls"):
                            await self._send({**named, "type": "delta", "tool_calls": calls})
        except asyncio.CancelledError:
            # Only `_cancel` cancels this task, and it waits for it: the client asked, or is gone.
            await self._finish(generation, session, "cancelled", dropped)
        except TiltyardError as error:
            session.undo()
            await self._send_error(error, generation, session)
        except (WebSocketDisconnect, OSError):
            pass  # the client is gone; leaving the block has cancelled and recorded the answer
        except Exception:
            # Not raised: `_cancel` takes what this task ends with, and nobody would see it.
            _logger.exception("generation %s broke on its socket", generation.id)
            await self._socket.close(1011, "an unexpected error; the server's log has the details")
        else:
            await self._finish(generation, session, choice.finish_reason, dropped)
        finally:
            session.busy = False

    async def _finish(
        self, generation: Generation, session: Session, finish_reason: Json, dropped: tuple[str, ...]
    ) -> None:
        session.answered(generation.collected.choices[0].message)
        if session.name is not None:
            self._door.sessions.measure(current_caller().tenant, session)
        await self._send(
            {
                **_named(session),
                "type": "done",
                "turn": session.turns,
                **({"dropped_fields": dropped} if dropped else {}),
                "finish_reason": finish_reason,
                "usage": cast(Json, generation.usage),
                "model": generation.identity_name,
                "identity": generation.behaviour,
                "generation": generation.id,
            }
        )

    async def _cancel(self) -> None:
        """Stop the answer under way, if any, and wait until its end is recorded and sent."""
        if self._answering is not None:
            self._answering.cancel()
            await asyncio.gather(self._answering, return_exceptions=True)

    async def _send(self, message: Mapping[str, Json]) -> None:
        await self._socket.send_text(orjson.dumps(message).decode())

    async def _send_error(
        self, error: TiltyardError, generation: Generation | None = None, session: Session | None = None
    ) -> None:
        self._door.metrics.count_error(error.code)
        body = cast(Mapping[str, Json], to_http(error)[2]["error"])
        frame: dict[str, Json] = {"type": "error", "generation": None, "error": body}
        if generation is not None:
            frame["generation"] = generation.id
            if generation.ran:
                frame["usage"] = cast(Json, generation.usage)
        await self._send(frame if session is None else {**_named(session), **frame})


def _named(session: Session) -> dict[str, Json]:
    """What every frame of a named conversation says."""
    return {} if session.name is None else {"session": session.name}
