"""The waiting room: requests for a model that nobody serves now and that somebody will serve soon.

A fleet that scales to zero must not answer 503 to the request for which it is to come back. Whoever may start a worker says so
(`may_come`); a request then waits for it, for `patience_s` at most, and the autoscaler sees how much waits. More than `places` do not
wait: 429, come back later (llm-d's router has a time of its own for an empty pool, and the same two answers).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tiltyard.errors import Overloaded, Unavailable
from tiltyard.fleet.registry import Registry
from tiltyard.wire.openai import ChatCompletionRequest, CompletionRequest

LOOK_EVERY_S = 0.05
RETRY_S = 5.0
CHARACTERS_A_TOKEN = 4
GUESSED_ANSWER_TOKENS = 256


def _nobody(_identity: str) -> bool:
    """The default: no worker comes that is not there."""
    return False


def rough_tokens(asked: ChatCompletionRequest | CompletionRequest) -> int:
    """About how many tokens a request is, for a load that no worker has been given yet."""
    if isinstance(asked, ChatCompletionRequest):
        characters = sum(len(message.content or "") for message in asked.messages)
    else:
        characters = len(asked.prompt)
    return characters // CHARACTERS_A_TOKEN + asked.n * (asked.answer_tokens or GUESSED_ANSWER_TOKENS)


@dataclass
class WaitingRoom:
    """Of one gateway."""

    registry: Registry
    may_come: Callable[[str], bool] = _nobody
    """Whether a worker for an identity can be started."""
    patience_s: float = 120.0
    places: int = 256
    _waiting: dict[str, list[int]] = field(default_factory=dict)
    """By identity, the tokens of each request that waits."""

    def has_to_wait(self, identity: str) -> bool:
        """Whether a request for an identity finds no worker and one may come."""
        return not self.registry.serving(identity) and self.may_come(identity)

    async def wait(self, identity: str, tokens: int) -> None:
        """Return when the identity is served; raises `Unavailable` when nobody came, `Overloaded` where too many wait."""
        if not self.has_to_wait(identity):
            return
        if self.waiting_requests >= self.places:
            raise Overloaded(
                f"{self.places} requests wait for a worker to start already; try again in {RETRY_S:.0f} s",
                retry_after_s=RETRY_S,
            )
        with self._seated(identity, tokens):
            try:
                async with asyncio.timeout(self.patience_s):
                    while not self.registry.serving(identity):  # noqa: ASYNC110 - many of them, and rare
                        await asyncio.sleep(LOOK_EVERY_S)
            except TimeoutError:
                raise Unavailable(
                    f"no worker for {identity} has started within {self.patience_s:.0f} s. Try again soon."
                ) from None

    def waiting_tokens(self, identities: Collection[str]) -> int:
        """Tokens of the requests that wait for any of these."""
        return sum(sum(self._waiting.get(identity, ())) for identity in identities)

    @property
    def waiting_requests(self) -> int:
        """How many wait."""
        return sum(map(len, self._waiting.values()))

    @contextmanager
    def _seated(self, identity: str, tokens: int) -> Iterator[None]:
        seats = self._waiting.setdefault(identity, [])
        seats.append(tokens)
        try:
            yield
        finally:
            seats.remove(tokens)
