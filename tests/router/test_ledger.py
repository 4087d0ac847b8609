"""What a ledger grants, denies and remembers, the same in memory and in Redis."""

from __future__ import annotations

import asyncio

import pytest
from ledgers import NOTHING, Clock, denied, held, settle

from tiltyard.router.ledger import Account, Ask, Hold, Ledger, Standing
from tiltyard.router.redis_ledger import RedisLedger
from tiltyard.router.tenants import NANO, TenantTerms


async def test_a_bucket_is_full_at_first_and_refills_evenly(ledger: Ledger, clock: Clock) -> None:
    terms = TenantTerms(requests_per_minute=6)
    for left in (5, 4, 3, 2, 1, 0):
        hold = await held(ledger, terms)
        assert hold.standing == Standing(6, left, (6 - left) * 10.0)
    assert await denied(ledger, terms) == ("requests", 10.0)
    clock.advance(9.0)
    reason, retry = await denied(ledger, terms)
    assert (reason, retry) == ("requests", pytest.approx(1.0))
    clock.advance(1.0)
    assert (await held(ledger, terms)).standing.remaining_requests == 0
    clock.advance(3600)
    assert (await held(ledger, terms)).standing.remaining_requests == 5


async def test_tokens_are_taken_by_estimate_and_corrected_by_use(ledger: Ledger, clock: Clock) -> None:
    terms = TenantTerms(tokens_per_minute=600)
    first = await held(ledger, terms, tokens=500)
    assert await denied(ledger, terms, tokens=200) == ("tokens", 10.0)
    await settle(ledger, terms, first, tokens=100)
    second = await held(ledger, terms, tokens=500)
    assert second.standing.remaining_tokens == 0
    await settle(ledger, terms, second, tokens=1100)  # 600 more than there was: paid back at 10 a second
    assert await denied(ledger, terms, tokens=1) == ("tokens", pytest.approx(60.1))
    clock.advance(60.1)
    await held(ledger, terms, tokens=1)


async def test_what_no_minute_has_room_for_is_never_worth_a_retry(ledger: Ledger) -> None:
    terms = TenantTerms(tokens_per_minute=600)
    assert await denied(ledger, terms, tokens=601) == ("request_too_large", None)


async def test_concurrency_counts_requests_in_flight(ledger: Ledger) -> None:
    terms = TenantTerms(concurrency=2)
    first, second = [await held(ledger, terms) for _ in range(2)]
    assert (await denied(ledger, terms))[0] == "concurrency"
    await settle(ledger, terms, first)
    third = await held(ledger, terms)
    await settle(ledger, terms, second)
    await settle(ledger, terms, third)
    assert await ledger.account("acme") == NOTHING


async def test_a_budget_is_held_before_and_settled_after(ledger: Ledger) -> None:
    terms = TenantTerms(daily_budget=1.0)
    first = await held(ledger, terms, worst=700_000_000)
    assert (await ledger.account("acme")) == Account(1, 700_000_000, 0, 0)
    assert await denied(ledger, terms, worst=300_000_001) == ("daily_budget", 43_200.0)
    second = await held(ledger, terms, worst=300_000_000)
    await settle(ledger, terms, first, cost=200_000_000)
    await settle(ledger, terms, second, cost=300_000_000)
    assert (await ledger.account("acme")) == Account(0, 0, 500_000_000, 500_000_000)
    assert await denied(ledger, terms, worst=NANO + 1) == ("daily_budget", None)


async def test_a_hundred_requests_at_once_cannot_overdraw_a_budget(ledger: Ledger) -> None:
    """LiteLLM #34732, #40095: budgets that are checked first and spent later are overdrawn by whoever comes at once."""
    terms = TenantTerms(daily_budget=1.0, monthly_budget=5.0)

    async def one() -> bool:
        verdict = await ledger.reserve("acme", terms, Ask(0.0, 100_000_000))
        if not isinstance(verdict, Hold):
            return False
        await asyncio.sleep(0)
        await settle(ledger, terms, verdict, cost=100_000_000)
        return True

    granted = await asyncio.gather(*(one() for _ in range(100)))
    assert sum(granted) == 10
    assert await ledger.account("acme") == Account(0, 0, NANO, NANO)


async def test_a_hold_is_settled_once(ledger: Ledger) -> None:
    terms = TenantTerms(daily_budget=1.0, concurrency=5, tokens_per_minute=100)
    hold = await held(ledger, terms, tokens=10, worst=10)
    for _ in range(3):
        await settle(ledger, terms, hold, tokens=20, cost=7)
    assert await ledger.account("acme") == Account(0, 0, 7, 7)
    assert (await held(ledger, terms, tokens=80)).standing.remaining_tokens == 0


async def test_a_new_day_and_a_new_month_begin_at_midnight(ledger: Ledger, clock: Clock) -> None:
    """LiteLLM #40020: a cap that never resets."""
    terms = TenantTerms(daily_budget=1.0, monthly_budget=1.5)
    long = await held(ledger, terms, worst=600_000_000)
    assert (await denied(ledger, terms, worst=500_000_000)) == ("daily_budget", 43_200.0)
    clock.advance(43_200.0)
    if isinstance(ledger, RedisLedger):
        await ledger.renew()  # as it does by itself every few seconds of a real clock
    assert await ledger.account("acme") == Account(1, 600_000_000, 0, 0)
    today = await held(ledger, terms, worst=NANO)
    await settle(ledger, terms, today, cost=NANO)
    # What began yesterday counts for yesterday.
    await settle(ledger, terms, long, cost=600_000_000)
    assert await ledger.account("acme") == Account(0, 0, NANO, NANO)
    clock.advance(86_400.0)
    tomorrow = await held(ledger, terms, worst=500_000_000)
    await settle(ledger, terms, tomorrow, cost=500_000_000)
    # 2026-12-02 00:00: thirty days of December are left.
    assert await denied(ledger, terms, worst=500_000_000) == ("monthly_budget", 30 * 86_400.0)
    assert await ledger.account("acme") == Account(0, 0, 500_000_000, 1_500_000_000)


async def test_tenants_do_not_share_anything(ledger: Ledger) -> None:
    terms = TenantTerms(requests_per_minute=1, concurrency=1)
    await held(ledger, terms)
    assert isinstance(await ledger.reserve("other", terms, Ask(0.0, 0)), Hold)
    assert await ledger.account("nobody") == NOTHING


async def test_a_denial_takes_nothing(ledger: Ledger) -> None:
    terms = TenantTerms(requests_per_minute=10, tokens_per_minute=100, daily_budget=1.0)
    for _ in range(5):
        assert (await denied(ledger, terms, tokens=10, worst=2 * NANO))[0] == "daily_budget"
    hold = await held(ledger, terms, tokens=10, worst=1)
    assert hold.standing.remaining_requests == 9
    assert hold.standing.remaining_tokens == 90


async def test_a_clock_that_goes_back_neither_refills_nor_takes(ledger: Ledger, clock: Clock) -> None:
    terms = TenantTerms(requests_per_minute=2)
    await held(ledger, terms)
    await held(ledger, terms)
    clock.advance(-100.0)
    assert (await denied(ledger, terms))[0] == "requests"
    clock.advance(100.0)
    assert await denied(ledger, terms) == ("requests", 30.0)
