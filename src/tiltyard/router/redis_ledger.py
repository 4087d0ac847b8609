"""Tenants' accounts in Redis or Valkey: one script, so that each step is indivisible for every gateway on it."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import Callable
from importlib import resources

from tiltyard.errors import UpstreamFailed
from tiltyard.events.ids import new_id
from tiltyard.router.ledger import (
    Account,
    Ask,
    Denial,
    Hold,
    Ledger,
    Levels,
    Used,
    day_of,
    denial,
    read_reason,
    standing_of,
)
from tiltyard.router.resp import RedisAddress, RedisConnection, RedisRefusal, Reply, StoreUnreachable
from tiltyard.router.tenants import NANO, TenantTerms

LEASE_S = 60.0
"""A gateway that dies leaves holds behind; they are dropped, unbilled as their answers are unrecorded, after this."""
RENEW_S = 15.0
RETRY_S = 1.0
"""A settlement that could not be sent is tried again after this, until it is."""
PREFIX = "tiltyard"

_logger = logging.getLogger(__name__)


class RedisLedger(Ledger):
    """Accounts that every gateway on one server shares; `clock_us` is this machine's."""

    def __init__(
        self,
        url: str,
        *,
        prefix: str = PREFIX,
        clock_us: Callable[[], int] = lambda: time.time_ns() // 1000,
        retry_s: float = RETRY_S,
    ) -> None:
        self._connection = RedisConnection(RedisAddress.parse(url))
        self._prefix = prefix
        self._clock_us = clock_us
        self._retry_s = retry_s
        self._script = resources.files("tiltyard.router").joinpath("redis_ledger.lua").read_bytes()
        self._digest = hashlib.sha1(self._script, usedforsecurity=False).hexdigest()
        self._open: dict[str, Hold] = {}
        self._renewing: asyncio.Task[None] | None = None
        self._late: set[asyncio.Task[None]] = set()

    async def reserve(self, tenant: str, terms: TenantTerms, ask: Ask) -> Hold | Denial:
        """Take what a request may use, all or nothing; raises `StoreUnreachable`."""
        now, name = self._clock_us(), new_id()
        day = day_of(now)
        reply = await self._run(
            tenant,
            "reserve",
            now,
            day,
            name,
            repr(float(ask.tokens)),
            ask.worst_nano,
            terms.requests_per_minute,
            terms.tokens_per_minute,
            terms.concurrency,
            None if terms.daily_budget is None else round(terms.daily_budget * NANO),
            None if terms.monthly_budget is None else round(terms.monthly_budget * NANO),
            round(LEASE_S * 1e6),
        )
        match reply:
            case [bytes() as reason, bytes() as requests, bytes() as tokens]:
                levels = Levels(float(requests), float(tokens))
            case _:
                raise UpstreamFailed(f"{self._connection.address.shown} gave an unknown reply")
        if reason:
            return denial(read_reason(reason.decode()), terms, ask, levels, now_us=now)
        hold = Hold(name, tenant, day, ask, standing_of(terms, levels))
        self._open[name] = hold
        if self._renewing is None:
            self._renewing = asyncio.create_task(self._renew())
        return hold

    async def settle(self, hold: Hold, terms: TenantTerms, used: Used) -> None:
        """Give a hold back and count what was used; later, by itself, where the server cannot be reached now."""
        if self._open.pop(hold.id, None) is None:
            return
        try:
            await self._settle(hold, used)
        except StoreUnreachable as error:
            _logger.warning("%s; an account is settled as soon as it can be", error.message)
            task = asyncio.create_task(self._settle_late(hold, used))
            self._late.add(task)
            task.add_done_callback(self._late.discard)

    async def account(self, tenant: str) -> Account:
        """What a tenant has used and holds."""
        now = self._clock_us()
        match await self._run(tenant, "account", day_of(now), now):
            case [int() as in_flight, bytes() as reserved, bytes() as day, bytes() as month]:
                return Account(in_flight, int(reserved), int(day), int(month))
        raise UpstreamFailed(f"{self._connection.address.shown} gave an unknown reply")

    async def aclose(self) -> None:
        """Close the connection; settlements that are still late are given up, and their holds run out."""
        tasks = [*self._late, *([self._renewing] if self._renewing is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._connection.aclose()

    async def _settle(self, hold: Hold, used: Used) -> None:
        correction = repr(float(used.tokens - hold.ask.tokens))
        await self._run(hold.tenant, "settle", hold.day, hold.id, correction, used.cost_nano)

    async def _settle_late(self, hold: Hold, used: Used) -> None:
        while True:
            await asyncio.sleep(self._retry_s)
            try:
                await self._settle(hold, used)
            except StoreUnreachable:
                continue
            return

    async def _renew(self) -> None:
        """Say that what is in flight here lives: nothing of a request that runs may run out."""
        while True:
            await asyncio.sleep(RENEW_S)
            await self.renew()

    async def renew(self) -> None:
        """Extend the leases of everything in flight here."""
        until = self._clock_us() + round(LEASE_S * 1e6)
        tenants: dict[str, list[str]] = {}
        for hold in self._open.values():
            tenants.setdefault(hold.tenant, []).append(hold.id)
        for tenant, ids in tenants.items():
            try:
                await self._run(tenant, "renew", until, *ids)
            except StoreUnreachable as error:
                _logger.warning("%s; leases are renewed as soon as they can be", error.message)

    async def _run(self, tenant: str, *words: str | int | None) -> Reply:
        key = f"{self._prefix}:{{{tenant}}}"
        arguments = ["" if word is None else str(word) for word in words]
        reply = await self._connection.call("EVALSHA", self._digest, "1", key, *arguments)
        if isinstance(reply, RedisRefusal) and reply.message.startswith("NOSCRIPT"):
            reply = await self._connection.call("EVAL", self._script, "1", key, *arguments)
        if isinstance(reply, RedisRefusal):
            raise StoreUnreachable(
                f"the accounts at {self._connection.address.shown} refused: {reply.message}"
            )
        return reply
