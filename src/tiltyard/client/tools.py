"""Python functions that a program may call, with the identity of whoever runs the program.

::

    @tool(side_effects=True)
    def send_mail(caller: Caller, to: str, text: str) -> str: ...

    @send_mail.in_shadow
    def _(caller: Caller, to: str, text: str) -> str:
        return "not sent"
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Concatenate, Generic, ParamSpec, TypeAlias, TypeVar, cast

from tiltyard.errors import InvalidRequest

if TYPE_CHECKING:
    from tiltyard.client.prompt import Prompt

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Caller:
    """On whose behalf a tool runs; its first argument."""

    user: str | None
    """The data subject of the program, as `user` of a request."""
    shadow: bool
    """Whether this is a shadow run, in which nothing with side effects may happen."""
    api_key: str | None = field(repr=False)
    """The key under which the program asks models: whatever the tool asks in its turn is asked and billed under it."""
    new_prompt: Callable[[], Prompt] = field(repr=False, compare=False)
    """A fresh prompt of the same program: same key, same user, same tools, shadow if this run is."""


class ShadowRefused(InvalidRequest):
    """A shadow run came to a tool with side effects that says nothing to return instead."""

    default_code = "shadow_refused"


class Tool(Generic[P, R]):
    """A function with a name and an answer to the question whether it changes the world."""

    def __init__(
        self, function: Callable[Concatenate[Caller, P], R | Awaitable[R]], *, side_effects: bool
    ) -> None:
        self.name = function.__name__
        self.side_effects = side_effects
        self.__doc__ = function.__doc__
        self._function = function
        self._instead: Callable[Concatenate[Caller, P], R | Awaitable[R]] | None = None

    def in_shadow(
        self, function: Callable[Concatenate[Caller, P], R | Awaitable[R]]
    ) -> Callable[Concatenate[Caller, P], R | Awaitable[R]]:
        """Decorator: what a shadow run calls instead; it must have no side effects itself."""
        self._instead = function
        return function

    async def run(self, caller: Caller, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function, in a thread if it is not a coroutine; in a shadow run never one with side effects.

        Raises `ShadowRefused`, before anything has run, where a shadow run has nothing to call.
        """
        function = self._function
        if caller.shadow and self.side_effects:
            if self._instead is None:
                raise ShadowRefused(
                    f"tool {self.name!r} has side effects and this is a shadow run. Say what it returns there: "
                    f"@{self.name}.in_shadow",
                    param=self.name,
                )
            function = self._instead
        if inspect.iscoroutinefunction(function):
            return cast(R, await function(caller, *args, **kwargs))
        result = await asyncio.to_thread(function, caller, *args, **kwargs)
        return cast(R, await result if inspect.isawaitable(result) else result)

    def __repr__(self) -> str:
        return f"<tool {self.name}{', side effects' if self.side_effects else ''}>"


AnyTool: TypeAlias = "Tool[..., object]"


def tool(*, side_effects: bool) -> Callable[[Callable[Concatenate[Caller, P], R | Awaitable[R]]], Tool[P, R]]:
    """Decorator: make a tool of a function whose first parameter is the `Caller`.

    Whether it has side effects must be said: there is no safe guess.
    """

    def made(function: Callable[Concatenate[Caller, P], R | Awaitable[R]]) -> Tool[P, R]:
        return Tool(function, side_effects=side_effects)

    return made
