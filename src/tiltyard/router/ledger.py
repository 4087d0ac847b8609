"""Who may use how much, and has: a hold before the work, a settlement after it, each in one indivisible step.

::

    verdict = await ledger.reserve("acme", terms, Ask(tokens=300, worst_nano=900_000))
    # Hold: work; then
    await ledger.settle(verdict, terms, Used(tokens=120, cost_nano=360_000))

Token bucket: level(t) = min(capacity, level(t0) + (t - t0) x capacity / 60 s). What a request takes is an
estimate, corrected when it is settled; a level below zero is paid back before the next request gets in.
Budget: spent + reserved + worst <= budget, for the day and the month in which the request began.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Literal, NamedTuple, TypeAlias, get_args

from tiltyard.events.ids import new_id
from tiltyard.router.tenants import NANO, TenantTerms

Reason: TypeAlias = Literal[
    "concurrency", "requests", "tokens", "request_too_large", "daily_budget", "monthly_budget"
]
_REASONS: dict[str, Reason] = {reason: reason for reason in get_args(Reason)}
MINUTE_US = 60_000_000
SLOT_RETRY_S = 1.0
"""Nobody knows when an answer under way ends; clients ask again after about this time."""


class Ask(NamedTuple):
    """What a request may use."""

    tokens: float
    """An estimate, weighted as `tokens_per_minute` counts."""
    worst_nano: int
    """The most that it can cost."""


class Used(NamedTuple):
    """What it has used."""

    tokens: float
    cost_nano: int


NOTHING = Used(0.0, 0)


@dataclass(frozen=True)
class Standing:
    """Where a tenant stands against its two rates, for the `x-ratelimit` headers; `None`: no limit."""

    limit_requests: int | None = None
    remaining_requests: int | None = None
    reset_requests_s: float | None = None
    limit_tokens: int | None = None
    remaining_tokens: int | None = None
    reset_tokens_s: float | None = None


@dataclass(frozen=True)
class Hold:
    """What one request holds until it is settled."""

    id: str
    tenant: str
    day: str
    """`YYYYMMDD` of UTC in which it began; its cost counts there and in the month."""
    ask: Ask
    standing: Standing


@dataclass(frozen=True)
class Denial:
    """Why a request may not go on; nothing is held."""

    reason: Reason
    retry_after_s: float | None
    """`None`: it can never go on as it is."""
    standing: Standing


@dataclass(frozen=True)
class Account:
    """What a tenant has used and holds now, in billionths; day and month are the present ones."""

    in_flight: int = 0
    reserved_nano: int = 0
    """Of all requests in flight, whenever they began."""
    day_nano: int = 0
    month_nano: int = 0


class Ledger(ABC):
    """Accounts of all tenants."""

    @abstractmethod
    async def reserve(self, tenant: str, terms: TenantTerms, ask: Ask) -> Hold | Denial:
        """Take what a request may use, all or nothing."""

    @abstractmethod
    async def settle(self, hold: Hold, terms: TenantTerms, used: Used) -> None:
        """Give a hold back and count what was used; a second time it does nothing."""

    @abstractmethod
    async def account(self, tenant: str) -> Account:
        """What a tenant has used and holds."""

    @abstractmethod
    async def aclose(self) -> None:
        """Give every connection back."""


def read_reason(text: str) -> Reason:
    """A reason as another process wrote it; raises `KeyError`."""
    return _REASONS[text]


def day_of(now_us: int) -> str:
    """The day of UTC, `YYYYMMDD`; its first six digits are the month."""
    return datetime.fromtimestamp(now_us // 1_000_000, UTC).strftime("%Y%m%d")


def until_next(now_us: int, window: Literal["daily_budget", "monthly_budget"]) -> float:
    """Seconds until the next day or month of UTC begins."""
    now = datetime.fromtimestamp(now_us / 1e6, UTC)
    day = now.replace(hour=0, minute=0, second=0, microsecond=0)
    if window == "daily_budget":
        then = day + timedelta(days=1)
    else:
        then = (day.replace(day=1) + timedelta(days=32)).replace(day=1)
    return (then - now).total_seconds()


class Levels(NamedTuple):
    """What is in both buckets; 0 where there is no limit."""

    requests: float
    tokens: float


def standing_of(terms: TenantTerms, levels: Levels) -> Standing:
    """Read the levels of both buckets as a client is told them."""
    rpm, tpm = terms.requests_per_minute, terms.tokens_per_minute
    requests, tokens = levels
    return Standing(
        limit_requests=rpm,
        remaining_requests=None if rpm is None else max(0, math.floor(requests)),
        reset_requests_s=None if rpm is None else (rpm - requests) * 60 / rpm,
        limit_tokens=tpm,
        remaining_tokens=None if tpm is None else max(0, math.floor(tokens)),
        reset_tokens_s=None if tpm is None else (tpm - tokens) * 60 / tpm,
    )


def denial(reason: Reason, terms: TenantTerms, ask: Ask, levels: Levels, *, now_us: int) -> Denial:
    """Say when it is worth to ask again."""
    retry: float | None
    match reason:
        case "concurrency":
            retry = SLOT_RETRY_S
        case "requests":
            retry = (1 - levels.requests) * 60 / (terms.requests_per_minute or 1)
        case "tokens":
            retry = (ask.tokens - levels.tokens) * 60 / (terms.tokens_per_minute or 1)
        case "request_too_large":
            retry = None
        case "daily_budget" | "monthly_budget" as window:
            budget = terms.daily_budget if window == "daily_budget" else terms.monthly_budget
            fits = budget is None or ask.worst_nano <= round(budget * NANO)
            retry = until_next(now_us, window) if fits else None
    return Denial(reason, retry, standing_of(terms, levels))


class _Bucket:
    """A token bucket, full at first."""

    def __init__(self) -> None:
        self.level: float | None = None
        self.at_us = 0

    def refill(self, capacity: int | None, now_us: int) -> float:
        if capacity is None:
            self.level = None
            return 0.0
        if self.level is None:
            self.level = float(capacity)
        elif now_us > self.at_us:
            self.level = self.level + (now_us - self.at_us) * capacity / MINUTE_US
        self.level = min(float(capacity), self.level)
        self.at_us = max(self.at_us, now_us)
        return self.level

    def take(self, amount: float) -> None:
        if self.level is not None:
            self.level -= amount


@dataclass
class _Window:
    """One day, or one month, of a tenant."""

    spent: int = 0
    reserved: int = 0


@dataclass
class _Books:
    requests: _Bucket = field(default_factory=_Bucket)
    tokens: _Bucket = field(default_factory=_Bucket)
    windows: dict[str, _Window] = field(default_factory=dict)
    holds: dict[str, Hold] = field(default_factory=dict)

    def window(self, name: str) -> _Window:
        return self.windows.setdefault(name, _Window())

    def forget(self, day: str) -> None:
        """Drop windows that are over and hold nothing."""
        for name in [n for n, w in self.windows.items() if not day.startswith(n) and not w.reserved]:
            del self.windows[name]


class MemoryLedger(Ledger):
    """Accounts of one process; nothing awaits in between, so each step is indivisible."""

    def __init__(self, clock_us: Callable[[], int] = lambda: time.time_ns() // 1000) -> None:
        self._clock_us = clock_us
        self._latest_us = 0
        self._books: dict[str, _Books] = {}

    def month_began_us(self) -> int:
        """When the present month of UTC began, in microseconds since 1970."""
        now = datetime.fromtimestamp(self._now_us() // 1_000_000, UTC)
        return int(datetime(now.year, now.month, 1, tzinfo=UTC).timestamp()) * 1_000_000

    def restore(self, tenant: str, day: str, cost_nano: int) -> None:
        """Count what the log says was spent on a day before this process began."""
        books = self._books.setdefault(tenant, _Books())
        for name in (day, day[:6]):
            books.window(name).spent += cost_nano
        books.forget(day_of(self._now_us()))

    async def reserve(self, tenant: str, terms: TenantTerms, ask: Ask) -> Hold | Denial:
        """Take what a request may use, all or nothing."""
        now, books = self._now_us(), self._books.setdefault(tenant, _Books())
        day = day_of(now)
        books.forget(day)
        levels = Levels(
            books.requests.refill(terms.requests_per_minute, now),
            books.tokens.refill(terms.tokens_per_minute, now),
        )
        today, month = books.window(day), books.window(day[:6])
        reason: Reason | None = None
        if terms.concurrency is not None and len(books.holds) >= terms.concurrency:
            reason = "concurrency"
        elif terms.requests_per_minute is not None and levels.requests < 1:
            reason = "requests"
        elif terms.tokens_per_minute is not None and ask.tokens > terms.tokens_per_minute:
            reason = "request_too_large"
        elif terms.tokens_per_minute is not None and levels.tokens < ask.tokens:
            reason = "tokens"
        elif _over(terms.daily_budget, today, ask):
            reason = "daily_budget"
        elif _over(terms.monthly_budget, month, ask):
            reason = "monthly_budget"
        if reason is not None:
            return denial(reason, terms, ask, levels, now_us=now)
        books.requests.take(1)
        books.tokens.take(ask.tokens)
        today.reserved += ask.worst_nano
        month.reserved += ask.worst_nano
        hold = Hold(
            new_id(),
            tenant,
            day,
            ask,
            standing_of(terms, Levels(levels.requests - 1, levels.tokens - ask.tokens)),
        )
        books.holds[hold.id] = hold
        return hold

    async def settle(self, hold: Hold, terms: TenantTerms, used: Used) -> None:
        """Give a hold back and count what was used; a second time it does nothing."""
        books = self._books[hold.tenant]
        if books.holds.pop(hold.id, None) is None:
            return
        books.tokens.take(used.tokens - hold.ask.tokens)
        for name in (hold.day, hold.day[:6]):
            window = books.window(name)
            window.reserved -= hold.ask.worst_nano
            window.spent += used.cost_nano

    async def aclose(self) -> None:
        """Nothing to give back."""

    def _now_us(self) -> int:
        # A clock that is set back must not bring back a day whose books are closed.
        self._latest_us = max(self._latest_us, self._clock_us())
        return self._latest_us

    async def account(self, tenant: str) -> Account:
        """What a tenant has used and holds."""
        books, day = self._books.get(tenant, _Books()), day_of(self._now_us())
        return Account(
            in_flight=len(books.holds),
            reserved_nano=sum(hold.ask.worst_nano for hold in books.holds.values()),
            day_nano=books.windows.get(day, _Window()).spent,
            month_nano=books.windows.get(day[:6], _Window()).spent,
        )


def _over(budget: float | None, window: _Window, ask: Ask) -> bool:
    return budget is not None and window.spent + window.reserved + ask.worst_nano > round(budget * NANO)
