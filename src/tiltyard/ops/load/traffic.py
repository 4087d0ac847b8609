"""What is asked, how much and when: even loads, Poisson arrivals, and recorded traffic, scaled."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from tiltyard.errors import InvalidRequest
from tiltyard.wire.terms import ServiceClass


@dataclass(frozen=True, slots=True)
class Ask:
    """One request to come."""

    prompt_tokens: int
    answer_tokens: int
    at_s: float | None = None
    """When it is meant to be sent, from the beginning; `None`: as soon as it is somebody's turn."""
    blocks: tuple[int, ...] = ()
    """Names of the prompt's blocks, one after another: prompts that begin with the same names begin with the same text."""
    block_tokens: int = 0
    """Tokens of each of them."""
    session: str = ""
    """Whose conversation it goes on with; empty: none."""
    turn: int = 0
    think_s: float = 0.0
    """Seconds between the answer before it, in its conversation, and itself."""
    tenant: str = ""
    """Who asks, in traffic that says so; a load is sent with one key, a plan keeps tenants apart."""
    service_class: ServiceClass | None = None
    """How urgent it is, in traffic that says so: sent as `x-tiltyard-class`."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of made-up requests."""

    prompt_tokens: int = 128
    answer_tokens: int = 128
    shared_tokens: int = 0
    """Of the prompt, its beginning that all have in common."""
    turns: int = 1
    think_s: float = 1.0
    """Mean pause before each turn but the first, drawn from an exponential distribution."""

    def __post_init__(self) -> None:
        for name, least in (("prompt_tokens", 1), ("answer_tokens", 1), ("shared_tokens", 0), ("turns", 1)):
            if getattr(self, name) < least:
                raise InvalidRequest(
                    f"{name} is {getattr(self, name)}; it must be at least {least}", param=name
                )
        if self.shared_tokens >= self.prompt_tokens:
            raise InvalidRequest(
                f"shared_tokens ({self.shared_tokens}) must be fewer than prompt_tokens ({self.prompt_tokens})",
                param="shared_tokens",
            )


def even(shape: Shape, requests: int, seed: int) -> list[Ask]:
    """Requests of one size without times, conversations one after another."""
    rng = random.Random(seed)  # noqa: S311
    asks = []
    for number in range(requests):
        session, turn = divmod(number, shape.turns)
        asks.append(
            Ask(
                shape.prompt_tokens,
                shape.answer_tokens,
                blocks=(-1,) if shape.shared_tokens else (),
                block_tokens=shape.shared_tokens,
                session=f"s{session}" if shape.turns > 1 else "",
                turn=turn,
                think_s=rng.expovariate(1 / shape.think_s) if turn and shape.think_s > 0 else 0.0,
            )
        )
    return asks


def poisson(asks: Sequence[Ask], rate: float, seed: int) -> list[Ask]:
    """The same requests as independent users send them, `rate` a second; of a conversation, its first turn."""
    if rate <= 0:
        raise InvalidRequest(f"a rate of {rate} sends nothing; say requests a second above 0", param="rate")
    rng = random.Random(seed + 1)  # noqa: S311
    now, timed = 0.0, []
    for ask in asks:
        if ask.turn:
            timed.append(ask)
            continue
        timed.append(replace(ask, at_s=now))
        now += rng.expovariate(rate)
    return timed


@dataclass(frozen=True, slots=True)
class Scaling:
    """How recorded traffic was changed; goes into every output."""

    speed: float = 1.0
    """Times between arrivals are divided by this."""
    tokens: float = 1.0
    """Lengths are multiplied by this, down to one token."""
    prompts: float = 1.0
    """Lengths of prompts alone are multiplied by this too."""
    most_tokens: int | None = None
    """Prompt and answer together are cut to this many."""

    def __post_init__(self) -> None:
        for name in ("speed", "tokens", "prompts"):
            if getattr(self, name) <= 0:
                raise InvalidRequest(f"{name} is {getattr(self, name)}; it must be above 0", param=name)

    def of(self, asks: Sequence[Ask]) -> list[Ask]:
        """Scale requests."""
        return list(self.each(asks))

    def each(self, asks: Iterable[Ask]) -> Iterator[Ask]:
        """Scale requests one by one."""
        return map(self._one, asks)

    def _one(self, ask: Ask) -> Ask:
        prompt = max(1, round(ask.prompt_tokens * self.tokens * self.prompts))
        answer = max(1, round(ask.answer_tokens * self.tokens))
        if self.most_tokens is not None:
            answer = min(answer, max(1, self.most_tokens // 2))
            prompt = min(prompt, max(1, self.most_tokens - answer))
        return replace(
            ask,
            prompt_tokens=prompt,
            answer_tokens=answer,
            at_s=None if ask.at_s is None else ask.at_s / self.speed,
            block_tokens=max(1, round(ask.block_tokens * self.tokens * self.prompts)) if ask.blocks else 0,
        )
