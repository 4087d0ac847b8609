"""Who is served next: weighted shares between classes, a virtual token counter between tenants.

Both levels count what was served and let the one with the smallest count go first ("Fairness in Serving Large
Language Models", Sheng et al. 2024, algorithm 2)::

    c_i += (prefill_price * prefill tokens + decode_price * decode tokens) / w_i

`w_i` is the weight of a class; tenants of a class weigh the same. Who arrives after a pause is lifted to the
smallest counter among those that wait (or to the last one that left the queue): an idle hour saves up nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tiltyard.engine.request import EngineRequest, RequestClass, Usage
from tiltyard.errors import ConfigurationError
from tiltyard.wire.terms import DEFAULT_WEIGHTS

CLASSES: tuple[RequestClass, ...] = ("interactive", "agent", "batch")
"""Most urgent first."""
RANK: Mapping[RequestClass, int] = {name: rank for rank, name in enumerate(CLASSES)}
METERED_TENANTS = 1024
"""Tenants that are metered under their own names; the rest share one account, so that memory is bounded."""
OTHER_TENANTS = "(other)"


@dataclass(frozen=True, slots=True)
class FairnessConfig:
    """Shares and prices; they decide who waits, never a token."""

    weights: Mapping[RequestClass, float] = field(default_factory=lambda: dict(DEFAULT_WEIGHTS))
    prefill_price: float = 1.0
    decode_price: float = 2.0
    """A decoded token reads all weights for one row, as in the paper's w_q = 2 w_p."""

    def __post_init__(self) -> None:
        for name in CLASSES:
            weight = self.weights.get(name)
            if weight is None or not (math.isfinite(weight) and weight > 0):
                raise ConfigurationError(
                    f"the weight of class {name} is {weight}; it must be a number above 0",
                    param="class_weights",
                )
        for price_name in ("prefill_price", "decode_price"):
            if not (math.isfinite(price := getattr(self, price_name)) and price >= 0):
                raise ConfigurationError(f"{price_name} is {price}; it must be at least 0", param=price_name)


class VirtualCounters:
    """Served cost by name, with the lift for those who come back.

    >>> counters = VirtualCounters()
    >>> counters.charge("a", 10.0)
    >>> counters.arrive("b", waiting=["a"])
    >>> counters["b"]
    10.0
    """

    def __init__(self) -> None:
        self._counters: dict[str, float] = {}
        self._last_left = 0.0

    def __getitem__(self, name: str) -> float:
        return self._counters.get(name, 0.0)

    def arrive(self, name: str, *, waiting: Iterable[str]) -> None:
        """`name`, of which nothing waits, gets a request; `waiting` are the names of which something does."""
        floor = min((self[other] for other in waiting), default=self._last_left)
        self._counters[name] = max(self[name], floor)

    def left(self, name: str) -> None:
        """The last waiting request of `name` has left the queue."""
        self._last_left = self[name]

    def charge(self, name: str, cost: float) -> None:
        """Count what was served."""
        self._counters[name] = self[name] + cost

    def forget(self, keep: Iterable[str]) -> None:
        """Drop names outside `keep` that a lift would raise anyway, so that memory follows who is here."""
        kept = set(keep)
        floor = min((self[name] for name in kept), default=self._last_left)
        self._counters = {
            name: count for name, count in self._counters.items() if name in kept or count > floor
        }

    def __len__(self) -> int:
        return len(self._counters)


class Account:
    """What one tenant was served in one class: its usage, and its place in the queue."""

    __slots__ = ("_shares", "request_class", "tenant", "usage")

    def __init__(self, shares: FairShares, request_class: RequestClass, tenant: str, usage: Usage) -> None:
        self._shares = shares
        self.request_class = request_class
        self.tenant = tenant
        self.usage = usage

    def admitted(self, tokens: int) -> None:
        """Charge `tokens` of a prompt that are going to be run."""
        self._shares.charge(self, tokens * self._shares.config.prefill_price)

    def decoded(self, tokens: int = 1) -> None:
        """Charge and meter tokens that were generated."""
        self.usage.decode_tokens += tokens
        self._shares.charge(self, tokens * self._shares.config.decode_price)


class FairShares:
    """The counters of both levels, and the meter."""

    def __init__(self, config: FairnessConfig) -> None:
        self.config = config
        self.classes = VirtualCounters()
        self.tenants: dict[RequestClass, VirtualCounters] = {name: VirtualCounters() for name in CLASSES}
        self.usage: dict[tuple[str, RequestClass], Usage] = {}
        """By tenant and class; see `METERED_TENANTS`."""

    def account(self, request: EngineRequest) -> Account:
        """The account that a request is charged to."""
        key = (request.tenant, request.priority)
        if key not in self.usage and len(self.usage) >= METERED_TENANTS * len(CLASSES):
            key = (OTHER_TENANTS, request.priority)
        usage = self.usage.setdefault(key, Usage())
        usage.requests += 1
        return Account(self, request.priority, request.tenant, usage)

    def charge(self, account: Account, cost: float) -> None:
        """Count `cost` against the tenant, and against its class by weight."""
        self.classes.charge(account.request_class, cost / self.config.weights[account.request_class])
        self.tenants[account.request_class].charge(account.tenant, cost)
