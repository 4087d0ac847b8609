"""Questions to a plan: `replicas=4,routing=round-robin` is the same traffic and fleet with those two things changed.

Traffic: `speed` (arrivals come so much faster), `tokens` (prompts and answers so much longer), `prompts` (prompts alone: what if context
doubles), `max_tokens` (answers are cut to it), `max_prompt_tokens` (longer requests are turned away), `batch` (that share of the requests is of class batch). Fleet: `replicas`,
`routing`, `gate_tokens`, `max_queue`, `queue_deadline`, `max_sequences`, `max_batch_tokens`, `kv` (so much more KV memory).
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, cast

from tiltyard.errors import InvalidRequest
from tiltyard.ops.load.traffic import Ask, Scaling
from tiltyard.ops.plan.setup import ROUTINGS, Fleet, Routing

Change = float | str


@dataclass(frozen=True)
class Kind:
    """What a name may be set to."""

    least: float
    whole: bool = False
    most: float = math.inf


KINDS: Final[Mapping[str, Kind]] = {
    "speed": Kind(1e-6),
    "tokens": Kind(1e-6),
    "prompts": Kind(1e-6),
    "max_tokens": Kind(1, whole=True),
    "max_prompt_tokens": Kind(1, whole=True),
    "batch": Kind(0, most=1),
    "replicas": Kind(1, whole=True),
    "gate_tokens": Kind(0, whole=True),
    "max_queue": Kind(1, whole=True),
    "queue_deadline": Kind(1e-3),
    "max_sequences": Kind(1, whole=True),
    "max_batch_tokens": Kind(1, whole=True),
    "kv": Kind(1e-6),
}
ROUTING = "routing"
NAMES = (*KINDS, ROUTING)


@dataclass(frozen=True)
class WhatIf:
    """Changes by name; none: as it is."""

    changes: Mapping[str, Change]

    @classmethod
    def parse(cls, text: str) -> WhatIf:
        """Read `name=value,…`; raises `InvalidRequest` naming what is wrong.

        >>> WhatIf.parse("replicas=2,routing=random").changes
        {'replicas': 2, 'routing': 'random'}
        """
        changes: dict[str, Change] = {}
        for part in filter(None, (piece.strip() for piece in text.split(","))):
            name, equals, value = (piece.strip() for piece in part.partition("="))
            if not equals or name not in NAMES:
                raise InvalidRequest(
                    f"{part!r} is no change; write NAME=VALUE with one of {', '.join(NAMES)}", param="what_if"
                )
            if name in changes:
                raise InvalidRequest(f"{name} is set twice in {text!r}", param=name)
            changes[name] = _routing(value) if name == ROUTING else _number(name, value)
        if not changes:
            raise InvalidRequest("a question without a change; write NAME=VALUE", param="what_if")
        return cls(changes)

    def __str__(self) -> str:
        told = (
            f"{name}={value}" if isinstance(value, str) else f"{name}={value:g}"
            for name, value in self.changes.items()
        )
        return ", ".join(told) or "as it is"

    def fleet(self, fleet: Fleet) -> Fleet:
        """The fleet with its changes; raises `InvalidRequest` naming what cannot be."""
        new = self.changes
        limits = fleet.limits
        limits = replace(
            limits,
            kv_blocks=max(1, round(limits.kv_blocks * float(new.get("kv", 1)))),
            max_batch_tokens=int(new.get("max_batch_tokens", limits.max_batch_tokens)),
            max_sequences=int(new.get("max_sequences", limits.max_sequences)),
        )
        if limits.max_sequences > limits.max_batch_tokens:
            raise InvalidRequest(
                f"max_sequences ({limits.max_sequences}) is more than max_batch_tokens ({limits.max_batch_tokens}): "
                "a step could not give each running request its token",
                param="max_sequences",
            )
        deadline = new.get("queue_deadline", fleet.queue_deadline_s)
        return replace(
            fleet,
            limits=limits,
            replicas=int(new.get("replicas", fleet.replicas)),
            routing=cast("Routing", new.get(ROUTING, fleet.routing)),
            gate_tokens=int(new.get("gate_tokens", fleet.gate_tokens)),
            max_queue=int(new.get("max_queue", fleet.max_queue)),
            queue_deadline_s=None if deadline is None else float(deadline),
        )

    def traffic(self, asks: Sequence[Ask], seed: int = 0) -> Iterator[Ask]:
        """The traffic with its changes."""
        new = self.changes
        scaled: Iterable[Ask] = asks
        if new.keys() & {"speed", "tokens", "prompts"}:
            scaled = Scaling(
                speed=float(new.get("speed", 1)),
                tokens=float(new.get("tokens", 1)),
                prompts=float(new.get("prompts", 1)),
            ).each(asks)
        most, longest, batch = new.get("max_tokens"), new.get("max_prompt_tokens"), float(new.get("batch", 0))
        rng = random.Random(seed)  # noqa: S311
        for ask in scaled:
            if longest is not None and ask.prompt_tokens > float(longest):
                continue
            if most is not None and ask.answer_tokens > float(most):
                ask = replace(ask, answer_tokens=int(most))  # noqa: PLW2901
            if batch and rng.random() < batch:
                ask = replace(ask, service_class="batch")  # noqa: PLW2901
            yield ask


def _routing(value: str) -> str:
    if value not in ROUTINGS:
        raise InvalidRequest(f"routing is {value!r}; it is one of {', '.join(ROUTINGS)}", param="routing")
    return value


def _number(name: str, value: str) -> float:
    kind = KINDS[name]
    read: Callable[[str], float] = int if kind.whole else float
    try:
        number = read(value)
    except ValueError as error:
        what = "a whole number" if kind.whole else "a number"
        raise InvalidRequest(f"{name} is {value!r}; it must be {what}", param=name) from error
    if not (math.isfinite(number) and kind.least <= number <= kind.most):
        upto = "" if kind.most == math.inf else f" and at most {kind.most:g}"
        raise InvalidRequest(f"{name} is {value}; it must be at least {kind.least:g}{upto}", param=name)
    return number
