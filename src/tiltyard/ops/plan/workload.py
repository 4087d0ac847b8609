"""Requests to come, made of recorded traffic: their times, lengths and common beginnings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from tiltyard.errors import InvalidRequest
from tiltyard.ops.load.traffic import Ask
from tiltyard.ops.plan.setup import Arrival
from tiltyard.ops.plan.text import Text


def arrivals_of(asks: Iterable[Ask]) -> Iterator[Arrival]:
    """In the order of `asks`, which must have times; raises `InvalidRequest` for one without."""
    for number, ask in enumerate(asks):
        if ask.at_s is None:
            raise InvalidRequest(
                f"request {number} has no time; a plan needs traffic with times", param="trace"
            )
        # Names are the trace's own numbers, made even and negative; whatever has no name is the request's alone.
        names = tuple(-2 - 2 * name if name >= 0 else 2 * name - 1 for name in ask.blocks)
        yield Arrival(
            ask.at_s,
            Text(number, names, ask.block_tokens),
            ask.prompt_tokens,
            ask.answer_tokens,
            ask.tenant or "default",
            ask.service_class or "interactive",
        )


def repeated(asks: Sequence[Ask], requests: int) -> Iterator[Ask]:
    """The same traffic again and again until there are so many requests; names of texts stay what they are."""
    if not asks:
        return
    last, first = asks[-1].at_s or 0.0, asks[0].at_s or 0.0
    length = (last - first) * (1 + 1 / len(asks))
    for number in range(requests):
        turn, place = divmod(number, len(asks))
        ask = asks[place]
        yield Ask(
            ask.prompt_tokens,
            ask.answer_tokens,
            (ask.at_s or 0.0) + turn * length,
            ask.blocks,
            ask.block_tokens,
            tenant=ask.tenant,
            service_class=ask.service_class,
        )
