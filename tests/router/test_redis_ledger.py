"""What only a shared ledger has: several gateways, leases, and a server that may not be there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from ledgers import Clock, denied, held, settle

from real_redis import running_redis
from tiltyard.errors import ConfigurationError
from tiltyard.events.ids import new_id
from tiltyard.router.ledger import Account, Ask, Hold, Used
from tiltyard.router.redis_ledger import LEASE_S, RedisLedger
from tiltyard.router.resp import RedisAddress, RedisConnection, StoreUnreachable
from tiltyard.router.tenants import TenantTerms


@asynccontextmanager
async def two(redis_url: str, clock: Clock) -> AsyncIterator[tuple[RedisLedger, RedisLedger]]:
    prefix = new_id()
    ledgers = tuple(RedisLedger(redis_url, prefix=prefix, clock_us=clock, retry_s=0.01) for _ in range(2))
    yield ledgers[0], ledgers[1]
    for ledger in ledgers:
        await ledger.aclose()


async def test_limits_hold_for_all_gateways_together(redis_url: str, clock: Clock) -> None:
    """LiteLLM #40291, LiteLLM #13202, LiteLLM #18518, LiteLLM #10555: a limit that holds per replica is that many times too high."""
    terms = TenantTerms(tokens_per_minute=100, concurrency=3, daily_budget=1.0)
    async with two(redis_url, clock) as (one, other):
        hold = await held(one, terms, tokens=60, worst=10)
        assert (await denied(other, terms, tokens=60))[0] == "tokens"
        await held(other, terms, tokens=40)
        await held(one, terms)
        assert (await denied(other, terms))[0] == "concurrency"
        await settle(one, terms, hold, tokens=60, cost=7)
        assert await other.account("acme") == Account(2, 0, 7, 7)
        verdicts = await asyncio.gather(
            *(ledger.reserve("rush", terms, Ask(0, 100_000_000)) for ledger in (one, other) * 20)
        )
        assert sum(isinstance(verdict, Hold) for verdict in verdicts) == 3


async def test_holds_of_a_gateway_that_died_run_out_and_those_of_a_living_one_never(
    redis_url: str, clock: Clock
) -> None:
    """llm-d-router #2295: a reaper that dropped the accounts of requests that were still running."""
    terms = TenantTerms(concurrency=2, daily_budget=1.0)
    async with two(redis_url, clock) as (living, dead):
        long = await held(living, terms, worst=400_000_000)
        await held(dead, terms, worst=400_000_000)
        for _ in range(10):
            clock.advance(LEASE_S - 1)
            await living.renew()
        fresh = await held(living, terms, worst=600_000_000)
        assert await living.account("acme") == Account(2, 1_000_000_000, 0, 0)
        await settle(living, terms, long, cost=5)
        await settle(living, terms, fresh, cost=6)
        assert await living.account("acme") == Account(0, 0, 11, 11)


async def test_what_a_dead_gateway_held_is_given_back_though_its_tenant_asks_no_more(
    redis_url: str, clock: Clock
) -> None:
    async with two(redis_url, clock) as (living, dead):
        await held(dead, TenantTerms(daily_budget=1.0), worst=50)
        assert await living.account("acme") == Account(1, 50, 0, 0)
        clock.advance(LEASE_S + 1)
        assert await living.account("acme") == Account(0, 0, 0, 0)


async def test_what_a_request_used_is_billed_even_if_its_hold_has_run_out(
    redis_url: str, clock: Clock
) -> None:
    terms = TenantTerms(daily_budget=1.0)
    async with two(redis_url, clock) as (paused, other):
        hold = await held(paused, terms, worst=50)
        clock.advance(LEASE_S + 1)
        await settle(other, terms, await held(other, terms, worst=10), cost=10)
        assert (await other.account("acme")).in_flight == 0
        await settle(paused, terms, hold, cost=40)
        assert await other.account("acme") == Account(0, 0, 50, 50)


