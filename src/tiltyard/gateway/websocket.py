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
from tiltyard.gateway.generation import Generation
from tiltyard.gateway.trace import traceparent_of
from tiltyard.identity.canonical import Json
from tiltyard.wire.openai import ChatCompletionRequest, chat_request
from tiltyard.wire.problems import parse_object, shown
from tiltyard.wire.terms import ServiceTerms

_logger = logging.getLogger(__name__)

OWN_FIELDS = frozenset({"type", "content", "messages"})
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
    """One socket: its messages so far, and the answer that is being given, if any."""

    def __init__(self, door: Door, socket: WebSocket) -> None:
        self._door = door
        self._socket = socket
        self._messages: list[Json] = []
        self._model: Json = None
        self._before: tuple[list[Json], Json] = ([], None)
        """Messages and model before the turn under way; what they are again if it fails."""
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
        match message.get("type"):
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
        request = self._request(turn)
        generation = Generation(
            self._door,
            request,
            traceparent=traceparent_of(self._socket),
            terms=ServiceTerms.read(self._socket.headers, request.service_tier),
        )
        self._before = self._messages, self._model
        self._model = request.model
        self._messages = [message.to_json() for message in request.messages]
        self._answering = asyncio.create_task(self._answer(generation))
        self._door.answering.add(self._answering)
        self._answering.add_done_callback(self._door.answering.discard)
        await asyncio.sleep(0)  # let it take its first step: a task cancelled before that would end unseen

    def _request(self, turn: Mapping[str, Json]) -> ChatCompletionRequest:
        """The turn as a chat request: the conversation so far with the new content, or new messages."""
        for name in NOT_HERE:
            if name in turn:
                raise InvalidRequest(f"{name} has no meaning on this socket; remove it", param=name)
        content, messages = turn.get("content"), turn.get("messages")
        if (content is None) == (messages is None):
            raise InvalidRequest(
                "a turn needs either content (the next message) or messages (a whole conversation)",
                param="content",
            )
        body = {name: value for name, value in turn.items() if name not in OWN_FIELDS}
        if body.get("model") is None and self._model is not None:
            body["model"] = self._model
        if messages is None:
            messages = [*self._messages, {"role": "user", "content": content}]
        try:
            return chat_request(
                {**body, "messages": messages, "stream": True, "stream_options": {"include_usage": True}}
            )
        except InvalidRequest as error:
            place = f"messages[{len(self._messages)}].content"
            if content is None or error.param != place:
                raise
            message = error.message.replace(place, "content")
            raise InvalidRequest(message, param="content", code=error.code) from error

    async def _answer(self, generation: Generation) -> None:
        """Stream one answer; an answer that was stopped stays in the conversation as far as it came."""
        choice = generation.collected.choices[0]
        try:
            async with aclosing(generation.chunks()) as chunks:
                async for chunk in chunks:
                    for piece in cast(list[dict[str, dict[str, Json]]], chunk["choices"]):
                        if text := piece["delta"].get("content"):
                            await self._send({"type": "delta", "content": text})
                        if calls := piece["delta"].get("tool_calls"):
                            await self._send({"type": "delta", "tool_calls": calls})
        except asyncio.CancelledError:
            # Only `_cancel` cancels this task, and it waits for it: the client asked, or is gone.
            await self._finish(generation, "cancelled")
        except TiltyardError as error:
            self._messages, self._model = self._before  # the client may ask again
            await self._send_error(error, generation.id)
        except (WebSocketDisconnect, OSError):
            pass  # the client is gone; leaving the block has cancelled and recorded the answer
        except Exception:
            # Not raised: `_cancel` takes what this task ends with, and nobody would see it.
            _logger.exception("generation %s broke on its socket", generation.id)
            await self._socket.close(1011, "an unexpected error; the server's log has the details")
        else:
            await self._finish(generation, choice.finish_reason)

    async def _finish(self, generation: Generation, finish_reason: Json) -> None:
        collected = generation.collected
        self._messages.append(collected.choices[0].message)
        await self._send(
            {
                "type": "done",
                "finish_reason": finish_reason,
                "usage": collected.usage,
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

    async def _send_error(self, error: TiltyardError, generation: str | None = None) -> None:
        self._door.metrics.errors.labels(error.code).inc()
        body = cast(Mapping[str, Json], to_http(error)[2]["error"])
        await self._send({"type": "error", "generation": generation, "error": body})
