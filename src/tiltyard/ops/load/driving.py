"""Sends requests as users do: so many at a time, or at moments that do not wait for the answers."""

from __future__ import annotations

import asyncio
import itertools
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence

from tiltyard.ops.load.asking import Answered, Asking, Clock
from tiltyard.ops.load.prompts import OVERHEAD, prompt_of
from tiltyard.ops.load.samples import INTERRUPTED, Sample
from tiltyard.ops.load.traffic import Ask

Sleep = Callable[[float], Awaitable[None]]
Told = Callable[[Sample], None]


class Driver:
    """Runs one load against one server, and keeps a sample of every request that was begun."""

    def __init__(
        self,
        asking: Asking,
        clock: Clock,
        *,
        seed: int = 0,
        told: Told | None = None,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self.samples: list[Sample] = []
        """In the order in which they ended."""
        self._asking = asking
        self._clock = clock
        self._sleep = sleep
        self._seed = seed
        self._told = told
        self._began = clock()
        self._numbers = itertools.count()

    async def run(self, asks: Sequence[Ask], *, concurrency: int | None, stop: asyncio.Event) -> None:
        """Send all, or until `stop`: what is under way then is broken off and counted as interrupted.

        With a `concurrency`, so many conversations go on at a time, and each request is meant for the moment at which its turn
        comes. Without, each first turn is meant for its own `at_s`, whatever has become of the others.
        """
        self._began = self._clock()
        talks = conversations(asks)
        work = asyncio.ensure_future(self._closed(talks, concurrency) if concurrency else self._open(talks))
        stopped = asyncio.ensure_future(stop.wait())
        try:
            await asyncio.wait({work, stopped}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopped.cancel()
            if not work.done():
                work.cancel()
            await asyncio.gather(work, stopped, return_exceptions=True)
        if not work.cancelled() and (error := work.exception()) is not None:
            raise error

    async def _closed(self, talks: Sequence[Sequence[Ask]], concurrency: int) -> None:
        coming = iter(talks)

        async def user() -> None:
            for talk in coming:
                await self._talk(talk, self._now())

        async with asyncio.TaskGroup() as group:
            for _ in range(min(concurrency, len(talks))):
                group.create_task(user())

    async def _open(self, talks: Sequence[Sequence[Ask]]) -> None:
        async with asyncio.TaskGroup() as group:
            for talk in sorted(talks, key=lambda t: t[0].at_s or 0.0):
                at = talk[0].at_s or 0.0
                if (wait := at - self._now()) > 0:
                    await self._sleep(wait)
                group.create_task(self._talk(talk, at))

    async def _talk(self, talk: Sequence[Ask], intended: float) -> None:
        """One conversation: each turn has all before it, and comes a while after the answer to the last."""
        messages: list[dict[str, str]] = []
        for ask in talk:
            if ask.turn and messages:
                intended = self._now() + ask.think_s
                await self._sleep(ask.think_s)
            overhead = OVERHEAD if self._asking.target.endpoint == "chat" and not ask.turn else 0
            text = prompt_of(ask, next(self._numbers), self._seed, overhead=overhead)
            messages.append({"role": "user", "content": text})
            answered = await self._one(ask, messages, intended)
            if not answered.sample.ok:
                return  # a conversation whose answer is missing does not go on
            messages.append({"role": "assistant", "content": answered.text})

    async def _one(self, ask: Ask, messages: list[dict[str, str]], intended: float) -> Answered:
        body = self._asking.body(messages, ask.answer_tokens)
        sent = self._now()
        try:
            answered = await self._asking.ask(
                body,
                began=self._began,
                intended_s=intended,
                prompt_tokens=ask.prompt_tokens,
                session=ask.session,
                turn=ask.turn,
                service_class=ask.service_class,
            )
        except asyncio.CancelledError:
            self._keep(
                Sample(
                    intended,
                    sent,
                    last_s=self._now(),
                    prompt_tokens=ask.prompt_tokens,
                    error=INTERRUPTED,
                    session=ask.session,
                    turn=ask.turn,
                )
            )
            raise
        self._keep(answered.sample)
        return answered

    def _keep(self, sample: Sample) -> None:
        self.samples.append(sample)
        if self._told is not None:
            self._told(sample)

    def _now(self) -> float:
        return self._clock() - self._began


def conversations(asks: Sequence[Ask]) -> list[list[Ask]]:
    """Requests by the conversation they belong to, in order; those of none are one each."""
    found: dict[object, list[Ask]] = defaultdict(list)
    for number, ask in enumerate(asks):
        found[ask.session or number].append(ask)
    return list(found.values())
