"""How the prompts of a program ask their server: who asks, what was used, and another try where that is safe."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from tiltyard.client.client import AnswerStream, ModelClient, Usage
from tiltyard.client.forms import Dialect
from tiltyard.client.likelihood import Spelling
from tiltyard.client.retries import Retries
from tiltyard.errors import NotFound, TiltyardError
from tiltyard.identity.canonical import Json
from tiltyard.wire.terms import HEADER_GROUP

Message = Mapping[str, Json]
MAX_SPELLINGS = 256
DIALECTS: Mapping[str, Dialect] = {"vllm": "vllm", "llamacpp": "llama.cpp", "me": "llama.cpp"}
"""By `owned_by` of a server's models: vLLM, llama-server, llama-cpp-python's server."""


@dataclass(frozen=True, slots=True)
class Server:
    """What was found out about the server."""

    dialect: Dialect
    ours: bool
    """A tiltyard: it scores the end of a prompt alone, and runs no request with the same idempotency key twice."""


@dataclass(slots=True)
class Used:
    """What the prompts of a program have cost so far, as the server counted it."""

    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    retries: int = 0

    def add(self, usage: Usage | None) -> None:
        """Count one answer."""
        self.requests += 1
        if usage is not None:
            self.prompt_tokens += usage.prompt_tokens
            self.cached_tokens += usage.cached_tokens
            self.completion_tokens += usage.completion_tokens


class Asker:
    """A server, a model and a user; at most `concurrency` requests are open at a time."""

    def __init__(
        self,
        client: ModelClient,
        *,
        model: str,
        user: str | None,
        headers: Mapping[str, str],
        retries: Retries,
        concurrency: int,
        dialect: Dialect | None,
    ) -> None:
        self.retries = retries
        self.used = Used()
        self._client = client
        self._model = model
        self._user = user
        self._headers = headers
        self._places = asyncio.Semaphore(concurrency)
        self._dialect = dialect
        self._server: Server | None = None
        self._finding_out = asyncio.Lock()
        self.spellings: dict[tuple[str, ...], Spelling] = {}
        """Of the choices that were selected from lately, as this model spells them."""
        self.spelling = asyncio.Lock()
        """Held while a spelling is being found out."""

    async def server(self) -> Server:
        """Who answers, asked once: `/v1/models` tells."""
        async with self._finding_out:
            if self._server is None:
                self._server = await self._find_out()
            return self._server

    @asynccontextmanager
    async def answer(
        self, messages: Sequence[Message], fields: Mapping[str, Json], *, group: str, key: str | None = None
    ) -> AsyncIterator[AnswerStream]:
        """The answer to a request, once its head is there; tried again until then, where that is safe.

        `key` names the request, so that it can be tried again when its answer was cut: the same key is the same
        request, however often it is sent.
        """
        headers = {**self._headers, HEADER_GROUP: group, **self.retries.headers(key)}
        if self._user is not None:
            fields = {"user": self._user, **fields}
        async with self._places:
            tries, waited_s = 0, 0.0
            while True:
                stream = self._client.stream_chat(self._model, messages, headers=headers, **fields)
                stream.tries = tries
                try:
                    await stream.__aenter__()
                    break
                except TiltyardError as error:
                    waited_s += await self.wait_after(error, tries, waited_s, keyed=key is not None)
                    tries += 1
            try:
                yield stream
            finally:
                self.used.add(stream.usage)
                await stream.__aexit__(None, None, None)

    def keep_spelling(self, choices: tuple[str, ...], spelling: Spelling) -> None:
        """Remember how choices are spelled; the oldest are forgotten."""
        self.spellings[choices] = spelling
        if len(self.spellings) > MAX_SPELLINGS:
            del self.spellings[next(iter(self.spellings))]

    async def wait_after(
        self, error: TiltyardError, tries: int, waited_s: float = 0.0, *, keyed: bool
    ) -> float:
        """Wait before another try and say how long it was, or raise the error where there must be none."""
        once = keyed and self.retries.after_a_cut and (await self.server()).ours
        wait_s = self.retries.wait_s(error, tries, waited_s, once=once)
        if wait_s is None:
            raise error
        self.used.retries += 1
        await asyncio.sleep(wait_s)
        return wait_s

    async def _find_out(self) -> Server:
        try:
            entries = await self._client.models()
        except TiltyardError as error:
            if self._dialect is None and not isinstance(error, NotFound):
                raise
            entries = []  # a server may have no list; what is wrong with it otherwise, the step itself will say
        ours = any(entry.identity is not None for entry in entries)
        owner = next((entry.owned_by for entry in entries), "")
        found: Dialect = "tiltyard" if ours else DIALECTS.get(owner, "openai")
        return Server(self._dialect or found, ours)
