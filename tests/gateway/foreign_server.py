"""A server of another engine: says what a real one was recorded to say (`tests/worker/replies/`), and notes what it is asked."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import orjson
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

REPLIES = Path(__file__).parents[1] / "worker" / "replies"


class ForeignServer:
    """Plays one recording; `play` names the reply to the next requests, `status` and `body` put another in its place."""

    def __init__(self, recording: str, *, key: str | None = None) -> None:
        self.replies: dict[str, Any] = json.loads((REPLIES / f"{recording}.json").read_text(encoding="utf-8"))
        self.play = "chat"
        self.key = key
        self.up = True
        self.lingers_s = 0.0
        """How long its streams stay open after their last frame."""
        self.asked: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.app = Starlette(
            routes=[
                Route("/v1/chat/completions", self.answer, methods=["POST"]),
                Route("/v1/completions", self.answer, methods=["POST"]),
                Route("/{path:path}", self.door, methods=["POST"]),
                Route("/{path:path}", self.question),
            ]
        )

    async def question(self, request: Request) -> Response:
        """One of what adapters ask."""
        reply = self.replies.get(request.url.path)
        if not self.up:
            return Response(status_code=500)
        if self._refused(request):
            return Response(b'{"error": "Unauthorized"}', 401)
        return Response(status_code=404) if reply is None else Response(reply["text"], reply["status"])

    async def door(self, request: Request) -> Response:
        """A request for anything but an answer."""
        self.asked.append(orjson.loads(await request.body()))
        self.headers.append(dict(request.headers))
        reply = self.replies[request.url.path]
        return Response(reply["text"], reply["status"], media_type="application/json")

    async def answer(self, request: Request) -> Response:
        """A request for an answer."""
        self.asked.append(orjson.loads(await request.body()))
        self.headers.append(dict(request.headers))
        if self._refused(request):
            return Response(b'{"error": "Unauthorized"}', 401)
        reply = self.replies[self.play]
        if reply["status"] != 200:
            return Response(reply["text"], reply["status"], media_type="application/json")
        return StreamingResponse(self._frames(reply["text"]), media_type="text/event-stream")

    async def _frames(self, text: str) -> Any:
        for frame in text.split("\n\n"):
            if frame:
                yield frame + "\n\n"
                await asyncio.sleep(0)
        await asyncio.sleep(self.lingers_s)

    def _refused(self, request: Request) -> bool:
        return self.key is not None and request.headers.get("authorization") != f"Bearer {self.key}"
