"""Texts, conversations and tokens without an answer: `/tokenize`, `/detokenize`, `/render`.

A conversation is read by the code that reads it for an answer, so what is shown is what the engine would see.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import orjson
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from tiltyard.errors import InvalidRequest
from tiltyard.models.prompt import prompt_ids
from tiltyard.wire.openai import ChatCompletionRequest, chat_request
from tiltyard.wire.problems import parse_object
from tiltyard.wire.tokens import (
    Detokenized,
    Rendered,
    Tokenized,
    TokenizeRequest,
    detokenize_request,
    tokenize_request,
)
from tiltyard.worker.host import ModelHost, ServedIdentity
from tiltyard.worker.spelling import SpelledOut

T = TypeVar("T")


class Reading:
    """The three routes; one text is encoded at a time, so that prompts to be answered find a free thread.

    A text may be longer than the context: how much longer is what people ask. The body's limit bounds it.
    """

    def __init__(
        self, host: Callable[[], ModelHost], read_body: Callable[[Request], Awaitable[bytes]]
    ) -> None:
        """`host` raises while the model is loading."""
        self._host = host
        self._read_body = read_body
        self._turn = asyncio.Semaphore(1)

    def routes(self) -> list[Route]:
        """For the worker's app."""
        return [
            Route("/tokenize", self.tokenize, methods=["POST"]),
            Route("/detokenize", self.detokenize, methods=["POST"]),
            Route("/render", self.render, methods=["POST"]),
        ]

    async def tokenize(self, request: Request) -> Response:
        """`POST /tokenize`."""
        host = self._host()
        asked = tokenize_request(parse_object(await self._read_body(request)))
        identity = host.identity(asked.model)
        ids = await self._alone(request, lambda: _ids(host, identity, asked))
        answer: Tokenized = {
            "count": len(ids),
            "max_model_len": host.max_context_tokens,
            "tokens": ids,
            "token_strs": _spellings(host, ids) if asked.return_token_strs else None,
        }
        return _json(answer)

    async def detokenize(self, request: Request) -> Response:
        """`POST /detokenize`."""
        host = self._host()
        asked = detokenize_request(parse_object(await self._read_body(request)))
        host.identity(asked.model)
        for place, token in enumerate(asked.tokens):
            if token >= host.tokenizer.vocab_size:
                raise InvalidRequest(
                    f"tokens[{place}] is {token}; the model has {host.tokenizer.vocab_size:,} tokens, "
                    "numbered from 0",
                    param=f"tokens[{place}]",
                )
        answer: Detokenized = {"prompt": await self._alone(request, lambda: _text(host, asked.tokens))}
        return _json(answer)

    async def render(self, request: Request) -> Response:
        """`POST /render`."""
        host = self._host()
        asked = chat_request(parse_object(await self._read_body(request)))
        identity = host.identity(asked.model)
        ids = await self._alone(request, lambda: chat_prompt(host, identity, asked))
        if asked.truncate_prompt_tokens is not None:
            ids = ids[-asked.truncate_prompt_tokens :]
        answer: Rendered = {
            "model": identity.name,
            "system_fingerprint": identity.behaviour_digest,
            "text": _text(host, ids),
            "token_ids": ids,
            "count": len(ids),
            "max_model_len": host.max_context_tokens,
        }
        return _json(answer)

    async def _alone(self, request: Request, work: Callable[[], T]) -> T:
        """Do the work when its turn comes, if somebody still waits for it; else raises `ClientDisconnect`."""
        async with self._turn:
            if await request.is_disconnected():
                raise ClientDisconnect
            return await asyncio.to_thread(work)


def chat_prompt(host: ModelHost, identity: ServedIdentity, asked: ChatCompletionRequest) -> list[int]:
    """The tokens that a chat request becomes, however many."""
    messages = [message.to_json() for message in asked.messages]
    return host.encode_chat(identity, messages, tools=asked.tool_use, truncated=True)


def _ids(host: ModelHost, identity: ServedIdentity, asked: TokenizeRequest) -> list[int]:
    if (chat := asked.chat) is not None:
        return chat_prompt(host, identity, chat_request(chat))
    text = asked.prompt or ""
    if asked.add_special_tokens is False:
        return host.tokenizer.encode(text, special=True)
    return prompt_ids(host.tokenizer, text, special=True)


def _spellings(host: ModelHost, ids: Sequence[int]) -> list[str]:
    spelling = SpelledOut(host.tokenizer)
    return [spelling.token_bytes(token).decode("utf-8", errors="replace") for token in ids]


def _text(host: ModelHost, ids: Sequence[int]) -> str:
    """Control tokens by their names; bytes that are no UTF-8 become U+FFFD."""
    spelling = SpelledOut(host.tokenizer)
    return b"".join(map(spelling.token_bytes, ids)).decode("utf-8", errors="replace")


def _json(answer: Tokenized | Detokenized | Rendered) -> Response:
    return Response(orjson.dumps(answer), media_type="application/json")
