r"""What 1,000 calls cost, from prices that somebody set: by tokens, or by the hour of the machine while it was busy.

    by tokens   1000 / n * sum over calls of (prompt_tokens * P + completion_tokens * C) / 10^6
    by machine  1000 / n * B / 3600 * H

`P` and `C` are prices of a million tokens, `H` of a machine hour, and `B` the seconds in which at least one of the calls was under way (calls that
ran together share them; idle time is nobody's call). Prices of an identity come before the machine's. Nothing is guessed: without a price there is no cost.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from tiltyard.identity.canonical import Json
from tiltyard.identity.manifest import Frozen, Number

HourPrice = Annotated[Number, Field(ge=0)]


class TokenPrices(Frozen):
    """`[costs.prices.NAME]`: what a million tokens of an identity cost."""

    prompt_million: Number = Field(ge=0)
    completion_million: Number = Field(ge=0)
    cached_million: Number | None = Field(default=None, ge=0)
    """Of prompt tokens that the provider had in its cache; as `prompt_million` where left out."""


class CostSettings(Frozen):
    """`[costs]`: prices for `tiltyard cost` and the leaderboard's cost column; nobody is billed by them."""

    currency: str = Field(default="USD", min_length=1, max_length=12)
    machine_hour: Number | None = Field(default=None, ge=0)
    """Price of an hour of the machine that a deployment runs on."""
    hours: dict[str, HourPrice] = Field(default_factory=dict)
    """By worker or hardware: price of an hour of one worker, before `machine_hour`."""
    prices: dict[str, TokenPrices] = Field(default_factory=dict)
    """By identity name."""


@dataclass(frozen=True)
class Cost:
    """Of 1,000 calls."""

    amount: float
    currency: str
    by: Literal["tokens", "machine"]

    def to_json(self) -> dict[str, Json]:
        """Return it as the API shows it."""
        return {"amount": round(self.amount, 6), "currency": self.currency, "by": self.by}


@dataclass(frozen=True)
class Spent:
    """What a number of calls used."""

    calls: int
    prompt_tokens: int
    completion_tokens: int
    busy_s: float


def cost_of(spent: Spent, identity: str, settings: CostSettings) -> Cost | None:
    """Return the cost of 1,000 such calls; `None` where no price is set, or nothing was called.

    >>> cost_of(Spent(2, 1000, 500, 7.2), "plum", CostSettings(machine_hour=2.0))
    Cost(amount=2.0, currency='USD', by='machine')
    """
    if not spent.calls:
        return None
    if (prices := settings.prices.get(identity)) is not None:
        total = (
            spent.prompt_tokens * prices.prompt_million + spent.completion_tokens * prices.completion_million
        )
        return Cost(1000 / spent.calls * total / 1e6, settings.currency, "tokens")
    if settings.machine_hour is not None:
        return Cost(
            1000 / spent.calls * spent.busy_s / 3600 * settings.machine_hour, settings.currency, "machine"
        )
    return None


def busy_seconds(calls: Iterable[tuple[float, float]]) -> float:
    """Return for how long at least one of the calls `(began, ended)` was under way.

    >>> busy_seconds([(0.0, 2.0), (1.0, 3.0), (5.0, 6.0)])
    4.0
    """
    total, until = 0.0, float("-inf")
    ordered: Sequence[tuple[float, float]] = sorted(calls)
    for began, ended in ordered:
        total += max(0.0, ended - max(began, until))
        until = max(until, ended)
    return total
