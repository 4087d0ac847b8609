"""Programs over a model: prompts, answers and branches in plain Python, on any OpenAI-compatible server.

::

    async with Program("http://127.0.0.1:8000", model="chat") as program:
        s = program.prompt().system("You are terse.").user("Name a river.")
        river = await s.gen("river", max_tokens=16)
        longer = await s.user("Is it longer than the Rhine?").select("longer", ["yes", "no"])

A `Program` is who asks whom: the server, the model, the key, the user, the tools. A `Prompt` (`prompt.py`) is one
conversation. Nothing is shared between the prompts of a program but connections and the count of what was used.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

from tiltyard.client.asking import Asker, Used
from tiltyard.client.client import DEFAULT_URL, ModelClient
from tiltyard.client.conversation import Conversation
from tiltyard.client.forms import Dialect
from tiltyard.client.prompt import Prompt, Setting
from tiltyard.client.retries import Retries
from tiltyard.client.tools import AnyTool, Caller
from tiltyard.errors import InvalidRequest
from tiltyard.identity.canonical import Json

MAX_SEED = 2**53 - 1
CONCURRENCY = 64


class Program:
    """A server, a model and a caller; makes prompts.

    `settings` are fields of every request (`temperature=0.7`, `top_p=0.9`), which a step may override. With a
    `seed` every step draws from a seed of its own, made of this one and the step's place in the program: the same
    program gives the same answers where the server's seeds hold. `shadow` keeps every tool with side effects from
    running. `dialect` says how to ask for forms where the server does not tell.
    """

    def __init__(
        self,
        base_url: str = DEFAULT_URL,
        *,
        model: str = "chat",
        api_key: str | None = None,
        user: str | None = None,
        tools: Sequence[AnyTool] = (),
        shadow: bool = False,
        seed: int | None = None,
        dialect: Dialect | None = None,
        headers: Mapping[str, str] | None = None,
        concurrency: int = CONCURRENCY,
        retries: Retries | None = None,
        timeout_s: float = 600.0,
        **settings: Json,
    ) -> None:
        if seed is not None and not 0 <= seed <= MAX_SEED:
            raise InvalidRequest(f"seed is {seed}; it must be 0 to 2^53 - 1", param="seed")
        if concurrency < 1:
            raise InvalidRequest(f"concurrency is {concurrency}; it must be at least 1", param="concurrency")
        by_name = {one.name: one for one in tools}
        if len(by_name) < len(tools):
            raise InvalidRequest("two tools have the same name", param="tools")
        self._client = ModelClient(base_url, api_key=api_key, timeout_s=timeout_s)
        self._setting = Setting(
            asker=Asker(
                self._client,
                model=model,
                user=user,
                headers=headers or {},
                retries=retries or Retries(),
                concurrency=concurrency,
                dialect=dialect,
            ),
            fields=settings,
            seed=seed,
            tools=by_name,
            caller=Caller(user, shadow, api_key, self.prompt),
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    @property
    def used(self) -> Used:
        """What all prompts of this program have used so far."""
        return self._setting.asker.used

    def prompt(self) -> Prompt:
        """A new, empty conversation; to the server its requests and those of its branches are one group."""
        return Prompt(self._setting, Conversation(group=secrets.token_hex(12)))