async def test_a_settlement_that_was_sent_twice_counts_once(redis_url: str, clock: Clock) -> None:
    terms = TenantTerms(daily_budget=1.0)
    async with two(redis_url, clock) as (ledger, _):
        hold = await held(ledger, terms, worst=50)
        for _ in range(2):  # as after a reply that was lost on the way
            await ledger._settle(hold, Used(0.0, 40))
        assert await ledger.account("acme") == Account(0, 0, 40, 40)


async def test_nothing_is_granted_while_the_server_cannot_be_reached_and_nothing_is_lost(
    redis_url: str, clock: Clock
) -> None:
    terms = TenantTerms(daily_budget=1.0)
    async with two(redis_url, clock) as (ledger, other):
        hold = await held(ledger, terms, worst=50)
        there, nowhere = ledger._connection.address, RedisAddress("127.0.0.1", 1)
        await ledger._connection.aclose()
        ledger._connection.address = nowhere
        with pytest.raises(StoreUnreachable, match="cannot be reached"):
            await ledger.reserve("acme", terms, Ask(0, 1))
        await settle(ledger, terms, hold, cost=40)
        assert await other.account("acme") == Account(1, 50, 0, 0)
        ledger._connection.address = there
        (late,) = ledger._late
        await late
        assert await other.account("acme") == Account(0, 0, 40, 40)


async def test_replies_are_not_mixed_up_when_a_caller_leaves(redis_url: str, clock: Clock) -> None:
    terms = TenantTerms(concurrency=1)
    async with two(redis_url, clock) as (ledger, _):
        calls = [asyncio.ensure_future(ledger.reserve(f"tenant-{i}", terms, Ask(0, i))) for i in range(50)]
        await asyncio.sleep(0)
        for call in calls[::2]:
            call.cancel()
        done = await asyncio.gather(*calls, return_exceptions=True)
        for number in range(1, 50, 2):
            hold = done[number]
            assert isinstance(hold, Hold)
            assert await ledger.account(f"tenant-{number}") == Account(1, number, 0, 0)


async def test_a_password_and_a_database_are_honoured(redis_url: str, clock: Clock, tmp_path: Path) -> None:
    with running_redis(tmp_path, "--requirepass", "p@ss") as url:
        place = url.removeprefix("redis://").removesuffix("/0")
        right = RedisLedger(f"redis://:p%40ss@{place}/3", clock_us=clock)
        wrong = RedisLedger(f"redis://:else@{place}/3", clock_us=clock)
        elsewhere = RedisLedger(f"redis://:p%40ss@{place}/0", clock_us=clock)
        await held(right, TenantTerms(), worst=5)
        assert (await right.account("acme")).reserved_nano == 5
        assert (await elsewhere.account("acme")).reserved_nano == 0
        with pytest.raises(StoreUnreachable) as refused:
            await wrong.account("acme")
        assert "else" not in refused.value.message
        for ledger in (right, wrong, elsewhere):
            await ledger.aclose()


async def test_a_connection_whose_opening_was_cancelled_is_opened_anew(tmp_path: Path) -> None:
    """Else what follows would be carried out on database 0."""
    with running_redis(tmp_path, "--requirepass", "x") as url:
        place = url.removeprefix("redis://").removesuffix("/0")
        connection = RedisConnection(RedisAddress.parse(f"redis://:x@{place}/5"))
        call = asyncio.ensure_future(connection.call("PING"))
        while connection._writer is None:  # noqa: ASYNC110 - then it waits for the reply to AUTH
            await asyncio.sleep(0)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        info = await connection.call("CLIENT", "INFO")
        assert isinstance(info, bytes)
        assert b" db=5 " in info
        await connection.aclose()


@pytest.mark.parametrize("url", ["http://x", "redis:///0", "redis://h:port", "redis://h/name", "cache:6379"])
def test_an_address_that_is_none_is_refused_without_repeating_it(url: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        RedisAddress.parse(url)
    assert url not in refused.value.message


def test_a_password_is_never_shown() -> None:
    address = RedisAddress.parse("rediss://me:p%40ss@cache:6380/2")
    assert address == RedisAddress("cache", 6380, "me", "p@ss", 2, True)
    assert "p@ss" not in repr(address) + address.shown
